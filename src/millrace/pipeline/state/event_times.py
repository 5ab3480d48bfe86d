"""Event time of one unit: how far each source is, which rows are late, and the watermark.

A unit gets rows of several journals, each in its own order, mixed by chance. So a row is late if
its time lies more than `late` behind an earlier row of the same journal: that does not depend on
how the journals are mixed. The watermark is the time of the journal that is furthest behind, less
`late`. Law: a row that is not late is never behind the watermark, if no journal is left out of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import SOURCE_JOURNAL
from millrace.pipeline.state.state_rows import KEPT_NUMBER, changes_of
from millrace.pipeline.state.state_table import StateTable

MARK: Final = "_mr_mark"
MARK_FIELDS: Final = (pa.field(SOURCE_JOURNAL, pa.int64()), pa.field(MARK, pa.int64()))
"""Columns of a state's rows that say how far a source is, beside nulls."""
WATERMARKS: Final = (-1, -2)
"""The sources whose marks are the watermarks of both sides of a join; others have one side."""
_HASH: Final = np.zeros(1, np.int32)
END_OF_SOURCES: Final = -3
"""The source of a row without data, which says that no row will come any more."""
_OF_RIGHT_SIDE: Final = -16
"""Marks of the right side of a join count down from here: both sides may read one journal."""
END_MARK: Final = 2**62
"""The mark of the watermark then: all windows are behind it."""
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The journals that feed a unit through `key_by`."""

    sources: frozenset[int] = frozenset()
    """All that have rows."""
    waiting: frozenset[int] = frozenset()
    """Those of which some rows have not come to the units yet."""
    is_drained: bool = True
    """Whether the unit has all that has come to it."""
    side: int = 0
    """Which side of a join it is."""
    idle: frozenset[int] = frozenset()
    """Those that hold up nothing: no row has come for as long as the user said."""


@dataclass(slots=True)
class EventTimes:
    """The marks of one unit while a batch is worked on."""

    late_us: int
    side: int = 0
    marks: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    _moved: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, kept: StateTable, late_us: int, side: int = 0) -> EventTimes:
        """As the state has them."""
        rows = marks_of(kept.find(_HASH))
        sources = rows.column(SOURCE_JOURNAL).to_pylist()
        marks = dict(zip(sources, rows.column(MARK).to_pylist(), strict=True))
        numbers = dict(zip(sources, rows.column(KEPT_NUMBER).to_pylist(), strict=True))
        return cls(late_us, side, marks, numbers)

    @property
    def watermark(self) -> int | None:
        """Nothing ends behind it any more; None: not known yet."""
        return self.marks.get(WATERMARKS[self.side])

    def on_rows(self, sources: npt.NDArray[np.int64], times: Times) -> npt.NDArray[np.bool_]:
        """Note the times of rows in their order; whether each of them is in time."""
        in_time = np.ones(len(times), np.bool_)
        for journal in np.unique(sources).tolist():
            at, source = np.flatnonzero(sources == journal), self._of_side(journal)
            known = self.marks.get(source)
            so_far = np.maximum.accumulate(times[at])
            before = np.concatenate([so_far[:1] if known is None else [known], so_far[:-1]])
            if known is not None:
                before = np.maximum(before, known)
            in_time[at] = times[at] >= before - self.late_us
            self._move(source, max(int(so_far[-1]), known if known is not None else int(so_far[0])))
        return in_time

    def advance(self, progress: SourceProgress) -> int | None:
        """Move the watermark as far as all sources allow."""
        known = self.marks.items()
        sources = {self._of_side(journal) for journal in progress.sources - progress.idle}
        waiting = {self._of_side(journal) for journal in progress.waiting}
        seen = {source: mark for source, mark in known if source in sources}
        unseen = sources - seen.keys()
        if seen and not unseen & waiting and (progress.is_drained or not unseen):
            mark = min(seen.values()) - self.late_us
            if self.watermark is None or mark > self.watermark:
                self._move(WATERMARKS[self.side], mark)
        return self.watermark

    def finish(self) -> int:
        """All sources have ended."""
        self._move(WATERMARKS[self.side], END_MARK)
        return END_MARK

    def changes(self, state: pa.Schema, first: int) -> pa.RecordBatch:
        """The changes of the state that keep the marks that moved; `first` is their number."""
        moved = sorted(self._moved)
        count = len(moved)
        given = {
            SOURCE_JOURNAL: pa.array(moved, pa.int64()),
            MARK: pa.array([self.marks[source] for source in moved], pa.int64()),
        }
        columns = [given.get(field.name, pa.nulls(count, field.type)) for field in state]
        rows = pa.RecordBatch.from_arrays(columns, schema=state)
        replaces = pa.array([self.numbers.get(source) for source in moved], pa.int64())
        return changes_of(rows, np.zeros(count, np.int32), first, replaces)

    def _of_side(self, journal: int) -> int:
        """The source of the marks of a journal: each side has read it to a place of its own."""
        return journal if self.side == 0 else _OF_RIGHT_SIDE - journal

    def _move(self, source: int, mark: int) -> None:
        if self.marks.get(source) != mark:
            self.marks[source] = mark
            self._moved.add(source)


def marks_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a state that are marks."""
    return rows.filter(pc.is_valid(rows.column(SOURCE_JOURNAL)))


def without_marks(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a state that are none."""
    return rows.filter(pc.is_null(rows.column(SOURCE_JOURNAL)))


def without_ends(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
    """The rows with data, and whether a row says that the sources have ended."""
    is_end = rows.column(SOURCE_JOURNAL).to_numpy() == END_OF_SOURCES
    return (rows.filter(pa.array(~is_end)), True) if is_end.any() else (rows, False)


def end_row(schema: pa.Schema) -> pa.RecordBatch:
    """The row that says that the sources have ended."""
    source = pa.array([END_OF_SOURCES], pa.int64())
    columns = [source if f.name == SOURCE_JOURNAL else pa.nulls(1, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def times_of(column: pa.Array) -> Times:
    """Times in microseconds; of a null none is to be used."""
    wanted = pa.timestamp("us", column.type.tz)
    times: Times = pc.fill_null(column.cast(wanted).cast(pa.int64()), 0).to_numpy()
    return times


def as_times(times: Times, kind: pa.DataType) -> pa.Array:
    """Microseconds as times of a type."""
    return pa.array(times, pa.int64()).cast(pa.timestamp("us", kind.tz)).cast(kind)
