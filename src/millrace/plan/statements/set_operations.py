"""UNION, INTERSECT and EXCEPT, of all rows or of distinct ones. Nulls are equal here."""

from __future__ import annotations

from sqlglot import exp

from millrace.plan.builders.build_rows import distinct
from millrace.plan.builders.build_set_rows import row_differences, union_all, union_by_name
from millrace.plan.relation import Relation
from millrace.plan.statements.query_scope import QueryScope
from millrace.sql.typed_sql import NotNative


def set_operation(scope: QueryScope, tree: exp.SetOperation) -> Relation:
    """The rows of a set operation, under the labels of its first side.

    BY NAME, columns match by label, and one that a side lacks is null there, as with `unionByName`.
    """
    if tree.args.get("on") or (tree.args.get("by_name") and not isinstance(tree, exp.Union)):
        raise NotNative("this set operation BY NAME", found=tree.sql("spark"), fix="")
    if tree.args.get("by_name"):
        left, right = scope.query(tree.this), scope.query(tree.expression)
        whole = union_by_name(scope.context, left, right, missing=True)
        return distinct(scope.context, whole) if tree.args.get("distinct") else whole
    if isinstance(tree, exp.Union):
        sides = [scope.query(side) for side in _sides(tree)]
        whole = union_all(scope.context, sides)
        return distinct(scope.context, whole) if tree.args.get("distinct") else whole
    left, right = scope.query(tree.this), scope.query(tree.expression)
    matching = isinstance(tree, exp.Intersect)
    every = not tree.args.get("distinct")
    return row_differences(scope.context, left, right, matching=matching, every=every)


def _sides(tree: exp.Expression) -> list[exp.Expression]:
    """The sides of unions of the same kind, from left to right."""
    sides = [tree.expression]
    below = tree.this
    while (
        isinstance(below, exp.Union)
        and below.args.get("distinct") == tree.args.get("distinct")
        and not any(below.args.get(key) for key in ("order", "limit", "offset", "with_", "by_name"))
    ):
        sides.append(below.expression)
        below = below.this
    return [below, *reversed(sides)]
