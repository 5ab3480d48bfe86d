"""Writes what a stage does as one query over its inputs.

Inputs are named `input_0`, `input_1`, ... in the order of the stage's leaves. Invariant: the query
gives the columns of the stage's root, by name and in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.plan.aggregates import AggregateExpression
from millrace.plan.expressions import quoted
from millrace.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    FinalAggregate,
    Join,
    JoinColumn,
    Node,
    PartialAggregate,
    Project,
    ReadStage,
    Scan,
    numbered_calls,
)


def query(root: Node) -> str:
    """The query of a tree whose leaves are inputs."""
    steps: list[str] = []
    last = _write(root, steps, _Numbers())
    return f"WITH {', '.join(steps)} SELECT * FROM {last}"


class _Numbers:
    """Counts inputs."""

    def __init__(self) -> None:
        self.inputs = 0

    def next_input(self) -> str:
        self.inputs += 1
        return f"input_{self.inputs - 1}"


def _write(node: Node, steps: list[str], numbers: _Numbers) -> str:
    """Add the steps of a node; returns the name of its rows."""
    match node:
        case Scan() | ReadStage():
            body = f"SELECT {_columns(node.schema.names)} FROM {numbers.next_input()}"
        case Project(child=child, columns=columns):
            listed = ", ".join(f"{e.sql} AS {quoted(name)}" for name, e in columns)
            body = f"SELECT {listed} FROM {_write(child, steps, numbers)}"
        case Filter(child=child, condition=condition):
            body = f"SELECT * FROM {_write(child, steps, numbers)} WHERE {condition.sql}"
        case Aggregate(child=child, keys=keys, aggregates=aggregates):
            rows = _write(child, steps, numbers)
            body = _whole(rows, keys, aggregates)
        case PartialAggregate(child=child, keys=keys, aggregates=aggregates):
            rows = _write(child, steps, numbers)
            parts = [
                f"{part.sql} AS {quoted(part.name)}"
                for prefix, call in numbered_calls(aggregates)
                for part in call.partials(prefix)
            ]
            body = _grouped(rows, keys, parts)
        case FinalAggregate(child=child, whole=whole):
            body = _merged(_write(child, steps, numbers), whole.keys, whole.aggregates)
        case Join():
            left = _write(node.left, steps, numbers)
            body = _join(node, left, _write(node.right, steps, numbers))
        case Exchange():
            raise AssertionError("a stage has no exchange inside")
    name = f"step_{len(steps)}"
    steps.append(f"{name} AS ({body})")
    return name


def _columns(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def _grouped(rows: str, keys: Sequence[str], values: Sequence[str]) -> str:
    listed = ", ".join([*(_key(key) for key in keys), *values])
    group = f" GROUP BY {', '.join(str(n + 1) for n in range(len(keys)))}" if keys else ""
    return f"SELECT {listed} FROM {rows}{group}"


def _key(key: str) -> str:
    return quoted(key)


def _whole(rows: str, keys: Sequence[str], aggregates: tuple[AggregateExpression, ...]) -> str:
    values = [f"{call.whole()} AS {quoted(name)}" for name, call in numbered_calls(aggregates)]
    return _finished(_grouped(rows, keys, values), keys, aggregates)


def _merged(rows: str, keys: Sequence[str], aggregates: tuple[AggregateExpression, ...]) -> str:
    values = [f"{call.merge(name)} AS {quoted(name)}" for name, call in numbered_calls(aggregates)]
    return _finished(_grouped(rows, keys, values), keys, aggregates)


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


def _join(node: Join, left: str, right: str) -> str:
    on = " AND ".join(
        f"l.{quoted(one)} = r.{quoted(two)}"
        for one, two in zip(node.left_keys, node.right_keys, strict=True)
    )
    pairs = dict(zip(node.left_keys, node.right_keys, strict=True))
    listed = ", ".join(_join_column(column, pairs, node.how) for column in node.columns)
    return f"SELECT {listed} FROM {left} l {_JOINS[node.how]} {right} r ON {on}"


def _join_column(column: JoinColumn, pairs: dict[str, str], how: str) -> str:
    source = quoted(column.source)
    match column.side:
        case "right":
            value = f"r.{source}"
        case "key" if how == "right":
            value = f"r.{quoted(pairs[column.source])}"
        case "key" if how == "full":
            value = f"coalesce(l.{source}, r.{quoted(pairs[column.source])})"
        case "left" | "key":
            value = f"l.{source}"
    return f"{value} AS {quoted(column.name)}"
