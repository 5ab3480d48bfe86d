"""Calls of users' functions in expressions: columns that are added to the rows of the child.

Invariant: each row stays as it is and where it is, and gets the results of its own values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.plan.nodes.map_batches import FunctionNode
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.project import Project, pass_columns
from millrace.plan.nodes.user_code.user_function import Batches, FrameBounds, FunctionCall


@dataclass(frozen=True, slots=True, eq=False)
class UdfCalls(FunctionNode):
    """Columns of the child, and behind them the results of calls, row by row."""

    child: Node
    passed: tuple[str, ...]
    calls: tuple[FunctionCall, ...]

    def make_schema(self) -> pa.Schema:
        """The columns that are passed on, and the results."""
        kept = [self.child.schema.field(name) for name in self.passed]
        return pa.schema([*kept, *((call.column, call.function.result) for call in self.calls)])

    @property
    def streams(self) -> bool:
        """A function may get all batches of a task at once."""
        return True

    @property
    def name(self) -> str:
        """The functions' names, for messages."""
        return ", ".join(dict.fromkeys(call.function.name for call in self.calls))

    def function_in(self, time_zone: str) -> Callable[[Any], Any]:
        """Adds the columns to batches."""
        return AddColumns(self.passed, self.calls, self.child.schema, self.schema, time_zone)

    @property
    def output_placement(self) -> Placement | None:
        """Rows stay where they are."""
        return renamed(self.child.output_placement, {name: name for name in self.passed})

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on columns of the child: the calls of a row do not depend on other rows.

        A function that gets whole batches may look at other rows; its filters stay above.
        """
        alone = all(c.function.deterministic and c.function.shape == "row" for c in self.calls)
        moves = alone and columns <= {*self.passed}
        return ({name: name for name in columns} if moves else None,)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns and calls, and what the calls read."""
        passed = tuple(name for name in self.passed if name in needed)
        calls = tuple(call for call in self.calls if call.column in needed)
        if not calls and passed:
            return Project(self.child, pass_columns(self.child.schema, passed)), ({*passed},)
        kept = UdfCalls(self.child, passed, calls or self.calls[:1])
        return kept, ({*passed}.union(*(call.reads for call in kept.calls)),)

    def describe(self) -> str:
        """The calls."""
        return f"call {', '.join(call.describe() for call in self.calls)}"

    def identity(self) -> str:
        """The identity of all calls; raises `Unrecognisable` if one has none."""
        return f"calls {self.passed} {[call.identity() for call in self.calls]}"


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Adds the results of calls to batches. Results may come in other batches than their rows."""

    passed: tuple[str, ...]
    calls: tuple[FunctionCall, ...]
    child: pa.Schema
    schema: pa.Schema
    time_zone: str
    keys: tuple[str, ...] | None = None
    over: FrameBounds | None = None

    def __call__(self, batches: Batches) -> Batches:
        """The batches with all results."""
        caller = self.calls[0].function.caller
        call = caller(self.calls, self.child, self.time_zone, self.keys, self.over)
        waiting: deque[pa.RecordBatch] = deque()

        def read() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                waiting.append(batch.select(self.passed))
                yield batch

        made: list[pa.RecordBatch] = []
        rows = 0
        for results in call(read()):
            made.append(results)
            rows += results.num_rows
            while waiting and rows >= waiting[0].num_rows:
                batch = waiting.popleft()
                rows -= batch.num_rows
                yield self._joined(batch, made)
        assert not waiting, "Spark's worker compares the numbers of rows"

    def _joined(self, batch: pa.RecordBatch, made: list[pa.RecordBatch]) -> pa.RecordBatch:
        """A batch with its results, which are taken from those that were made."""
        whole = pa.Table.from_batches(made)
        head = whole.slice(0, batch.num_rows).combine_chunks()
        made[:] = whole.slice(batch.num_rows).to_batches()
        fields = list(self.schema)[len(self.passed) :]
        columns = [_array(head.column(n)).cast(field.type) for n, field in enumerate(fields)]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
