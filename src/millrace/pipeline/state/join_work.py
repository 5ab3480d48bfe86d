"""Pairs of rows of two sides with equal keys, whose times are near each other.

The state has the rows of both sides. A row that comes is joined with the rows of the other side
that came before it, and kept for those that come later. So each pair comes out once, whatever the
order. With `late`, a row goes when the other side can have no row for it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET, SOURCE_JOURNAL
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import (
    MARK_FIELDS,
    EventTimes,
    SourceProgress,
    Times,
    times_of,
    without_ends,
    without_marks,
)
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_operators import RowPairs
from millrace.pipeline.state.state_rows import KEPT_NUMBER, changes_schema, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import StateOutput, WorkSettings, found, replaced
from millrace.sql.typed_sql import quoted

SIDES: Final = ("left", "right")
_AT: Final = ("_mr_left_at", "_mr_right_at")
_TIME: Final = "_mr_us"


@dataclass(frozen=True, slots=True)
class PairsPlan:
    """The columns of both sides."""

    keys: tuple[tuple[str, ...], tuple[str, ...]]
    rows: tuple[pa.Schema, pa.Schema]
    """The columns of the rows of each side, without the tag."""

    @property
    def shown(self) -> tuple[list[str], list[str]]:
        """The columns of each side that come out: a key that both sides have by one name once."""
        left, right = self.keys
        same = {theirs for ours, theirs in zip(left, right, strict=True) if ours == theirs}
        return self.rows[0].names, [name for name in self.rows[1].names if name not in same]

    @property
    def output(self) -> pa.Schema:
        """The columns of a pair."""
        left, right = self.shown
        fields = [self.rows[0].field(name) for name in left]
        return pa.schema([*fields, *(self.rows[1].field(name) for name in right)])

    @property
    def state(self) -> pa.Schema:
        """The columns of the state."""
        keys = [self.rows[0].field(key) for key in self.keys[0]]
        at = [pa.field(name, pa.timestamp("us")) for name in _AT]
        sides = [
            pa.field(side, pa.struct(list(rows)))
            for side, rows in zip(SIDES, self.rows, strict=True)
        ]
        return pa.schema([*keys, *sides, *at, *MARK_FIELDS])

    def listed(self, side: int) -> str:
        """The columns of a pair of `a`, of one side, and `b`, of the other."""
        names = ("a", "b") if side == 0 else ("b", "a")
        return ", ".join(
            f"{name}.{quoted(column)}"
            for name, columns in zip(names, self.shown, strict=True)
            for column in columns
        )

    def condition(self, side: int, within_us: int | None) -> str:
        """When a row `a` of one side and a row `b` of the other are a pair."""
        ours, theirs = self.keys[side], self.keys[1 - side]
        on = [
            f"a.{quoted(our)} = b.{quoted(their)}" for our, their in zip(ours, theirs, strict=True)
        ]
        if within_us is not None:
            on.append(f"abs(a.{_TIME} - b.{_TIME}) <= {within_us}")
        return " AND ".join(on)

    def query(self, side: int, within_us: int | None) -> str:
        """The pairs of new rows of one side in `input_0` with rows of the other in `input_1`."""
        return (
            f"SELECT a.{OFFSET}, {self.listed(side)} FROM input_0 a JOIN input_1 b "
            f"ON {self.condition(side, within_us)} ORDER BY a.{OFFSET}"
        )


def pairs_plan(keys: tuple[str, ...], operator: RowPairs, state: pa.Schema) -> PairsPlan:
    """The plan of a step, from the columns of its state."""
    left, right = (pa.schema(list(state.field(side).type)) for side in SIDES)
    return PairsPlan((keys, operator.right_keys), (left, right))


class PairsWork:
    """Joins the rows of two sides."""

    def __init__(self, plan: PairsPlan, operator: RowPairs, settings: WorkSettings) -> None:
        self._plan, self._operator, self._state = plan, operator, plan.state
        answer = pa.schema([pa.field(OFFSET, pa.int64()), *plan.output])
        self._queries = [
            settings.engine().prepare(plan.query(side, operator.within_us), answer)
            for side in range(len(SIDES))
        ]

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        rows, has_ended = without_ends(rows)
        side, count = progress.side, rows.num_rows
        time = self._operator.times[side]
        times: Times = np.zeros(count, np.int64)
        if time is not None:
            rows = rows.filter(pc.is_valid(rows.column(time)))
            times = times_of(rows.column(time))
        timed = rows.num_rows
        marks: EventTimes | None = None
        if self._operator.late_us is not None:
            marks = EventTimes.of(kept, self._operator.late_us, side)
            in_time = marks.on_rows(rows.column(SOURCE_JOURNAL).to_numpy(), times)
            rows = rows.filter(pa.array(in_time))
        skipped = SkippedRows(late=timed - rows.num_rows, without_time=count - timed)
        rows = with_keys(rows.drop_columns([SOURCE_JOURNAL]), self._plan.keys[side])
        given, times = timed_rows(rows, time)
        known = without_marks(found(rows, self._plan.keys[side], kept))
        pairs = self._queries[side].run(given, rows_of_side(self._plan, known, 1 - side))
        changes = [kept_rows(self._plan, rows, times, kept, side)]
        if marks is not None:
            watermark = marks.finish() if has_ended else marks.advance(progress)
            first = kept.next_number + rows.num_rows
            changes.append(marks.changes(self._state, first))
            changes += self._freed(kept, watermark, side)
        return StateOutput(pairs, pa.concat_batches(changes), skipped)

    def _freed(
        self, kept: StateTable, watermark: int | None, side: int
    ) -> Sequence[pa.RecordBatch]:
        """The changes that let rows of the other side go: this side is past them."""
        within = self._operator.within_us
        if watermark is None or within is None:
            return [pa.RecordBatch.from_pylist([], changes_schema(self._state))]
        bound = pa.scalar(watermark - within - 1, pa.int64()).cast(pa.timestamp("us"))
        gone = kept.due(_AT[1 - side], bound)
        numbers = gone.column(KEPT_NUMBER).to_numpy()
        return [removals_of(self._state, numbers, hash_rows(gone, self._plan.keys[0]))]

    def close(self) -> None:
        """See `StateWork.close`."""
        for query in self._queries:
            query.close()


def timed_rows(rows: pa.RecordBatch, time: str | None) -> tuple[pa.RecordBatch, Times]:
    """Rows with their times in a column of their own; all alike where times do not matter."""
    times: Times = np.zeros(rows.num_rows, np.int64)
    if time is not None:
        times = times_of(rows.column(time))
    return _with_times(rows, times), times


def with_keys(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The rows without a null in their key: the others join nothing."""
    has_key = np.ones(rows.num_rows, np.bool_)
    for key in keys:
        has_key &= rows.column(key).is_valid().to_numpy(zero_copy_only=False)
    return rows if has_key.all() else rows.filter(pa.array(has_key))


