"""Writes the operators of a stage as one query over its inputs.

Inputs are named `input_0`, `input_1`, ... in the order of the stage's leaves. Every operator has a
function, here or in a module beside this one, that writes it over the names of its children's
rows. Invariant: the query gives the columns of the stage's root, by name and in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from itertools import count

import pyarrow as pa
from pyarrow.types import is_floating

from millrace.engine.asof_sql import asof_query
from millrace.engine.grouping_sets_sql import grouping_sets_query
from millrace.engine.interval_sql import interval_query
from millrace.engine.row_makers_sql import expand_query, generate_query
from millrace.engine.window_sql import drop_duplicates_query, window_query
from millrace.plan.nodes.aggregate import (
    Aggregate,
    FinalAggregate,
    GroupingSetPartials,
    PartialAggregate,
    numbered_calls,
)
from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import Join, JoinColumn
from millrace.plan.nodes.limit import Limit
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.ordered_joins import AsOfJoin, IntervalJoin
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.nodes.row_makers.generate import Generate
from millrace.plan.nodes.shared_parts.made_once import MadeOnce
from millrace.plan.nodes.sort import Sort
from millrace.plan.nodes.union import Union
from millrace.plan.nodes.user_code.grouped_map import RowsByKey
from millrace.plan.nodes.window import Window
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression
from millrace.sql.typed_sql import quoted


def query(root: Node) -> str:
    """The query of a tree whose leaves are inputs."""
    steps: list[str] = []
    last = _write(root, steps, count(), {})
    return f"WITH {', '.join(steps)} SELECT * FROM {last}"


def _write(node: Node, steps: list[str], inputs: Iterator[int], shared: dict[int, str]) -> str:
    """Add the steps of a node; returns the name of its rows. Shared rows are one step."""
    if id(node) in shared:
        return shared[id(node)]
    if node.children:
        rows = [_write(child, steps, inputs, shared) for child in node.children]
        body = body_of(node, *rows)
    else:
        body = f"SELECT {columns(node.schema.names)} FROM input_{next(inputs)}"
    name = f"step_{len(steps)}"
    if isinstance(node, MadeOnce):
        shared[id(node)] = name
        steps.append(f"{name} AS MATERIALIZED ({body})")
    else:
        steps.append(f"{name} AS ({body})")
    return name


@singledispatch
def body_of(node: Node, *rows: str) -> str:
    """The query of one operator over the names of its children's rows."""
    raise AssertionError(f"{type(node).__name__} over {rows} is not part of a stage")


body_of.register(Window, window_query)
body_of.register(DropDuplicates, drop_duplicates_query)
body_of.register(AsOfJoin, asof_query)
body_of.register(IntervalJoin, interval_query)
body_of.register(Expand, expand_query)
body_of.register(GroupingSetPartials, grouping_sets_query)
body_of.register(Generate, generate_query)


def columns(names: Sequence[str]) -> str:
    """Columns, listed."""
    return ", ".join(quoted(name) for name in names)


@body_of.register
def _made_once(node: MadeOnce, rows: str) -> str:
    return f"SELECT {columns(node.schema.names)} FROM {rows}"


@body_of.register
def _project(node: Project, rows: str) -> str:
    listed = ", ".join(f"{e.sql} AS {quoted(name)}" for name, e in node.columns)
    return f"SELECT {listed} FROM {rows}"


@body_of.register
def _filter(node: Filter, rows: str) -> str:
    return f"SELECT * FROM {rows} WHERE {node.condition.sql}"


@body_of.register
def _limit(node: Limit, rows: str) -> str:
    return f"SELECT * FROM {rows}{_part(node)}"


@body_of.register
def _sort(node: Sort, rows: str) -> str:
    order = ", ".join(key.sql() for key in node.order)
    return f"SELECT * FROM {rows} ORDER BY {order}{_part(node)}"


def _part(node: Limit | Sort) -> str:
    first = "" if node.rows is None else f" LIMIT {node.rows}"
    return f"{first} OFFSET {node.skipped}" if node.skipped else first


