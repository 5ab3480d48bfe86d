"""What a dataset is made of, from its sources to its result. Values only.

Invariant: a node knows its schema without anything being run, and two nodes that are equal mean the
same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from millrace.plan.aggregates import AggregateCall, AggregateExpression
from millrace.plan.expressions import Expression
from millrace.plan.types import to_arrow
from millrace.scan.source import Source

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Rows of files."""

    source: Source
    columns: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns that are read."""
        return pa.schema([self.source.schema.field(name) for name in self.columns])


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    """New columns, each calculated from those of the child."""

    child: Node
    columns: tuple[tuple[str, Expression], ...]

    @property
    def schema(self) -> pa.Schema:
        """The new columns."""
        return pa.schema([(name, to_arrow(e.type)) for name, e in self.columns])


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """Rows of the child for which the condition is true."""

    child: Node
    condition: Expression

    @property
    def schema(self) -> pa.Schema:
        """The child's columns."""
        return self.child.schema


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """One row for each distinct value of the keys; with no keys, one row."""

    child: Node
    keys: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]

    @property
    def schema(self) -> pa.Schema:
        """The keys, then the aggregates."""
        fields = [self.child.schema.field(name) for name in self.keys]
        return pa.schema([*fields, *(pa.field(a.name, to_arrow(a.type)) for a in self.aggregates)])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join:
    """Rows of both sides whose keys are equal. Null equals nothing.

    `columns` says for each column of the result where it comes from: the key of either side, or a
    column of one.
    """

    left: Node
    right: Node
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    how: JoinKind
    columns: tuple[JoinColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([pa.field(c.name, self._type_of(c)) for c in self.columns])

    def _type_of(self, column: JoinColumn) -> pa.DataType:
        side = self.right if column.side == "right" else self.left
        return side.schema.field(column.source).type


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of a join's result. Side "key": the left key or, where there is none, the right."""

    name: str
    side: Literal["left", "right", "key"]
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class PartialAggregate:
    """What one task can say of its own rows before the groups come together."""

    child: Node
    keys: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]

    @property
    def schema(self) -> pa.Schema:
        """The keys, then the partial columns of every call."""
        fields = [self.child.schema.field(name) for name in self.keys]
        partials = [
            pa.field(part.name, to_arrow(part.type))
            for prefix, call in numbered_calls(self.aggregates)
            for part in call.partials(prefix)
        ]
        return pa.schema([*fields, *partials])


@dataclass(frozen=True, slots=True, eq=False)
class FinalAggregate:
    """Groups put together from what `PartialAggregate` said."""

    child: Node
    whole: Aggregate

    @property
    def schema(self) -> pa.Schema:
        """As if it had been done in one go."""
        return self.whole.schema


@dataclass(frozen=True, slots=True)
class ByHash:
    """Rows with equal keys in one partition."""

    keys: tuple[str, ...]
    partitions: int

    def __str__(self) -> str:
        return f"hash({', '.join(self.keys)}) into {self.partitions}"


@dataclass(frozen=True, slots=True)
class ToOne:
    """All rows in one partition: gathered by one task, or read whole by every task."""

    broadcast: bool

    def __str__(self) -> str:
        return "broadcast" if self.broadcast else "gather"


Placement = ByHash | ToOne


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Where rows change tasks."""

    child: Node
    placement: Placement
    why: str

    @property
    def schema(self) -> pa.Schema:
        """The child's columns."""
        return self.child.schema


@dataclass(frozen=True, slots=True, eq=False)
class ReadStage:
    """What an earlier stage wrote: this task's partition of it or, from a broadcast, all of it."""

    stage: int
    schema: pa.Schema
    placement: Placement


Node = (
    Scan
    | Project
    | Filter
    | Aggregate
    | Join
    | PartialAggregate
    | FinalAggregate
    | Exchange
    | ReadStage
)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes whose rows a node works on, left to right."""
    match node:
        case Scan() | ReadStage():
            return ()
        case Join(left=left, right=right):
            return (left, right)
        case _:
            return (node.child,)


def numbered_calls(
    aggregates: tuple[AggregateExpression, ...],
) -> list[tuple[str, AggregateCall]]:
    """Every call of every aggregate, with the prefix that names its columns."""
    calls = [call for aggregate in aggregates for call in aggregate.calls]
    return [(f"__call{number}", call) for number, call in enumerate(calls)]
