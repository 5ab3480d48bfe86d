"""What a condition says of some of its columns alone.

`(brand = 'x' AND amount > 1) OR (brand = 'y' AND amount > 2)` cannot move to one side of a join,
but where it is true, `brand = 'x' OR brand = 'y'` is. Invariant: what is implied is true of every
row of which the condition is true; of other rows nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from millrace.plan.expressions import Expression, columns_of, expression
from millrace.plan.reader import read
from millrace.plan.walk import Walker


def implied(condition: Expression, schema: pa.Schema, columns: frozenset[str]) -> Expression | None:
    """The most that a condition over a schema says of these columns; None if it is nothing."""
    walker = Walker(columns_of(schema))

    def about(tree: exp.Expression) -> bool:
        return walker.walk(tree).columns <= columns

    tree = None if condition.raises else _implied(read(condition.text), about)
    if tree is None:
        return None
    found = expression(tree, walker.walk(tree))
    return found if found.columns else None


def _implied(
    tree: exp.Expression, about: Callable[[exp.Expression], bool]
) -> exp.Expression | None:
    match tree:
        case exp.Paren(this=exp.Expression() as inner):
            return _implied(inner, about)
        case exp.And(this=exp.Expression() as left, expression=exp.Expression() as right):
            parts = [part for part in (_implied(left, about), _implied(right, about)) if part]
            return _joined(exp.And, parts) if parts else None
        case exp.Or(this=exp.Expression() as left, expression=exp.Expression() as right):
            one, two = _implied(left, about), _implied(right, about)
            return _joined(exp.Or, [one, two]) if one and two else None
        case _:
            return tree.copy() if about(tree) else None


def _joined(kind: type[exp.And | exp.Or], parts: list[exp.Expression]) -> exp.Expression:
    if len(parts) == 1:
        return parts[0]
    one, two = (exp.Paren(this=part) for part in parts)
    return kind(this=one, expression=two)
