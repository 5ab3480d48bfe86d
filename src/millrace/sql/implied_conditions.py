"""Weaker conditions that a condition implies for some of its columns.

`(brand = 'x' AND amount > 1) OR (brand = 'y' AND amount > 2)` cannot move to one side of a join,
but where it is true, `brand = 'x' OR brand = 'y'` is. Invariant: the weaker condition is true
for every row for which the condition is true.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import Expression, expression_of
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import operands, read


def implied_condition(
    condition: Expression, schema: pa.Schema, columns: frozenset[str]
) -> Expression | None:
    """The strongest condition on these columns that a condition implies; None if there is none."""
    typer = ExpressionTyper(NameScope(schema))

    def about(tree: exp.Expression) -> bool:
        return typer.typed(tree).columns <= columns

    tree = None if condition.raises else _implied(read(condition.text), about)
    if tree is None:
        return None
    weaker = expression_of(tree, typer.typed(tree))
    return weaker if weaker.columns else None


def _implied(
    tree: exp.Expression, about: Callable[[exp.Expression], bool]
) -> exp.Expression | None:
    match tree:
        case exp.Paren(this=exp.Expression() as inner):
            return _implied(inner, about)
        case exp.And():
            parts = [_implied(part, about) for part in operands(tree, exp.And)]
            return _joined(exp.And, [part for part in parts if part])
        case exp.Or():
            parts = [_implied(part, about) for part in operands(tree, exp.Or)]
            return _joined(exp.Or, [part for part in parts if part]) if all(parts) else None
        case _:
            return tree.copy() if about(tree) else None


def _joined(kind: type[exp.And | exp.Or], parts: list[exp.Expression]) -> exp.Expression | None:
    different = list({part.sql(): part for part in parts}.values())
    if len(different) <= 1:
        return different[0] if different else None
    first, *rest = (exp.Paren(this=part) for part in different)
    whole: exp.Expression = first
    for part in rest:
        whole = kind(this=whole, expression=part)
    return whole
