"""Users' functions over windows: for each row, a value of the rows in its frame.

Rows come sorted by their partition and their place in it. The columns of `bounds` have the places
where a row's frame begins and ends; without them a frame is the whole partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from millrace.plan.nodes.map_batches import FunctionNode
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.nodes.user_code.udf_calls import AddColumns
from millrace.plan.nodes.user_code.user_function import FrameBounds, FunctionCall


@dataclass(frozen=True, slots=True, eq=False)
class WindowCalls(FunctionNode):
    """Columns of the child, and behind them a value of each row's window."""

    child: Node
    passed: tuple[str, ...]
    keys: tuple[str, ...]
    call: FunctionCall
    bounds: FrameBounds

    def make_schema(self) -> pa.Schema:
        """The columns that are passed on, and the value."""
        kept = [self.child.schema.field(name) for name in self.passed]
        return pa.schema([*kept, (self.call.column, self.call.function.result)])

    @property
    def streams(self) -> bool:
        """The function gets the rows of a frame at once."""
        return True

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return self.call.function.name

    @property
    def output_placement(self) -> Placement | None:
        """Rows stay where they are."""
        return renamed(self.child.output_placement, {name: name for name in self.passed})

    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """Adds the column to batches."""
        child, calls = self.child.schema, (self.call,)
        return AddColumns(self.passed, calls, child, self.schema, time_zone, self.keys, self.bounds)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns, and what the call reads."""
        passed = tuple(name for name in self.passed if name in needed)
        if self.call.column not in needed and passed:
            return Project(self.child, pass_columns(self.child.schema, passed)), ({*passed},)
        read = {*passed, *self.keys, *self.call.reads, *self.bounds.columns}
        return replace(self, passed=passed), (read,)

    def describe(self) -> str:
        """The call and its partitions."""
        frame = " over frames" if self.bounds.columns else ""
        by = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"call {self.call.describe()}{frame} for each window{by}"

    def identity(self) -> str:
        """The identity of the call and of its windows."""
        return f"windows {self.passed} {self.call.identity()} by {self.keys} in {self.bounds}"
