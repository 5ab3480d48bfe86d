"""Rows that are looked up in a table, which is the last row of each key of another stream.

The state is the table. A row of the table takes the place of the one with its key; a row that looks
up changes nothing, and comes out once, with the columns of the table or with nulls.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.latest_work import LatestWork
from millrace.pipeline.state.state_operators import TABLE_SIDE, LatestRow, RowLookup
from millrace.pipeline.state.state_rows import changes_schema
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import StateOutput, WorkSettings, emitted, found
from millrace.sql.typed_sql import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPlan:
    """The columns of the rows and of the table, without kinds of changes."""

    keys: tuple[str, ...]
    table_keys: tuple[str, ...]
    rows: pa.Schema
    table: pa.Schema

    @property
    def shown(self) -> list[str]:
        """The columns of the table that come out: its keys are in the row already."""
        return [name for name in self.table.names if name not in self.table_keys]

    @property
    def output(self) -> pa.Schema:
        """The columns that come out."""
        return pa.schema([*self.rows, *(self.table.field(name) for name in self.shown)])

    @property
    def state(self) -> pa.Schema:
        """The columns of the state: the keys first."""
        return pa.schema([self.table.field(name) for name in (*self.table_keys, *self.shown)])

    def query(self) -> str:
        """The rows in `input_0`, each with the row of `input_1` that has its key."""
        listed = [f"a.{quoted(name)}" for name in self.rows.names]
        listed += [f"b.{quoted(name)}" for name in self.shown]
        on = " AND ".join(
            f"a.{quoted(ours)} = b.{quoted(theirs)}"
            for ours, theirs in zip(self.keys, self.table_keys, strict=True)
        )
        return (
            f"SELECT a.{OFFSET}, {', '.join(listed)} FROM input_0 a LEFT JOIN input_1 b "
            f"ON {on} ORDER BY a.{OFFSET}"
        )


class LookupWork:
    """Keeps the table, and looks rows up in it."""

    def __init__(self, plan: LookupPlan, operator: RowLookup, settings: WorkSettings) -> None:
        self._plan = plan
        table = emitted(plan.state) if operator.has_changes else plan.state
        self._table = LatestWork(LatestRow(emit="upserts"), plan.table_keys, table, settings)
        self._answer = pa.schema([pa.field(OFFSET, pa.int64()), *plan.output])
        self._query = settings.engine().prepare(plan.query(), self._answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        if progress.side == TABLE_SIDE:
            changes = self._table.run(rows, kept, progress).changes
            return StateOutput(pa.RecordBatch.from_pylist([], self._answer), changes)
        known = found(rows, self._plan.keys, kept)
        no_changes = pa.RecordBatch.from_pylist([], changes_schema(kept.schema))
        return StateOutput(self._query.run(rows, known), no_changes)

    def close(self) -> None:
        """See `StateWork.close`."""
        self._table.close()
        self._query.close()
