"""Aggregates of the rows of a key in sessions: stretches of time without a gap between its rows.

A row alone is a session from its time on, as long as the gap. Sessions that meet or touch are one;
a row between two of them makes them one, and the state has one row in place of two. Law: in any
order of rows the sessions are those of all rows, as a query over them makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import Times, times_of
from millrace.pipeline.state.state_operators import TimeWindows
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    DELETE,
    INSERT,
    UPDATE,
    WorkSettings,
    in_order,
    with_kinds,
)
from millrace.pipeline.state.totals_work import CHANGED, TotalsPlan
from millrace.pipeline.state.window_work import END, START, WINDOW, RowsInWindows, WindowWork
from millrace.sql.typed_sql import quoted

_FROM: Final = "_mr_begin"
_TO: Final = "_mr_until"
_INTO: Final = "_mr_into"
"""The number of the row of the state that the others of a session become part of."""


class SessionWork(WindowWork):
    """Keeps the aggregates of sessions, and closes them."""

    def __init__(self, plan: TotalsPlan, operator: TimeWindows, settings: WorkSettings) -> None:
        super().__init__(plan, operator, settings)
        self._by = tuple(key for key in plan.keys if key not in WINDOW)
        fields = [pa.field(n, pa.int64()) for n in (OFFSET, KEPT_NUMBER, _FROM, _TO, _INTO)]
        self._merge = settings.engine().prepare(_merge_query(self._by), pa.schema(fields))

    def _in_windows(
        self, rows: pa.RecordBatch, times: Times, watermark: int | None, kept: StateTable
    ) -> RowsInWindows:
        """Each row with the session that it is part of now."""
        gap, closed = self._operator.size_us, 0
        if watermark is not None:
            is_open = times + gap >= watermark
            closed = len(times) - int(is_open.sum())
            rows, times = rows.filter(pa.array(is_open)), times[is_open]
        known = self._known(rows, kept)
        fresh = self._spans(rows, [OFFSET], times, times + gap)
        starts, ends = (times_of(known.column(name)) for name in WINDOW)
        spans = self._merge.run(fresh, self._spans(known, [KEPT_NUMBER], starts, ends))
        of_rows = spans.filter(pc.is_valid(spans.column(OFFSET)))
        of_state = spans.filter(pc.is_valid(spans.column(KEPT_NUMBER)))
        place = pc.index_in(rows.column(OFFSET), value_set=of_rows.column(OFFSET))
        before = known.take(
            pc.index_in(of_state.column(KEPT_NUMBER), value_set=known.column(KEPT_NUMBER))
        )
        into = pa.schema([*before.schema, pa.field(_INTO, pa.int64())])
        return RowsInWindows(
            rows=self._in_span(rows, of_rows.take(place)),
            closed=closed,
            old=self._in_span(before.drop_columns(list(WINDOW)), of_state),
            before=pa.RecordBatch.from_arrays(
                [*before.columns, of_state.column(_INTO)], schema=into
            ),
        )

    def _spans(
        self, rows: pa.RecordBatch, names: Sequence[str], starts: Times, ends: Times
    ) -> pa.RecordBatch:
        some = rows.select([*names, *self._by])
        schema = pa.schema([*some.schema, (_FROM, pa.int64()), (_TO, pa.int64())])
        return pa.RecordBatch.from_arrays(
            [*some.columns, pa.array(starts), pa.array(ends)], schema=schema
        )

    def _in_span(self, rows: pa.RecordBatch, spans: pa.RecordBatch) -> pa.RecordBatch:
        starts, ends = (spans.column(name).to_numpy() for name in (_FROM, _TO))
        return self._with_window(rows, starts, ends)

    def _closing(self, watermark: int) -> int:
        """A row that is in time may still touch a session that ends at the watermark."""
        return watermark - 1

    def _touched(self, answer: pa.RecordBatch, cut: RowsInWindows) -> pa.Array:
        del answer
        return cut.before.column(KEPT_NUMBER)

    def _merged(self, answer: pa.RecordBatch, cut: RowsInWindows) -> Sequence[pa.RecordBatch]:
        del answer
        before = cut.before
        parts = before.filter(pc.not_equal(before.column(KEPT_NUMBER), before.column(_INTO)))
        numbers = parts.column(KEPT_NUMBER).to_numpy()
        return [removals_of(self._state, numbers, hash_rows(parts, self._by))]

    def _changed(self, answer: pa.RecordBatch, cut: RowsInWindows) -> pa.RecordBatch:
        """Sessions that changed; one that has another start, or became a part, goes."""
        before, names = cut.before, self._plan.values.names
        at = pc.index_in(before.column(_INTO), value_set=answer.column(KEPT_NUMBER)).to_numpy()
        has_start = _same(before, answer, START, at)
        is_changed = answer.column(CHANGED).to_numpy(zero_copy_only=False).copy()
        np.logical_or.at(is_changed, at, ~(has_start & _same(before, answer, END, at)))
        goes = is_changed[at]
        is_update = np.zeros(answer.num_rows, np.bool_)
        if self._operator.totals.emit == "changes":
            is_update[at[has_start]] = True
            goes &= ~has_start
        gone = before.select(names).filter(pa.array(goes))
        offsets = answer.column(OFFSET).take(pa.array(at[goes]))
        new = answer.select([OFFSET, *names]).filter(pa.array(is_changed))
        old = pa.RecordBatch.from_arrays([offsets, *gone.columns], schema=new.schema)
        kinds = np.where(is_update[is_changed], UPDATE, INSERT).tolist()
        words = pa.array([*([DELETE] * old.num_rows), *kinds], pa.string())
        return in_order(with_kinds(pa.concat_batches([old, new]), words))

    def close(self) -> None:
        """See `StateWork.close`."""
        super().close()
        self._merge.close()


def _same(before: pa.RecordBatch, answer: pa.RecordBatch, name: str, at: Times) -> np.ndarray:
    """Whether sessions of the state have a time of the sessions that they became."""
    known, now = times_of(before.column(name)), times_of(answer.column(name))
    return np.asarray(known == now[at])


def _merge_query(keys: Sequence[str]) -> str:
    """The session of each row of `input_0`, and of each session in `input_1` that one joins."""
    by = ", ".join(map(quoted, keys))
    nothing = "CAST(NULL AS BIGINT)"
    ordered = f"OVER (PARTITION BY {by} ORDER BY {_FROM}, {_TO} ROWS BETWEEN UNBOUNDED PRECEDING"
    return (
        f"WITH spans AS (SELECT {OFFSET}, {nothing} AS {KEPT_NUMBER}, {by}, {_FROM}, {_TO} "
        f"FROM input_0 UNION ALL "
        f"SELECT {nothing}, {KEPT_NUMBER}, {by}, {_FROM}, {_TO} FROM input_1), "
        f"reached AS (SELECT *, max({_TO}) {ordered} AND 1 PRECEDING) AS _mr_reach FROM spans), "
        f"numbered AS (SELECT *, sum(CASE WHEN {_FROM} <= _mr_reach THEN 0 ELSE 1 END) {ordered} "
        f"AND CURRENT ROW) AS _mr_session FROM reached) "
        f"SELECT {OFFSET}, {KEPT_NUMBER}, min({_FROM}) OVER session AS {_FROM}, "
        f"max({_TO}) OVER session AS {_TO}, max({KEPT_NUMBER}) OVER session AS {_INTO} "
        f"FROM numbered "
        f"WINDOW session AS (PARTITION BY {by}, _mr_session) "
        f"QUALIFY count({OFFSET}) OVER session > 0"
    )
