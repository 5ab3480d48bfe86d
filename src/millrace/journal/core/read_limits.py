"""How a read is cut to its limits, and how rows are counted, over ranges of stored rows. Pure.

Invariant: rows come out in offset order, each at most once, and `next_offset` is above every row
that was looked at, so a reader that commits it neither repeats nor skips a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.journal.core.book import RangeKind
from millrace.journal.core.committed_rows import Mask, RolledBackRange, committed_mask, stamps_of
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import FLAG, OFFSET, Flag

_ROW_BYTES_MIN: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A range of stored rows, without the rows."""

    first: Offset
    next: Offset
    rows: int
    rows_before: int
    kind: RangeKind
    bytes: int
    content: object
    """The rows, or where they are stored; only the broker that made it knows which."""


Load = Callable[[Stored], Sequence[pa.RecordBatch]]


class ReadLimits(NamedTuple):
    """How much a read returns."""

    rows: int
    bytes: int
    bytes_each: int
    """Of one journal, in a read of many."""


@dataclass(slots=True, kw_only=True)
class RowCollector:
    """A read while it collects rows."""

    offset: Offset
    end: Offset
    rows_left: int
    bytes_left: int
    rolled_back: tuple[RolledBackRange, ...] | None
    """What a committed read leaves out; None for a raw read."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    is_full: bool = False

    def take(self, ranges: Iterable[Stored], load: Load) -> None:
        """Read on until a limit or the end is reached."""
        for stored in ranges:
            if stored.first >= self.end:
                return
            for batch in load(stored):
                if not self.is_full:
                    self._take(batch, stored)
            if self.is_full:
                return  # Before the next range is looked for.

    def _take(self, batch: pa.RecordBatch, stored: Stored) -> None:
        offsets = batch[OFFSET].to_numpy()
        begin, end = np.searchsorted(offsets, [self.offset, self.end]).tolist()
        if begin >= end:
            return
        rows = batch.slice(begin, end - begin)
        after = Offset(int(offsets[end - 1]) + 1)
        if self.rolled_back is not None and stored.kind is not RangeKind.PLAIN:
            rows = _keep(rows, committed_mask(stamps_of(rows), self.rolled_back))
        row_bytes = max(_ROW_BYTES_MIN, stored.bytes // max(1, stored.next - stored.first))
        fitting = min(self.rows_left, self.bytes_left // row_bytes)
        if not self.batches:
            fitting = max(1, fitting)
        if fitting < rows.num_rows:
            self.is_full = True
            rows = rows.slice(0, fitting)
            if not fitting:
                return
            after = Offset(rows[OFFSET][-1].as_py() + 1)
        self.offset = after
        self.rows_left -= rows.num_rows
        self.bytes_left -= rows.num_rows * row_bytes
        if rows.num_rows:
            self.batches.append(rows)
        if self.rows_left <= 0 or self.bytes_left <= 0:
            self.is_full = bool(self.batches)


def _keep(rows: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """Rows where the mask says so; mostly these are all, or none."""
    if mask.all():
        return rows
    return rows.filter(pa.array(mask)) if mask.any() else rows.slice(0, 0)


def rows_before(offset: Offset, stored: Stored, load: Load) -> int:
    """Rows below an offset within a range, counted from the journal's beginning, without ACKs."""
    if offset <= stored.first:
        return stored.rows_before
    if offset >= stored.next:
        return stored.rows_before + stored.rows
    if stored.kind is RangeKind.PLAIN or stored.rows == stored.next - stored.first:
        # No ACK lies between the rows, so that nothing has to be read to count them.
        return stored.rows_before + offset - stored.first
    count = 0
    for batch in load(stored):
        flags, offsets = batch[FLAG].to_numpy(), batch[OFFSET].to_numpy()
        count += int(((flags != Flag.ACK) & (offsets < offset)).sum())
    return stored.rows_before + count


def rolled_back_rows(
    gone: RolledBackRange, begin: Offset, end: Offset, ranges: Iterable[Stored], load: Load
) -> int:
    """How many rows of rolled-back transactions are in [begin, end)."""
    count = 0
    for stored in ranges:
        if stored.first >= min(gone.end, end):
            break
        if stored.kind is RangeKind.PLAIN or stored.next <= max(gone.begin, begin):
            continue
        for batch in load(stored):
            stamps = stamps_of(batch)
            within = (stamps.offsets >= begin) & (stamps.offsets < end)
            hidden = ~committed_mask(stamps, [gone]) & (stamps.flags != Flag.ACK)
            count += int((hidden & within).sum())
    return count
