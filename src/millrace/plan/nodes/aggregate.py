"""Aggregates by group: in one step, or in two steps with an exchange between them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.row_makers.expand import sets_text
from millrace.sql.aggregates.aggregate_calls import AggregateCall
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression
from millrace.sql.types import to_arrow


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(UnaryNode):
    """One row for each distinct value of the keys; with no keys, one row."""

    child: Node
    keys: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]

    def make_schema(self) -> pa.Schema:
        """The keys, then the aggregates."""
        below = self.child.schema
        fields = [below.field(name) for name in self.keys]
        return pa.schema([*fields, *(pa.field(a.name, to_arrow(a.type)) for a in self.aggregates)])

    @property
    def output_placement(self) -> Placement | None:
        """As the child, if its keys are among the keys."""
        return renamed(self.child.output_placement, {key: key for key in self.keys})

    @property
    def mergeable(self) -> bool:
        """Whether a task can aggregate its own rows before the exchange."""
        return all(call.mergeable for aggregate in self.aggregates for call in aggregate.calls)

    @property
    def adds_up(self) -> bool:
        """Whether large groups can be aggregated from the partial aggregates of smaller ones."""
        return all(call.adds_up for aggregate in self.aggregates for call in aggregate.calls)

    def requires_shuffle(self) -> bool:
        """Rows of a group must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys."""
        return (self.keys,)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on keys, which drop whole groups."""
        whole = self.keys and columns <= set(self.keys)
        return ({name: name for name in columns} if whole else None,)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The keys, and the columns of the aggregates."""
        del needed
        return self, ({*self.keys}.union(*(aggregate.columns for aggregate in self.aggregates)),)

    def describe(self) -> str:
        """Keys and aggregates."""
        return _grouped("aggregate", self.keys, self.aggregates)


@dataclass(frozen=True, slots=True, eq=False)
class PartialAggregate(UnaryNode):
    """The partial aggregates of the rows of one task, before the exchange."""

    child: Node
    keys: tuple[str, ...]
    aggregates: tuple[AggregateExpression, ...]

    def make_schema(self) -> pa.Schema:
        """The keys, then the partial columns of every call."""
        below = self.child.schema
        fields = [below.field(name) for name in self.keys]
        partials = [
            pa.field(part.name, to_arrow(part.type))
            for prefix, call in numbered_calls(self.aggregates)
            for part in call.partials(prefix)
        ]
        return pa.schema([*fields, *partials])

    @property
    def output_placement(self) -> Placement | None:
        """As the child, if its keys are among the keys."""
        return renamed(self.child.output_placement, {key: key for key in self.keys})

    def describe(self) -> str:
        """Keys and aggregates."""
        return _grouped("partial aggregate", self.keys, self.aggregates)


@dataclass(frozen=True, slots=True, eq=False)
class GroupingSetPartials(UnaryNode):
    """Partial aggregates of several sets of keys, from those of the set that has all keys.

    `sets` says for each set which of the keys it has. The column `number` has the set's position.
    """

    child: PartialAggregate
    sets: tuple[tuple[bool, ...], ...]
    number: str

    def make_schema(self) -> pa.Schema:
        """The keys, the number of the set, then the partial columns."""
        below = list(self.child.schema)
        keys = len(self.child.keys)
        return pa.schema([*below[:keys], pa.field(self.number, pa.int32()), *below[keys:]])

    def describe(self) -> str:
        """The sets of keys."""
        return f"partial aggregates {sets_text(self.child.keys, self.sets)}"


@dataclass(frozen=True, slots=True, eq=False)
class FinalAggregate(UnaryNode):
    """The aggregates, merged from the columns of `PartialAggregate`."""

    child: Node
    whole: Aggregate

    def make_schema(self) -> pa.Schema:
        """The columns of the aggregate in one step."""
        return self.whole.schema

    @property
    def output_placement(self) -> Placement | None:
        """As the child: keys keep their names."""
        return renamed(self.child.output_placement, {key: key for key in self.whole.keys})

    def describe(self) -> str:
        """Keys and aggregates."""
        return _grouped("final aggregate", self.whole.keys, self.whole.aggregates)


def numbered_calls(
    aggregates: tuple[AggregateExpression, ...],
) -> list[tuple[str, AggregateCall]]:
    """Every call of every aggregate, with the prefix that names its columns."""
    calls = [call for aggregate in aggregates for call in aggregate.calls]
    return [(f"__call{number}", call) for number, call in enumerate(calls)]


def _grouped(what: str, keys: tuple[str, ...], aggregates: tuple[AggregateExpression, ...]) -> str:
    by = f" by {', '.join(keys)}" if keys else ""
    texts = [aggregate.text for aggregate in aggregates]
    return f"{what}{by}: {', '.join(texts)}" if texts else f"{what}{by}"