@body_of.register
def _rows_by_key(node: RowsByKey, rows: str) -> str:
    keys = [f"{quoted(key)} NULLS FIRST" for key in node.keys]
    keys += [key.sql() for key in node.then]
    return f"SELECT * FROM {rows}{' ORDER BY ' + ', '.join(keys) if keys else ''}"


@body_of.register
def _union(node: Union, *rows: str) -> str:
    return " UNION ALL ".join(f"SELECT {columns(node.columns)} FROM {side}" for side in rows)


@body_of.register
def _aggregate(node: Aggregate, rows: str) -> str:
    calls = numbered_calls(node.aggregates)
    values = [f"{call.whole()} AS {quoted(name)}" for name, call in calls]
    return _finished(_grouped(node, rows, node.keys, values), node.keys, node.aggregates)


@body_of.register
def _partial(node: PartialAggregate, rows: str) -> str:
    parts = [
        f"{part.sql} AS {quoted(part.name)}"
        for prefix, call in numbered_calls(node.aggregates)
        for part in call.partials(prefix)
    ]
    return _grouped(node, rows, node.keys, parts)


@body_of.register
def _final(node: FinalAggregate, rows: str) -> str:
    keys, aggregates = node.whole.keys, node.whole.aggregates
    calls = numbered_calls(aggregates)
    values = [f"{call.merge(name)} AS {quoted(name)}" for name, call in calls]
    return _finished(_grouped(node, rows, keys, values), keys, aggregates)


def _grouped(node: Node, rows: str, keys: Sequence[str], values: Sequence[str]) -> str:
    listed = ", ".join([*(_key(key, node.schema.field(key).type) for key in keys), *values])
    group = f" GROUP BY {', '.join(str(n + 1) for n in range(len(keys)))}" if keys else ""
    return f"SELECT {listed} FROM {rows}{group}"


def _key(name: str, kind: pa.DataType) -> str:
    """A key as its group shows it: 0.0 for both 0.0 and -0.0, as in Spark."""
    key = quoted(name)
    return f"CASE WHEN {key} = 0 THEN 0 ELSE {key} END AS {key}" if is_floating(kind) else key


def _finished(
    grouped: str, keys: Sequence[str], aggregates: tuple[AggregateExpression, ...]
) -> str:
    names = [quoted(name) for name, _ in numbered_calls(aggregates)]
    listed = [quoted(key) for key in keys]
    at = 0
    for aggregate in aggregates:
        values = names[at : at + len(aggregate.calls)]
        listed.append(f"{aggregate.finish(values)} AS {quoted(aggregate.name)}")
        at += len(aggregate.calls)
    return f"SELECT {', '.join(listed)} FROM ({grouped})"


_JOINS = {
    "inner": "INNER JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "SEMI JOIN",
    "anti": "ANTI JOIN",
}


@body_of.register
def _join(node: Join, left: str, right: str) -> str:
    new = dict(node.right_names)
    names = {name: new.get(name, name) for name in node.right.schema.names}
    renamed = ", ".join(f"{quoted(old)} AS {quoted(new)}" for old, new in names.items())
    pairs = {
        left_key: names[right_key]
        for left_key, right_key in zip(node.left_keys, node.right_keys, strict=True)
    }
    on = [f"l.{quoted(left_key)} = r.{quoted(right_key)}" for left_key, right_key in pairs.items()]
    on += [f"({node.condition.sql})"] if node.condition is not None else []
    listed = ", ".join(_join_column(column, pairs, names, node.how) for column in node.columns)
    both = f"{left} l {_JOINS.get(node.how, 'INNER JOIN')} (SELECT {renamed} FROM {right}) r"
    return f"SELECT {listed} FROM {both} ON {' AND '.join(on) or 'true'}"


def _join_column(column: JoinColumn, pairs: dict[str, str], names: dict[str, str], how: str) -> str:
    source = quoted(column.source)
    match column.side:
        case "right":
            value = f"r.{quoted(names[column.source])}"
        case "key" if how == "right":
            value = f"r.{quoted(pairs[column.source])}"
        case "key" if how == "full":
            value = f"coalesce(l.{source}, r.{quoted(pairs[column.source])})"
        case "left" | "key":
            value = f"l.{source}"
    return f"{value} AS {quoted(column.name)}"
