"""Users' functions over groups of rows, and over all rows of a task.

Rows of a group meet in a task, sorted by their keys. Then the function gets them group by group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.plan.nodes.map_batches import FunctionNode
from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement
from millrace.plan.nodes.sort import SortKey
from millrace.plan.nodes.user_code.user_function import Batches, FunctionCall, UserFunction


@dataclass(frozen=True, slots=True, eq=False)
class RowsByKey(UnaryNode):
    """Rows with equal keys together: in one task, one behind another, and those by `then`."""

    child: Node
    keys: tuple[str, ...]
    then: tuple[SortKey, ...] = ()

    @property
    def output_placement(self) -> Placement | None:
        """As the child."""
        return self.child.output_placement

    def requires_shuffle(self) -> bool:
        """Rows with equal keys must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys."""
        return (self.keys,)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on keys, which drop whole groups."""
        return ({name: name for name in columns} if columns <= {*self.keys} else None,)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns, the keys and the order."""
        return self, (needed | {*self.keys, *(key.column for key in self.then)},)

    def describe(self) -> str:
        """The keys, and the order behind them."""
        by = f"rows by {', '.join(self.keys)}" if self.keys else "all rows together"
        return f"{by}, then {', '.join(map(str, self.then))}" if self.then else by


@dataclass(frozen=True, slots=True, eq=False)
class MapRows(FunctionNode):
    """The rows that a function makes of all rows of a task: mapInArrow and mapInPandas.

    With `keys` it is called for each group: applyInArrow and applyInPandas. It sees the columns
    `values`.
    """

    child: Node
    function: UserFunction
    values: tuple[str, ...]
    keys: tuple[str, ...] | None = None

    def make_schema(self) -> pa.Schema:
        """The columns that the function returns."""
        return pa.schema(list(self.function.result))

    @property
    def streams(self) -> bool:
        """The function gets all batches."""
        return True

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return self.function.name

    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """What calls the function over batches."""
        call = FunctionCall(column="", function=self.function, arguments=self.values)
        return CallOverRows(call, self.keys, self.child.schema, self.schema, time_zone)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """All columns: only the function knows which it needs."""
        del needed
        return self, ({*self.values, *(self.keys or ())},)

    def describe(self) -> str:
        """The function, its groups and its columns."""
        groups = "" if self.keys is None else f" for each {', '.join(self.keys) or 'group'}"
        return f"call {self.name}{groups} to columns {', '.join(self.schema.names)}"

    def identity(self) -> str:
        """The identity of the function."""
        return f"rows of {self.function.identity()} over {self.values} by {self.keys}"


@dataclass(frozen=True, slots=True, eq=False)
class GroupedCalls(FunctionNode):
    """A row for each group: its keys, and the results of functions over its columns."""

    child: Node
    keys: tuple[str, ...]
    calls: tuple[FunctionCall, ...]

    def make_schema(self) -> pa.Schema:
        """The keys and the results."""
        keys = [self.child.schema.field(key) for key in self.keys]
        return pa.schema([*keys, *((call.column, call.function.result) for call in self.calls)])

    @property
    def streams(self) -> bool:
        """The functions get the rows of a group at once."""
        return True

    @property
    def name(self) -> str:
        """The functions' names, for messages."""
        return ", ".join(dict.fromkeys(call.function.name for call in self.calls))

    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """What calls the functions for each group."""
        return CallOverGroups(self.keys, self.calls, self.child.schema, self.schema, time_zone)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The keys, and what the needed calls read; at least one call."""
        calls = tuple(call for call in self.calls if call.column in needed) or self.calls[:1]
        kept = GroupedCalls(self.child, self.keys, calls)
        return kept, ({*self.keys}.union(*(call.reads for call in calls)),)

    def describe(self) -> str:
        """The calls and the keys."""
        listed = ", ".join(call.describe() for call in self.calls)
        return f"call {listed} for each {', '.join(self.keys) or 'group'}"

    def identity(self) -> str:
        """The identity of all calls."""
        return f"groups by {self.keys} {[call.identity() for call in self.calls]}"


@dataclass(frozen=True, slots=True)
class CallOverRows:
    """Calls a function over all rows of a task, or over each group of them."""

    call: FunctionCall
    keys: tuple[str, ...] | None
    child: pa.Schema
    schema: pa.Schema
    time_zone: str

    def __call__(self, batches: Batches) -> Batches:
        """The rows that the function returns."""
        calls = self.call.function.caller([self.call], self.child, self.time_zone, self.keys)
        for made in calls(batches):
            yield made.cast(self.schema)


@dataclass(frozen=True, slots=True)
class CallOverGroups:
    """Calls functions for each group of rows, and puts the keys before their results."""

    keys: tuple[str, ...]
    calls: tuple[FunctionCall, ...]
    child: pa.Schema
    schema: pa.Schema
    time_zone: str

    def __call__(self, batches: Batches) -> Batches:
        """A row for each group."""
        caller = self.calls[0].function.caller
        for made in caller(self.calls, self.child, self.time_zone, self.keys)(batches):
            yield made.rename_columns(self.schema.names).cast(self.schema)
