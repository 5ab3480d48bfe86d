"""Builds aggregates of groups, and pivots: aggregates in a column for each value of a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows, is_aggregate
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import attribute_tree, select
from millrace.plan.builders.build_udf_calls import noted_calls
from millrace.plan.builders.operators import all_of, named
from millrace.plan.builders.reshape.grouping_sets import GroupingSetRows
from millrace.plan.relation import Relation
from millrace.sql.connect_literals import cast_tree
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import from_arrow

_PIVOT: Final = "__pivot"
_FOUND_FIRST: Final = frozenset(
    {"tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "decimal"}
)
"""Types of aggregates for which Spark groups twice: no rows give null, even for `count`."""
_OF_NULLS: Final = frozenset(
    {"count", "sum", "avg", "mean", "min", "max", "collect_list", "collect_set", "array_agg"}
    | {"stddev", "std", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"}
    | {"bool_and", "every", "bool_or", "some", "any", "count_if"}
)
"""Aggregates of one argument that leave nulls out."""


@dataclass(frozen=True, slots=True)
class PivotValue:
    """A value of the pivoted columns, one literal for each, and the name of its column."""

    literals: tuple[exp.Expression, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Pivot:
    """The columns whose values become columns, and those values."""

    columns: tuple[exp.Expression, ...]
    values: tuple[PivotValue, ...]


def aggregated(
    context: BuildContext,
    relation: Relation,
    keys: Sequence[exp.Expression],
    items: Sequence[exp.Expression],
    sets: Sequence[Sequence[exp.Expression]] | None = None,
) -> Relation:
    """The keys and the aggregates of groups; with `sets`, of groups by each set of keys."""
    grouped: GroupedRows | GroupingSetRows
    items = [noted_calls(context, item) for item in items]
    if sets is None:
        grouped = GroupedRows(context, relation, keys)
    else:
        grouped = GroupingSetRows(context, relation, sets)
    rewritten = [grouped.rewrite_item(item) for item in items]
    listed = [grouped.rewrite_item(key) for key in keys]
    return select(context, grouped.relation(), [*listed, *rewritten]).only_visible()


def pivoted(
    context: BuildContext,
    relation: Relation,
    keys: Sequence[exp.Expression],
    pivot: Pivot,
    items: Sequence[exp.Expression],
) -> Relation:
    """Groups by keys, with the aggregates of each value of a column in columns of their own.

    As Spark does it: first groups by the keys and the column, then the value of each group.
    Aggregates of other types than numbers take only the rows of a value, in one step.
    """
    _check_once(pivot.values)
    names = [f"{_PIVOT}{number}" for number in range(len(pivot.columns))]
    columns = [named(tree, name) for tree, name in zip(pivot.columns, names, strict=True)]
    long = aggregated(context, relation, [*keys, *columns], items)
    groups, values = long.visible[: len(keys)], long.visible[len(keys) + len(names) :]
    kinds = {a.column: from_arrow(long.node.schema.field(a.column).type) for a in long.visible}
    pivots = long.visible[len(keys) : len(keys) + len(names)]
    to = [str(kinds[a.column]) for a in pivots]
    wide: list[exp.Expression] = []
    if all(kinds[a.column].name in _FOUND_FIRST for a in values):
        over = [attribute_tree(a) for a in pivots]
        for value in pivot.values:
            for attribute in values:
                call = exp.Anonymous(this="max", expressions=[attribute_tree(attribute)])
                chosen = exp.Filter(this=call, expression=exp.Where(this=_same(over, value, to)))
                wide.append(named(chosen, _label(value, attribute.label, len(values))))
        return aggregated(context, long, [attribute_tree(a) for a in groups], wide)
    for value in pivot.values:
        condition = _same(pivot.columns, value, to)
        for item, attribute in zip(items, values, strict=True):
            bare = item.this if isinstance(item, exp.Alias) else item
            label = _label(value, attribute.label, len(values))
            wide.append(named(_of_rows(bare, condition), label))
    return aggregated(context, relation, keys, wide)


def _check_once(values: Sequence[PivotValue]) -> None:
    seen: list[tuple[exp.Expression, ...]] = []
    for value in values:
        if value.literals in seen:
            raise NotNative("a pivot of one value twice", found=value.label, fix="")
        seen.append(value.literals)


def _same(
    columns: Sequence[exp.Expression], value: PivotValue, kinds: Sequence[str]
) -> exp.Expression:
    """The condition that a row has this value."""
    parts = [
        exp.NullSafeEQ(this=exp.Paren(this=column.copy()), expression=cast_tree(literal, kind))
        for column, literal, kind in zip(columns, value.literals, kinds, strict=True)
    ]
    return all_of(parts)


def _label(value: PivotValue, aggregate: str, aggregates: int) -> str:
    return value.label if aggregates == 1 else f"{value.label}_{aggregate}"


def _of_rows(tree: exp.Expression, condition: exp.Expression) -> exp.Expression:
    """An expression whose aggregates see null in rows without the condition, as in Spark."""
    if not is_aggregate(tree):
        tree = tree.copy()
        for key, value in list(tree.args.items()):
            if isinstance(value, exp.Expression):
                tree.set(key, _of_rows(value, condition))
            elif isinstance(value, list):
                parts = [
                    _of_rows(p, condition) if isinstance(p, exp.Expression) else p for p in value
                ]
                tree.set(key, parts)
        return tree
    name = tree.name.lower() if isinstance(tree, exp.Anonymous) else ""
    if name in ("first", "last", "any_value", "first_value", "last_value"):
        found = _of_nulls(tree, condition)
        return exp.IgnoreNulls(this=found)
    if name not in _OF_NULLS or len(tree.expressions) != 1:
        raise NotNative("this aggregate in a pivot", found=tree.sql("spark"), fix="")
    return _of_nulls(tree, condition)


def _of_nulls(call: exp.Expression, condition: exp.Expression) -> exp.Expression:
    (argument,) = call.expressions[:1]
    distinct = isinstance(argument, exp.Distinct)
    values = argument.expressions if distinct else [argument]
    if len(values) != 1 or len(call.expressions) != 1:
        raise NotNative("this aggregate in a pivot", found=call.sql("spark"), fix="")
    value = exp.Literal.number(1) if isinstance(values[0], exp.Star) else values[0]
    chosen: exp.Expression = exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])
    if distinct:
        chosen = exp.Distinct(expressions=[chosen])
    return exp.Anonymous(this=call.name, expressions=[chosen])
