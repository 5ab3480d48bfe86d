"""Cuts the rows of a read into the rows of each range. Pure.

A row's place in the key space is the hash of its key columns, or its rotated clock without any.

Invariant: a row goes to every range that holds its place and to no other, in the order read; rows
are hashed once for all subscribers, and there is no Python per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import CLOCK, OFFSET
from millrace.journal.core.values import Fetched
from millrace.keys.key_ranges import WHOLE, KeyRange, unsigned
from millrace.keys.rotated_clock import rotated_clock
from millrace.keys.spark_hash import hash32, kernels
from millrace.reads.live.waiting_rows import RowsSize, SubscriberId

Batches = tuple[pa.RecordBatch, ...]
Places = npt.NDArray[np.uint32]
_ORDER_MIN: Final = 3
"""From this many ranges on, putting rows in order is less work than a mask for each."""


@dataclass(frozen=True, slots=True)
class RangeRows:
    """The rows of one range, and their approximate size."""

    batches: Batches
    size: RowsSize


def cut(fetched: Fetched, bound: Offset | None) -> tuple[Batches, Offset]:
    """The rows below a bound, and the next offset; a read itself takes no end."""
    if bound is None or fetched.next_offset <= bound:
        return fetched.batches, fetched.next_offset
    kept = []
    for batch in fetched.batches:
        count = int(np.searchsorted(batch[OFFSET].to_numpy(), bound))
        if count:
            kept.append(batch.slice(0, count))
        if count < batch.num_rows:
            break
    return tuple(kept), bound


def due_rows(
    batches: Batches, next_offset: Offset, *, delay: int, now: Clock
) -> tuple[Batches, Offset, Clock | None]:
    """The rows before the first that is not due yet, the next offset, and when that one is due.

    Rows after it wait with it: a journal's own order holds.
    """
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        due = batch[CLOCK].to_numpy() + np.uint64(delay)
        late = np.flatnonzero(due > np.uint64(now))
        if len(late):
            first = int(late[0])
            kept += [batch.slice(0, first)] if first else []
            return tuple(kept), Offset(batch[OFFSET][first].as_py()), Clock(int(due[first]))
        kept.append(batch)
    return tuple(kept), next_offset, None


def share(
    batches: Sequence[pa.RecordBatch],
    keys: Sequence[str],
    ranges: Mapping[SubscriberId, KeyRange],
) -> dict[SubscriberId, RangeRows]:
    """The rows of each range; those of the same range get the very same batches."""
    batches_of: dict[KeyRange, Batches] = {WHOLE: tuple(batches)}
    narrow = sorted({key_range for key_range in ranges.values() if key_range != WHOLE})
    rows = sum(batch.num_rows for batch in batches)
    if narrow and rows:
        # Put together first: a read is many small batches, and each costs a call for each range.
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        places = unsigned(hash32(batch, keys)) if keys else rotated_clock(batch[CLOCK].to_numpy())
        cut_up = _by_mask if len(narrow) < _ORDER_MIN or _overlap(narrow) else _by_order
        batches_of.update(zip(narrow, cut_up(batch, places, narrow), strict=True))
    # Estimated by the row: to add up each share's own buffers takes longer than to make it.
    row_bytes = -(-sum(batch.nbytes for batch in batches) // max(1, rows))
    return {
        subscriber_id: _share(batches_of.get(key_range, ()), row_bytes)
        for subscriber_id, key_range in ranges.items()
    }


def _share(batches: Batches, row_bytes: int) -> RangeRows:
    rows = sum(batch.num_rows for batch in batches)
    return RangeRows(batches, RowsSize(rows, rows * row_bytes))


def _by_mask(batch: pa.RecordBatch, places: Places, ranges: Sequence[KeyRange]) -> list[Batches]:
    """One pass over all rows for each range."""
    shares: list[Batches] = []
    for key_range in ranges:
        mask = key_range.mask(places)
        count = int(np.count_nonzero(mask))
        if not count:
            shares.append(())
        else:
            shares.append((batch if count == len(mask) else batch.filter(pa.array(mask)),))
    return shares


def _by_order(batch: pa.RecordBatch, places: Places, ranges: Sequence[KeyRange]) -> list[Batches]:
    """Put rows into the order of ranges that do not overlap, and take each range's own.

    Copies, not slices of one batch: a slow follower would keep the rows of all others in memory.
    """
    # Odd numbers are within a range, even ones between two.
    bounds = np.array(
        [edge for key_range in ranges for edge in (key_range.begin, key_range.end + 1)], np.uint64
    )
    numbers = np.searchsorted(bounds, places, side="right").astype(np.uint16)
    order, starts = kernels().group_rows(numbers, len(bounds) + 1)
    row_numbers = [order[starts[odd] : starts[odd + 1]] for odd in range(1, len(bounds), 2)]
    return [(batch.take(pa.array(rows)),) if len(rows) else () for rows in row_numbers]


def _overlap(ranges: Sequence[KeyRange]) -> bool:
    return any(left.end >= right.begin for left, right in pairwise(ranges))
