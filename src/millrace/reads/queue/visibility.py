"""Which staged rows a checkpoint shows, and which are no longer needed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.tags import Clocks
from millrace.reads.queue.blocks import Entries, StagedStamps, stamps_of
from millrace.reads.queue.producer_pairs import NOWHERE, Mask, OffsetRanges, PairIndex

_ONE: Final = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The visibility of entries: each stands for some rows of one pair."""

    touches: Mask
    """Whether some of the rows may be visible."""
    is_inside: Mask
    """Whether all of them are."""
    floor: Clocks
    """No visible one has a clock below this."""


class VisibilityView:
    """The rows that become visible from one checkpoint to another."""

    def __init__(self, visible: Visible) -> None:
        self._windows = visible.windows
        self._pairs = PairIndex(visible.windows.tag, visible.windows.producer)
        self._rolled_back = OffsetRanges(visible.rolled_back)
        shows = len(visible.windows) > 0
        self.above = int(visible.windows.above.min()) if shows else 0
        """All visible rows have a clock above this, and one up to the next."""
        self.upto = int(visible.windows.upto.max()) if shows else 0

    def judge(self, entries: Entries) -> Verdict:
        """Decide how far the rows of entries are visible."""
        if not len(self._windows):
            nothing = np.zeros(len(entries), np.bool_)
            return Verdict(nothing, nothing, entries.lowest)
        places = self._pairs.find(entries.tag, entries.producer)
        above, upto = self._windows.above[places], self._windows.upto[places]
        is_listed = places != NOWHERE
        touches = is_listed & (entries.highest > above) & (entries.lowest <= upto)
        is_inside = is_listed & (entries.lowest > above) & (entries.highest <= upto)
        is_inside &= entries.lowest > self._rolled_back.highest(entries.tag, entries.producer)
        return Verdict(touches, is_inside, np.maximum(entries.lowest, above + _ONE))

    def shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The visible rows of a batch; without a copy if they are contiguous."""
        return pick(batch, self.mask(stamps_of(batch)))

    def mask(self, stamps: StagedStamps) -> Mask:
        """Which rows are visible."""
        if not len(self._windows):
            return np.zeros(len(stamps), np.bool_)
        places = self._pairs.find(stamps.tag, stamps.producer)
        mask: Mask = places != NOWHERE
        mask &= stamps.clock > self._windows.above[places]
        mask &= stamps.clock <= self._windows.upto[places]
        if self._rolled_back:
            mask &= ~self._rolled_back.contain(stamps.tag, stamps.producer, stamps.offset)
        return mask


class Consumed:
    """The rows that are never read again once a checkpoint is committed."""

    def __init__(self, shown: ShownClock, rolled_back: RolledBack) -> None:
        self._shown = shown
        self._pairs = PairIndex(shown.tag, shown.producer)
        self._rolled_back = OffsetRanges(rolled_back)

    def judge(self, entries: Entries) -> tuple[Mask, Mask]:
        """For each entry: whether all its rows are consumed, and whether some may be."""
        clocks = self._clocks(self._pairs.find(entries.tag, entries.producer))
        is_partly_consumed = entries.lowest <= clocks
        is_partly_consumed |= entries.lowest <= self._rolled_back.highest(
            entries.tag, entries.producer
        )
        return entries.highest <= clocks, is_partly_consumed

    def live(self, stamps: StagedStamps) -> Mask:
        """Which rows are left to be read."""
        live = stamps.clock > self._clocks(self._pairs.find(stamps.tag, stamps.producer))
        if self._rolled_back:
            live &= ~self._rolled_back.contain(stamps.tag, stamps.producer, stamps.offset)
        return live

    def _clocks(self, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Clocks:
        if not len(self._shown):
            return np.zeros(len(places), np.uint64)
        return np.where(places == NOWHERE, np.uint64(0), self._shown.clock[places])


def pick(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """Some rows of a batch, in its order; without a copy if they are contiguous."""
    count = np.count_nonzero(mask)
    first = int(mask.argmax()) if count else 0
    if mask[first : first + count].all():
        return batch if count == batch.num_rows else batch.slice(first, count)
    return batch.filter(pa.array(mask))
