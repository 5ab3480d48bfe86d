"""Builds operators of functions that make rows of rows: `mapIn*`, `applyIn*` and `cogroup`.

Keys that cannot be hashed here take the call to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_rows import check_hashable
from millrace.plan.builders.build_udf_calls import has_udf, project_calls, why_on_spark
from millrace.plan.builders.name_resolution import plan_column, resolve
from millrace.plan.builders.operators import expression, reason_of
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.nodes.sort import SortKey
from millrace.plan.nodes.union import Union
from millrace.plan.nodes.user_code.cogrouped_map import MapPairs
from millrace.plan.nodes.user_code.grouped_map import MapRows, RowsByKey
from millrace.plan.nodes.user_code.user_function import GroupPairs, Side, UserFunction
from millrace.plan.relation import Relation, free_columns
from millrace.sql.expressions import Expression, expression_of
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, NotNative, null_of
from millrace.sql.types import from_arrow

_SIDE: Final = "__side"
Groups = tuple[Relation, Sequence[exp.Expression]]
"""Rows, and the keys that they are grouped by."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The visible columns of a relation, and the columns of its keys, which may be among them."""

    node: Node
    values: tuple[str, ...]
    keys: tuple[str, ...]


def map_rows(context: BuildContext, relation: Relation, function: UserFunction) -> Node:
    """The rows that a function makes of all rows of a task."""
    node = relation.output()
    if (why := why_on_spark(context)) is not None:
        assert context.on_spark is not None, "where functions are, Spark is"
        assert context.udfs is not None, "asked for before"
        return context.on_spark([("input_0", node)], context.udfs.on_spark(function, ()), why)
    return MapRows(node, function, tuple(node.schema.names))


def map_groups(context: BuildContext, groups: Groups, function: UserFunction) -> Node:
    """The rows that a function makes of each group. Keys may be calculated."""
    rows = _keyed(context, *groups)
    try:
        _check_called_here(context)
        check_hashable(rows.node, rows.keys)
    except NotNative as refused:
        return _on_spark(context, [groups], function, refused)
    return MapRows(RowsByKey(rows.node, rows.keys), function, rows.values, rows.keys)


def map_pairs(context: BuildContext, left: Groups, right: Groups, function: UserFunction) -> Node:
    """The rows that a function makes of each pair of groups with equal keys.

    Rows of both sides come in one stream, those of a pair one behind another.
    """
    if len(left[1]) != len(right[1]):
        raise ExpressionRefused(
            "the sides of cogroup have different numbers of keys",
            found=f"{len(left[1])} and {len(right[1])}",
            fix="group both by the same keys",
        )
    ours, theirs = _keyed(context, *left), _keyed(context, *right)
    try:
        _check_called_here(context)
        types = []
        for side in (ours, theirs):
            check_hashable(side.node, side.keys)
            types.append([str(side.node.schema.field(key).type) for key in side.keys])
        _check_same(*types)
    except NotNative as refused:
        return _on_spark(context, [left, right], function, refused)
    return _paired(ours, theirs, function)


def _check_called_here(context: BuildContext) -> None:
    if (why := why_on_spark(context)) is not None:
        raise NotNative(why, fix="")


def _check_same(ours: Sequence[str], theirs: Sequence[str]) -> None:
    if ours != theirs:
        found = f"{', '.join(ours)}, and {', '.join(theirs)}"
        raise NotNative("keys of two groups have other types", found=found, fix="")


def _paired(left: KeyedRows, right: KeyedRows, function: UserFunction) -> Node:
    keys = [f"__key_{number}" for number in range(len(left.keys))]
    ours = free_columns(left.values, [*keys, _SIDE])
    theirs = free_columns(right.values, [*keys, _SIDE, *ours])
    pairs = GroupPairs(_SIDE, Side(left.values, tuple(ours)), Side(right.values, tuple(theirs)))
    names = [*keys, *pairs.columns]
    nulls = {**_nulls(left, pairs.left), **_nulls(right, pairs.right)}
    tagged = []
    for number, (rows, side) in enumerate(((left, pairs.left), (right, pairs.right))):
        sources = dict(zip([*keys, *side.columns], [*rows.keys, *side.names], strict=True))
        passed = pass_columns(rows.node.schema, list(sources.values()))
        columns = {**nulls, **{name: c for name, (_, c) in zip(sources, passed, strict=True)}}
        columns[_SIDE] = expression(exp.Literal.number(number), rows.node.schema)
        tagged.append(Project(rows.node, tuple((name, columns[name]) for name in names)))
    by_side = SortKey(_SIDE, descending=False, nulls_first=True)
    both = RowsByKey(Union(tuple(tagged), tuple(names)), tuple(keys), (by_side,))
    return MapPairs(both, function, tuple(keys), pairs)


def _nulls(rows: KeyedRows, side: Side) -> dict[str, Expression]:
    """Nulls of the types of a side's columns, for rows of the other side."""
    kinds = [from_arrow(rows.node.schema.field(name).type) for name in side.names]
    nulls = [expression_of(exp.Null(), null_of(kind)) for kind in kinds]
    return dict(zip(side.columns, nulls, strict=True))


def _keyed(context: BuildContext, relation: Relation, keys: Sequence[exp.Expression]) -> KeyedRows:
    labels = _labels(relation)
    new: list[tuple[str, exp.Expression]] = []
    names: list[str] = []
    for tree in _resolved(relation, keys):
        if isinstance(tree, exp.Column) and tree.name in labels:
            names.append(labels[tree.name])
            continue
        (name,) = free_columns(["__key"], [*labels.values(), *(name for name, _ in new)])
        names.append(name)
        new.append((name, tree))
    if not new:
        return KeyedRows(relation.output(), tuple(labels.values()), tuple(names))
    passed = [(label, plan_column(column)) for column, label in labels.items()]
    node = project_calls(context, relation.node, [*passed, *new])
    return KeyedRows(node, tuple(labels.values()), tuple(names))


def _labels(relation: Relation) -> dict[str, str]:
    """The names that visible columns have in the plan's output, by their own names."""
    columns = [attribute.column for attribute in relation.visible]
    names = relation.labels if relation.has_unique_labels else free_columns(columns)
    return dict(zip(columns, names, strict=True))


def _resolved(relation: Relation, keys: Sequence[exp.Expression]) -> list[exp.Expression]:
    bare = [key.this if isinstance(key, exp.Alias) else key for key in keys]
    return [resolve(key, relation.attributes) for key in bare]


def _on_spark(
    context: BuildContext, sides: Sequence[Groups], function: UserFunction, refused: NotNative
) -> Node:
    """The call as Spark makes it, over the same columns; its keys are written as SQL."""
    if context.on_spark is None or context.udfs is None:
        raise refused
    texts: list[list[str]] = []
    for relation, keys in sides:
        labels = _labels(relation)
        trees = _resolved(relation, keys)
        if any(has_udf(context, tree) for tree in trees):
            raise refused

        def named(node: exp.Expression, labels: dict[str, str] = labels) -> exp.Expression:
            return plan_column(labels[node.name]) if isinstance(node, exp.Column) else node

        texts.append([canonical(tree.transform(named)) for tree in trees])
    inputs = [(f"input_{number}", side.output()) for number, (side, _) in enumerate(sides)]
    return context.on_spark(inputs, context.udfs.on_spark(function, texts), reason_of(refused))
