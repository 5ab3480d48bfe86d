"""Cuts what was read into the rows of each range. Pure.

Invariant: a row goes to every range that holds its key's hash and to no other, in the order read;
rows are hashed once, whoever shares them, and there is no Python per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from millrace.journal.names import Offset
from millrace.journal.records import OFFSET
from millrace.journal.values import Fetched
from millrace.keys.hash import hash32
from millrace.keys.ranges import WHOLE, KeyRange, unsigned
from millrace.reads.live.ring import Size, SubscriberId

Batches = tuple[pa.RecordBatch, ...]


def cut(fetched: Fetched, bound: Offset | None) -> tuple[Batches, Offset]:
    """The rows below a bound, and where to read on; a read cannot be told where to end."""
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


def share(
    batches: Sequence[pa.RecordBatch],
    keys: Sequence[str],
    ranges: Mapping[SubscriberId, KeyRange],
) -> dict[SubscriberId, Batches]:
    """The rows of each range; those of the same range get the very same batches."""
    wanted = set(ranges.values())
    found: dict[KeyRange, list[pa.RecordBatch]] = {each: [] for each in wanted}
    for batch in batches:
        hashed = None
        for each in wanted:
            if each == WHOLE:
                found[each].append(batch)
                continue
            if hashed is None:
                hashed = unsigned(hash32(batch, keys))
            mask = each.mask(hashed)
            count = int(np.count_nonzero(mask))
            if count:
                whole = count == batch.num_rows
                found[each].append(batch if whole else batch.filter(pa.array(mask)))
    return {who: tuple(found[each]) for who, each in ranges.items()}


def size_of(batches: Sequence[pa.RecordBatch]) -> Size:
    """How much these rows are."""
    return Size(sum(each.num_rows for each in batches), sum(each.nbytes for each in batches))
