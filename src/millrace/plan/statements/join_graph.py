"""Joins the tables of FROM by the conditions between them.

Invariant: the rows are those of the cross join of all tables for which all the conditions that were
used are true. No two tables have a column of one name.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_relation_join import join_on
from millrace.plan.builders.operators import all_of
from millrace.plan.relation import Relation
from millrace.plan.statements.query_scope import columns_in
from millrace.sql.parser import operands


def joined(
    context: BuildContext, tables: Sequence[Relation], conditions: list[exp.Expression]
) -> Relation:
    """All tables joined. Conditions that became keys of a join are taken out of the list."""
    groups: list[Relation] = []
    waiting = list(tables)
    while waiting:
        group = waiting.pop(0)
        while (position := _next(group, waiting, conditions)) is not None:
            group = _join(context, group, waiting.pop(position), conditions)
        groups.append(group)
    whole = groups.pop(0)
    while groups:
        position = _next(whole, groups, conditions)
        whole = _join(context, whole, groups.pop(position or 0), conditions)
    order = [attribute for table in tables for attribute in table.attributes]
    return Relation(whole.node, tuple(order))


def split(tree: exp.Expression) -> list[exp.Expression]:
    """The conditions that are joined by AND; what every side of an OR has is one of its own."""
    parts: list[exp.Expression] = []
    for part in operands(tree, exp.And, through_brackets=True):
        bare = _bare(part)
        parts += _factored(bare) if isinstance(bare, exp.Or) else [part]
    return parts


def _factored(tree: exp.Or) -> list[exp.Expression]:
    """`(a AND x) OR (a AND y)` as `a` and `x OR y`."""
    sides = operands(tree, exp.Or, through_brackets=True)
    common = _common(sides)
    if not common:
        return [tree]
    rests = []
    for side in sides:
        rest = [
            part
            for part in operands(_bare(side), exp.And, through_brackets=True)
            if part not in common
        ]
        if not rest:
            return common
        rests.append(exp.Paren(this=all_of(rest)))
    whole: exp.Expression = rests[0]
    for rest_of_side in rests[1:]:
        whole = exp.Or(this=whole, expression=rest_of_side)
    return [*common, whole]


def _bare(tree: exp.Expression) -> exp.Expression:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def _common(sides: Sequence[exp.Expression]) -> list[exp.Expression]:
    """Equalities between two columns that every side has."""
    first, *rest = [operands(_bare(side), exp.And, through_brackets=True) for side in sides]
    return [
        part
        for part in first
        if isinstance(part, exp.EQ)
        and isinstance(part.this, exp.Column)
        and isinstance(part.expression, exp.Column)
        and all(part in other for other in rest)
    ]


def _next(
    group: Relation, waiting: Sequence[Relation], conditions: Sequence[exp.Expression]
) -> int | None:
    """The first table that an equality joins to the group."""
    ours = set(group.node.schema.names)
    for position, table in enumerate(waiting):
        theirs = set(table.node.schema.names)
        if any(_is_key(condition, ours, theirs) for condition in conditions):
            return position
    return None


def _join(
    context: BuildContext, left: Relation, right: Relation, conditions: list[exp.Expression]
) -> Relation:
    ours, theirs = set(left.node.schema.names), set(right.node.schema.names)
    keys = [condition for condition in conditions if _is_key(condition, ours, theirs)]
    for key in keys:
        conditions.remove(key)
    return join_on(
        context, left, right, "inner" if keys else "cross", all_of(keys) if keys else None
    )


def _is_key(condition: exp.Expression, ours: set[str], theirs: set[str]) -> bool:
    """Whether it is an equality of a value of one side with a value of the other."""
    bare = _bare(condition)
    if not isinstance(bare, exp.EQ) or bare.find(exp.Query):
        return False
    first, second = columns_in(bare.this), columns_in(bare.expression)
    if not first or not second:
        return False
    return (first <= ours and second <= theirs) or (first <= theirs and second <= ours)
