"""Subqueries in the condition of an outer join: each becomes a column of the side that it names.

Invariant: the sides have the same rows as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.plan.builders.name_resolution import find
from millrace.plan.relation import Relation
from millrace.plan.statements.query_scope import QueryScope
from millrace.plan.statements.subqueries import with_not_inside, with_subqueries
from millrace.sql.typed_sql import ExpressionRefused, NotNative


def as_side_columns(
    scope: QueryScope, sides: Sequence[Relation], tree: exp.Expression
) -> tuple[list[Relation], exp.Expression]:
    """The sides with columns for the subqueries in a condition, and the condition over them."""
    known = list(sides)
    return known, _replaced(scope, known, with_not_inside(tree))


def _replaced(scope: QueryScope, sides: list[Relation], tree: exp.Expression) -> exp.Expression:
    if not tree.find(exp.Query):
        return tree
    if _is_subquery(tree):
        return _as_column(scope, sides, tree)
    out = tree.copy()
    for key, value in list(out.args.items()):
        if isinstance(value, exp.Expression):
            out.set(key, _replaced(scope, sides, value))
        elif isinstance(value, list):
            parts = [
                _replaced(scope, sides, part) if isinstance(part, exp.Expression) else part
                for part in value
            ]
            out.set(key, parts)
    return out


def _is_subquery(tree: exp.Expression) -> bool:
    while isinstance(tree, exp.Not | exp.Paren):
        tree = tree.this
    is_in = isinstance(tree, exp.In) and tree.args.get("query") is not None
    return is_in or isinstance(tree, exp.Exists | exp.Query)


def _as_column(scope: QueryScope, sides: list[Relation], tree: exp.Expression) -> exp.Expression:
    """The expression for a subquery that names columns of one side at most."""
    names = _names_around(tree)
    for at in reversed(range(len(sides))):
        side = sides[at]
        if any(find(column, side.attributes) is None for column in names):
            continue
        try:
            sides[at], (value,) = with_subqueries(scope, side, [tree])
        except ExpressionRefused:
            continue  # It names a column of the other side.
        return value
    raise NotNative("a subquery in ON that names both sides", found=tree.sql("spark"), fix="")


def _names_around(tree: exp.Expression) -> list[exp.Column]:
    """The columns beside the subqueries in an expression."""
    if isinstance(tree, exp.Column):
        return [tree]
    if isinstance(tree, exp.Query):
        return []
    return [column for part in tree.iter_expressions() for column in _names_around(part)]