def rows_of_side(plan: PairsPlan, known: pa.RecordBatch, side: int) -> pa.RecordBatch:
    """The rows of one side among rows of the state, with their numbers and times."""
    known = known.filter(pc.is_valid(known.column(_AT[side])))
    values = pa.RecordBatch.from_struct_array(known.column(SIDES[side]))
    schema = pa.schema([pa.field(KEPT_NUMBER, pa.int64()), *plan.rows[side]])
    rows = pa.RecordBatch.from_arrays([known.column(KEPT_NUMBER), *values.columns], schema=schema)
    return _with_times(rows, times_of(known.column(_AT[side])))


def kept_rows(
    plan: PairsPlan, rows: pa.RecordBatch, times: Times, kept: StateTable, side: int
) -> pa.RecordBatch:
    """The changes that keep some rows of a side."""
    count, own = rows.num_rows, plan.rows[side]
    values = rows.select(own.names)
    given = {
        key: rows.column(name) for key, name in zip(plan.keys[0], plan.keys[side], strict=True)
    }
    given[SIDES[side]] = pa.StructArray.from_arrays(values.columns, fields=list(own))
    given[_AT[side]] = pa.array(times, pa.int64()).cast(pa.timestamp("us"))
    columns = [given.get(field.name, pa.nulls(count, field.type)) for field in plan.state]
    state = pa.RecordBatch.from_arrays(columns, schema=plan.state)
    return replaced(state, plan.keys[0], pa.nulls(count, pa.int64()), kept)


def _with_times(rows: pa.RecordBatch, times: Times) -> pa.RecordBatch:
    schema = pa.schema([*rows.schema, pa.field(_TIME, pa.int64())])
    return pa.RecordBatch.from_arrays([*rows.columns, pa.array(times, pa.int64())], schema=schema)
