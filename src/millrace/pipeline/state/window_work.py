"""Aggregates of the rows of a key in windows of time: tumbling and sliding.

The state of a window is that of aggregates, under the key and the window. With `late`, a window
closes when the watermark has reached its end: it comes out, if that is what is asked for, and its
state goes. Rows that are late, or whose windows are closed, are left out and counted.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET, SOURCE_JOURNAL
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import (
    MARK_FIELDS,
    EventTimes,
    SourceProgress,
    as_times,
    times_of,
    without_marks,
)
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_operators import TimeWindows
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    StateOutput,
    WorkSettings,
    found,
    replaced,
    with_kinds,
)
from millrace.pipeline.state.totals_work import CHANGED, TotalsPlan

START, END = "window_start", "window_end"
WINDOW = (START, END)
NO_OFFSET = 0
"""Rows of closed windows stand for no one row; their place in the batch means nothing."""


def window_fields(operator: TimeWindows, schema: pa.Schema) -> tuple[pa.Field, pa.Field]:
    """The columns of a window: it has its start, and not its end."""
    kind = schema.field(operator.time).type
    return pa.field(START, kind), pa.field(END, kind)


def window_plan(
    operator: TimeWindows, keys: tuple[str, ...], schema: pa.Schema, call: str
) -> TotalsPlan:
    """The aggregates of each key and window."""
    fields = [field for field in schema if field.name != SOURCE_JOURNAL]
    whole = pa.schema([*fields, *window_fields(operator, schema)])
    return TotalsPlan.of(operator.totals, [*keys, *WINDOW], whole, call)


def window_state(plan: TotalsPlan) -> pa.Schema:
    """The columns of the state."""
    return pa.schema([*plan.state, *MARK_FIELDS])


class WindowWork:
    """Keeps the aggregates of windows, and closes them."""

    def __init__(self, plan: TotalsPlan, operator: TimeWindows, settings: WorkSettings) -> None:
        self._plan, self._operator, self._state = plan, operator, window_state(plan)
        self._end = plan.schema.field(END)
        self._query = settings.engine().prepare(plan.query(), plan.answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        operator, plan = self._operator, self._plan
        count, rows = rows.num_rows, rows.filter(pc.is_valid(rows.column(operator.time)))
        times, timed = times_of(rows.column(operator.time)), rows.num_rows
        marks: EventTimes | None = None
        watermark: int | None = None
        if operator.late_us is not None:
            marks = EventTimes.of(kept, operator.late_us)
            watermark = marks.watermark
            in_time = marks.on_rows(rows.column(SOURCE_JOURNAL).to_numpy(), times)
            rows, times = rows.filter(pa.array(in_time)), times[in_time]
        windowed, closed_rows = self._windowed(rows, times, watermark)
        skipped = SkippedRows(timed - rows.num_rows, closed_rows, count - timed)
        old = without_marks(found(windowed, plan.keys, kept)).drop_columns(
            [field.name for field in MARK_FIELDS]
        )
        answer = self._query.run(windowed, old)
        if marks is None:
            return self._output(answer, self._replaced(answer, kept), None, skipped)
        watermark = marks.advance(progress)
        closed, changes = self._closed(answer, kept, watermark)
        first = kept.next_number + int(pc.sum(pc.is_valid(changes.column(0))).as_py() or 0)
        changes = pa.concat_batches([changes, marks.changes(self._state, first)])
        return self._output(answer, changes, closed, skipped)

    def _windowed(
        self, rows: pa.RecordBatch, times: np.ndarray, watermark: int | None
    ) -> tuple[pa.RecordBatch, int]:
        """Each row once for each of its windows that is not closed; how many rows have none."""
        size, slide = self._operator.size_us, self._operator.slide_us
        each, last = size // slide, (times // slide) * slide
        starts = (np.repeat(last, each) - np.tile(np.arange(each) * slide, len(times))).astype(
            np.int64
        )
        taken = rows.take(pa.array(np.repeat(np.arange(len(times)), each)))
        batch = taken.drop_columns([SOURCE_JOURNAL])
        closed_rows = 0
        if watermark is not None:
            is_open = starts + size > watermark
            closed_rows = len(times) - int(is_open.reshape(-1, each).any(axis=1).sum())
            batch, starts = batch.filter(pa.array(is_open)), starts[is_open]
        windows = [as_times(starts, self._end.type), as_times(starts + size, self._end.type)]
        schema = pa.schema([*batch.schema, *(self._plan.schema.field(name) for name in WINDOW)])
        made = pa.RecordBatch.from_arrays([*batch.columns, *windows], schema=schema)
        return made, closed_rows

    def _replaced(self, answer: pa.RecordBatch, kept: StateTable) -> pa.RecordBatch:
        rows = answer.select(self._plan.state.names)
        nothing = [pa.nulls(rows.num_rows, field.type) for field in MARK_FIELDS]
        state = pa.RecordBatch.from_arrays([*rows.columns, *nothing], schema=self._state)
        return replaced(state, self._plan.keys, answer.column(KEPT_NUMBER), kept)

    def _closed(
        self, answer: pa.RecordBatch, kept: StateTable, watermark: int | None
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        """The windows that close now, and the changes without them."""
        if watermark is None:
            return None, self._replaced(answer, kept)
        bound = as_times(np.array([watermark], np.int64), self._end.type)[0]
        is_over = pc.less_equal(answer.column(END), bound)
        fresh, open_ = answer.filter(is_over), answer.filter(pc.invert(is_over))
        due = kept.due(END, bound)
        again = pc.is_in(due.column(KEPT_NUMBER), value_set=answer.column(KEPT_NUMBER))
        due = due.filter(pc.invert(again))
        names = [KEPT_NUMBER, *self._plan.values.names]
        closed = pa.concat_batches([due.select(names), fresh.select(names)])
        stored = closed.filter(pc.is_valid(closed.column(KEPT_NUMBER)))
        numbers = stored.column(KEPT_NUMBER).to_numpy()
        gone = removals_of(self._state, numbers, hash_rows(stored, self._plan.keys))
        return closed, pa.concat_batches([self._replaced(open_, kept), gone])

    def _output(
        self,
        answer: pa.RecordBatch,
        changes: pa.RecordBatch,
        closed: pa.RecordBatch | None,
        skipped: SkippedRows,
    ) -> StateOutput:
        emit, names = self._operator.totals.emit, self._plan.values.names
        if self._operator.at_close:
            rows = answer.slice(0, 0) if closed is None else closed
            offsets = pa.array(np.full(rows.num_rows, NO_OFFSET, np.int64))
            values = rows.select(names)
            schema = pa.schema([pa.field(OFFSET, pa.int64()), *values.schema])
            return StateOutput(
                pa.RecordBatch.from_arrays([offsets, *values.columns], schema=schema),
                changes,
                skipped,
            )
        shown = answer.filter(answer.column(CHANGED))
        values = shown.select([OFFSET, *names])
        if emit == "changes":
            values = with_kinds(values, shown.column(KEPT_NUMBER))
        return StateOutput(values, changes, skipped)

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()
