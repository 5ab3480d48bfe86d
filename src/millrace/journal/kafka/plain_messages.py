"""Plain topics that others write, as journals: each message commits itself. Pure.

Offsets are Kafka's own. A row's clock is its timestamp's, or one above the row before it if that is
higher. So a clock depends on all rows before it; anchors remember it at some offsets, and a
reader that starts between two anchors begins at the last one and counts on.

Invariant: a row has the same clock whenever it is read, as long as an anchor or the topic's first
row is there to count from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from millrace.errors import FormatError
from millrace.journal.core.clocks import BEFORE_ALL, Clock
from millrace.journal.core.row_format import PRODUCER_MAX, Flag, ProducerId, stored_schema
from millrace.journal.kafka import message_rows as codec

_CLOCKS_PER_MS: Final = 10_000 << 4
_TIME_MISSING: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Messages of a plain topic, as arrays."""

    offsets: list[int]
    values: list[bytes | None]
    keys: list[bytes | None]
    times_ms: list[int]
    """-1 where a message has none."""


def producer_of(topic: str, partition: int) -> ProducerId:
    """The producer id of a plain topic; it never changes."""
    return ProducerId(xxhash.xxh3_64_intdigest(f"{topic}:{partition}".encode()) & PRODUCER_MAX)


def clocks_of(times_ms: Sequence[int], before: Clock) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A clock for each row: its time's, or one above that of the row before."""
    index = np.arange(len(times_ms), dtype=np.int64)
    times = np.maximum(np.array(times_ms, np.int64), 0) * _CLOCKS_PER_MS
    # c[i] = max(t[i], c[i-1] + 1), so c[i] - i is the highest t[j] - j up to i.
    highest = np.maximum.accumulate(np.concatenate([[before + 1], times - index]))[1:]
    return highest + index


def stored_rows(
    plain: PlainRows, schema: pa.Schema, producer: ProducerId, before: Clock, *, where: str
) -> pa.RecordBatch:
    """Messages as stored rows of a journal."""
    kinds = stored_schema(schema)
    count = len(plain.offsets)
    try:
        users = codec.decode(plain.values, schema)
    except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
        raise FormatError(
            f"messages of {where} do not have the columns {', '.join(schema.names)}\n"
            f"  offsets: {plain.offsets[0]} to {plain.offsets[-1]}\n  found: {error}\n"
            f"  to fix: create the journal with one binary column {codec.RAW_COLUMN!r} to read "
            "whatever bytes there are"
        ) from error
    times = pa.array([None if t == _TIME_MISSING else t * 1000 for t in plain.times_ms], pa.int64())
    system = [
        pa.array(plain.offsets, pa.int64()),
        pa.array(np.full(count, producer, np.int64)),
        pa.array(clocks_of(plain.times_ms, before).astype(np.uint64)),
        pa.array(np.full(count, Flag.OUTSIDE, np.uint8)),
        pa.nulls(count, kinds.field(4).type),
        pa.array(plain.keys, pa.binary()),
        times.cast(kinds.field(6).type),
    ]
    return pa.RecordBatch.from_arrays([*system, *users], schema=kinds)


FIRST_CLOCK: Final = BEFORE_ALL
