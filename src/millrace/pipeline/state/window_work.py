"""Aggregates of the rows of a key in windows of time: tumbling and sliding.

The state of a window is that of aggregates, under the key and the window. With `late`, a window
closes when the watermark has reached its end: it comes out, if that is what is asked for, and its
state goes. Rows that are late, or whose windows are closed, are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET, SOURCE_JOURNAL
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import (
    END_MARK,
    MARK_FIELDS,
    EventTimes,
    SourceProgress,
    Times,
    as_times,
    times_of,
    without_ends,
    without_marks,
)
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_operators import TimeWindows
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    RowChanges,
    StateOutput,
    WorkSettings,
    found,
    replaced,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsInWindows:
    """The rows of a batch, each once for each of its windows, and what the state has of these."""

    rows: pa.RecordBatch
    closed: int
    """How many rows of the batch have no window that is open."""
    old: pa.RecordBatch
    """The rows of the state that may be of these windows."""
    before: pa.RecordBatch
    """The same as they are in the state, where windows become larger."""


class WindowWork:
    """Keeps the aggregates of windows of fixed length, and closes them."""

    def __init__(self, plan: TotalsPlan, operator: TimeWindows, settings: WorkSettings) -> None:
        self._plan, self._operator, self._state = plan, operator, window_state(plan)
        self._end, self._by = plan.schema.field(END), plan.keys
        self._query = settings.engine().prepare(plan.query(), plan.answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        operator = self._operator
        rows, has_ended = without_ends(rows)
        count, rows = rows.num_rows, rows.filter(pc.is_valid(rows.column(operator.time)))
        times, timed = times_of(rows.column(operator.time)), rows.num_rows
        marks: EventTimes | None = None
        watermark: int | None = None
        if operator.late_us is not None:
            marks = EventTimes.of(kept, operator.late_us)
            watermark = marks.watermark
            in_time = marks.on_rows(rows.column(SOURCE_JOURNAL).to_numpy(), times)
            rows, times = rows.filter(pa.array(in_time)), times[in_time]
        cut = self._in_windows(rows.drop_columns([SOURCE_JOURNAL]), times, watermark, kept)
        skipped = SkippedRows(timed - rows.num_rows, cut.closed, count - timed)
        answer = self._query.run(cut.rows, cut.old)
        if marks is None:
            changes = pa.concat_batches([self._replaced(answer, kept), *self._merged(answer, cut)])
            return self._output(answer, changes, None, skipped, cut)
        watermark = marks.finish() if has_ended else marks.advance(progress)
        closed, changes = self._closed(answer, kept, watermark, cut)
        first = kept.next_number + int(pc.sum(pc.is_valid(changes.column(0))).as_py() or 0)
        changes = pa.concat_batches(
            [changes, *self._merged(answer, cut), marks.changes(self._state, first)]
        )
        return self._output(answer, changes, closed, skipped, cut)

    def _known(self, rows: pa.RecordBatch, kept: StateTable) -> pa.RecordBatch:
        """The rows of the state that may be of the keys of some rows."""
        known = without_marks(found(rows, self._by, kept))
        return known.drop_columns([field.name for field in MARK_FIELDS])

    def _in_windows(
        self, rows: pa.RecordBatch, times: Times, watermark: int | None, kept: StateTable
    ) -> RowsInWindows:
        """Each row once for each of its windows that is not closed."""
        size, slide = self._operator.size_us, self._operator.slide_us
        assert slide is not None, "sessions are cut in another way"
        each, last = size // slide, (times // slide) * slide
        starts = (np.repeat(last, each) - np.tile(np.arange(each) * slide, len(times))).astype(
            np.int64
        )
        batch = rows.take(pa.array(np.repeat(np.arange(len(times)), each)))
        closed_rows = 0
        if watermark is not None:
            is_open = starts + size > watermark
            closed_rows = len(times) - int(is_open.reshape(-1, each).any(axis=1).sum())
            batch, starts = batch.filter(pa.array(is_open)), starts[is_open]
        made = self._with_window(batch, starts, starts + size)
        old = self._known(made, kept)
        return RowsInWindows(rows=made, closed=closed_rows, old=old, before=old)

    def _with_window(self, rows: pa.RecordBatch, starts: Times, ends: Times) -> pa.RecordBatch:
        windows = [as_times(starts, self._end.type), as_times(ends, self._end.type)]
        schema = pa.schema([*rows.schema, *(self._plan.schema.field(name) for name in WINDOW)])
        return pa.RecordBatch.from_arrays([*rows.columns, *windows], schema=schema)

    def _merged(self, answer: pa.RecordBatch, cut: RowsInWindows) -> Sequence[pa.RecordBatch]:
        """The changes that take out windows which became parts of others."""
        del answer, cut
        return []

    def _closing(self, watermark: int) -> int:
        """Windows that end here, or before, are closed."""
        return watermark

    def _touched(self, answer: pa.RecordBatch, cut: RowsInWindows) -> pa.Array:
        """The numbers of the windows of the state that have rows of the batch."""
        del cut
        return answer.column(KEPT_NUMBER)

    def _changed(self, answer: pa.RecordBatch, cut: RowsInWindows) -> pa.RecordBatch:
        """The rows that come out of windows that changed."""
        shown = answer.filter(answer.column(CHANGED))
        values = shown.select([OFFSET, *self._plan.values.names])
        made = RowChanges(values, shown.column(KEPT_NUMBER), cut.before)
        return made.emitted(self._operator.totals.emit)

    def _replaced(self, answer: pa.RecordBatch, kept: StateTable) -> pa.RecordBatch:
        rows = answer.select(self._plan.state.names)
        nothing = [pa.nulls(rows.num_rows, field.type) for field in MARK_FIELDS]
        state = pa.RecordBatch.from_arrays([*rows.columns, *nothing], schema=self._state)
        return replaced(state, self._by, answer.column(KEPT_NUMBER), kept)

    def _closed(
        self,
        answer: pa.RecordBatch,
        kept: StateTable,
        watermark: int | None,
        cut: RowsInWindows,
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        """The windows that close now, and the changes without them."""
        if watermark is None:
            return None, self._replaced(answer, kept)
        if watermark == END_MARK:
            fresh, open_ = answer, answer.slice(0, 0)
            due = without_marks(kept.all())
        else:
            bound = as_times(np.array([self._closing(watermark)], np.int64), self._end.type)[0]
            is_over = pc.less_equal(answer.column(END), bound)
            fresh, open_ = answer.filter(is_over), answer.filter(pc.invert(is_over))
            due = kept.due(END, bound)
        again = pc.is_in(due.column(KEPT_NUMBER), value_set=self._touched(answer, cut))
        due = due.filter(pc.invert(again))
        names = [KEPT_NUMBER, *self._plan.values.names]
        closed = pa.concat_batches([due.select(names), fresh.select(names)])
        stored = closed.filter(pc.is_valid(closed.column(KEPT_NUMBER)))
        numbers = stored.column(KEPT_NUMBER).to_numpy()
        gone = removals_of(self._state, numbers, hash_rows(stored, self._by))
        return closed, pa.concat_batches([self._replaced(open_, kept), gone])

    def _output(
        self,
        answer: pa.RecordBatch,
        changes: pa.RecordBatch,
        closed: pa.RecordBatch | None,
        skipped: SkippedRows,
        cut: RowsInWindows,
    ) -> StateOutput:
        names = self._plan.values.names
        if self._operator.at_close:
            rows = answer.slice(0, 0) if closed is None else closed
            # So no window is late for a step behind that goes by event time, too.
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(END, "ascending")]))
            offsets = pa.array(np.full(rows.num_rows, NO_OFFSET, np.int64))
            values = rows.select(names)
            schema = pa.schema([pa.field(OFFSET, pa.int64()), *values.schema])
            return StateOutput(
                pa.RecordBatch.from_arrays([offsets, *values.columns], schema=schema),
                changes,
                skipped,
            )
        return StateOutput(self._changed(answer, cut), changes, skipped)

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()
