"""Builds unions, and rows that two relations share. Nulls are equal here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import attribute_tree, select
from millrace.plan.builders.build_windows import with_window_columns
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import keep, named, project
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.nodes.union import Union
from millrace.plan.nodes.user_code.udf_calls import UdfCalls
from millrace.plan.relation import Attribute, Relation, free_columns, picked_columns
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.sql.types import common_with_text, from_arrow

_SIDE = "__side"
_NUMBER = "__number"
_BASE, _LEFT = "__base", "__left"


def union_all(context: BuildContext, sides: Sequence[Relation]) -> Relation:
    """All rows of all sides; columns match by position and get the type that holds both."""
    first = sides[0]
    names = free_columns(first.labels)
    for side in sides[1:]:
        if len(side.visible) != len(names):
            raise ExpressionRefused(
                "the sides of a set operation have different numbers of columns",
                found=f"{len(names)} and {len(side.visible)}",
                fix="select the same columns on both sides",
            )
    kinds = [_kind([side.schema.field(at).type for side in sides]) for at in range(len(names))]
    inputs = tuple(_as(context, side, names, kinds) for side in sides)
    attributes = tuple(
        Attribute(label, name) for label, name in zip(first.labels, names, strict=True)
    )
    return Relation(Union(inputs, tuple(names)), attributes)


def union_by_name(
    context: BuildContext, left: Relation, right: Relation, *, missing: bool
) -> Relation:
    """All rows of both sides; columns match by label. With `missing`, others are null."""
    for side in (left, right):
        if not side.has_unique_labels:
            raise ExpressionRefused(
                "a union by name has two columns of one name",
                found=", ".join(side.labels),
                fix="give one of them another name",
            )
    ours = {folded(label): label for label in left.labels}
    theirs = {folded(label): label for label in right.labels}
    more = [label for name, label in theirs.items() if name not in ours]
    lacking = [label for name, label in ours.items() if name not in theirs]
    if (lacking or more) and not missing:
        raise ExpressionRefused(
            "both sides of a union by name have not the same columns",
            found=f"{', '.join([*lacking, *more])} on one side alone",
            fix="give allowMissingColumns=True, or select the same columns",
        )
    labels = [*left.labels, *more]
    return union_all(context, [_of_labels(context, side, labels) for side in (left, right)])


def _of_labels(context: BuildContext, side: Relation, labels: Sequence[str]) -> Relation:
    """The columns of these labels, in their order; those that it lacks are null."""
    known = {folded(a.label): a for a in side.visible}
    trees = [
        named(exp.Null() if attribute is None else attribute_tree(attribute), label)
        for label in labels
        for attribute in [known.get(folded(label))]
    ]
    return select(context, side, trees).only_visible()


def _kind(kinds: Sequence[pa.DataType]) -> str | None:
    """The type that holds the values of all sides; None if all have the same."""
    known = [from_arrow(kind) for kind in kinds]
    whole = known[0]
    for kind in known[1:]:
        wider = common_with_text(whole, kind)
        if wider is None:
            raise NotNative(
                "a set operation of types that differ", found=f"{whole}, {kind}", fix=""
            )
        whole = wider
    return None if all(kind == whole for kind in known) else str(whole)


def _as(
    context: BuildContext, side: Relation, names: Sequence[str], kinds: Sequence[str | None]
) -> Node:
    columns: list[tuple[str, exp.Expression]] = []
    for name, kind, attribute in zip(names, kinds, side.visible, strict=True):
        column: exp.Expression = plan_column(attribute.column)
        if kind is not None:
            column = exp.Cast(this=column, to=exp.DataType.build(kind, dialect="spark"))
        columns.append((name, column))
    return project(context, side.node, columns)


def row_differences(
    context: BuildContext, left: Relation, right: Relation, *, matching: bool, every: bool
) -> Relation:
    """Rows of the left side that are, or are not, on the right side.

    Both sides are one set of rows with a number for the side, in groups of equal rows. With ALL,
    equal rows of a side are numbered, which makes them different.
    """
    sides = []
    for number, side in enumerate((left, right)):
        node = side.node
        columns: list[tuple[str, exp.Expression]] = [
            (name, plan_column(a.column))
            for name, a in zip(free_columns(side.labels), side.visible, strict=True)
        ]
        columns.append((_SIDE, exp.Literal.number(number)))
        if every:
            keys = [plan_column(a.column) for a in side.visible]
            call = exp.Window(
                this=exp.Anonymous(this="row_number"),
                partition_by=keys,
                order=exp.Order(expressions=[exp.Ordered(this=keys[0].copy(), nulls_first=True)]),
                over="OVER",
            )
            node, (numbered,) = with_window_columns(context, node, [call])
            columns.append((_NUMBER, numbered))
        node = project(context, node, columns)
        labels = [*side.labels, *(name for name, _ in columns[len(side.visible) :])]
        attributes = [
            Attribute(label, name) for label, (name, _) in zip(labels, columns, strict=True)
        ]
        sides.append(Relation(node, tuple(attributes)))
    whole = union_all(context, sides)
    side_column = whole.visible[len(left.visible)].column
    kept = [a for a in whole.visible if a.column != side_column]
    grouped = GroupedRows(context, whole, [plan_column(a.column) for a in kept])
    least = grouped.rewrite(exp.Anonymous(this="min", expressions=[plan_column(side_column)]))
    most = grouped.rewrite(exp.Anonymous(this="max", expressions=[plan_column(side_column)]))
    wanted = exp.And(
        this=exp.EQ(this=least, expression=exp.Literal.number(0)),
        expression=exp.EQ(this=most, expression=exp.Literal.number(1 if matching else 0)),
    )
    node = keep(context, grouped.relation().node, wanted)
    return Relation(node, tuple(kept[: len(left.visible)]))


def zipped(left: Relation, right: Relation) -> Relation:
    """The columns of both sides, row by row: both only add columns to one plan, or choose some."""
    base, ours, theirs = _common_plan(left.node, right.node)
    below = base.schema.names
    kept = [f"{_BASE}{at}" for at in range(len(below))]
    first = _over(base, ours, list(zip(kept, below, strict=True)))
    mine = [f"{_LEFT}{at}" for at in range(len(left.visible))]
    sources = [attribute.column for attribute in left.visible]
    middle = picked_columns(
        first, [*zip(below, kept, strict=True), *zip(mine, sources, strict=True)]
    )
    whole = _over(middle, theirs, [(name, name) for name in mine])
    attributes = (
        *(replace(a, column=name) for a, name in zip(left.visible, mine, strict=True)),
        *right.visible,
    )
    return Relation(whole, attributes)


_RowByRow = Project | UdfCalls
"""Operators that keep each row where it is."""


def _common_plan(left: Node, right: Node) -> tuple[Node, list[_RowByRow], list[_RowByRow]]:
    """The highest plan that both sides have, and the operators of each above it, lowest first."""
    ours, theirs = _row_by_row(left), _row_by_row(right)
    for depth, node in enumerate(theirs):
        if node in ours:  # The same plan: plans are equal to nothing else.
            at = ours.index(node)
            return node, _operators(ours[:at]), _operators(theirs[:depth])
    one, other = ours[-1], theirs[-1]
    if (
        isinstance(one, Aggregate)
        and isinstance(other, Aggregate)
        and one.child is other.child
        and one.keys == other.keys
    ):
        both = [(one, f"{_BASE}_first"), (other, f"{_BASE}_second")]
        calls = [
            replace(a, name=f"{mark}_{a.name}") for side, mark in both for a in side.aggregates
        ]
        groups = Aggregate(one.child, one.keys, tuple(calls))
        sides = [_of_groups(groups, side, mark) for side, mark in both]
        return (
            groups,
            [sides[0], *_operators(ours[:-1])],
            [sides[1], *_operators(theirs[:-1])],
        )
    raise ExpressionRefused(
        "rows of the two datasets have no common order",
        found="datasets that are not chosen columns of one dataset",
        fix="make both with select or withColumn of one dataset, or of its durable()",
    )


def _row_by_row(node: Node) -> list[Node]:
    """Operators that keep each row where it is, from the highest on, and the plan below them."""
    nodes = [node]
    while isinstance(node, _RowByRow):
        node = node.child
        nodes.append(node)
    return nodes


def _operators(nodes: Sequence[Node]) -> list[_RowByRow]:
    return [node for node in reversed(nodes) if isinstance(node, _RowByRow)]


def _of_groups(groups: Aggregate, side: Aggregate, mark: str) -> Project:
    """The groups of a side, under its own names."""
    names = [*side.keys, *(a.name for a in side.aggregates)]
    sources = [*side.keys, *(f"{mark}_{a.name}" for a in side.aggregates)]
    passed = pass_columns(groups.schema, sources)
    return Project(groups, tuple((n, e) for n, (_, e) in zip(names, passed, strict=True)))


def _over(node: Node, operators: Sequence[_RowByRow], kept: Sequence[tuple[str, str]]) -> Node:
    """Operators over another plan, with some of its columns passed through under new names."""
    names = node.schema.names
    more = [(name, source) for name, source in kept if name not in names]
    node = picked_columns(node, [*zip(names, names, strict=True), *more])
    passed = tuple(name for name, _ in kept)
    for operator in operators:
        if isinstance(operator, UdfCalls):
            node = UdfCalls(node, (*operator.passed, *passed), operator.calls)
        else:
            new = pass_columns(node.schema, passed)
            node = Project(node, (*operator.columns, *new))
    return node
