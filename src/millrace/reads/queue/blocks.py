"""Blocks: rows of one binding as one Arrow IPC stream, and their summaries. Pure.

Invariant: a block's summary is about all rows of it that can still be read; it may be about more
rows than those, never about fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, NewType

import numpy as np
import pyarrow as pa

from millrace.errors import Corrupt
from millrace.journal.core.row_format import CLOCK, OFFSET, PRODUCER
from millrace.reads.model.number_tables import Table
from millrace.reads.model.tags import TAG, Clocks, Ints
from millrace.reads.queue.producer_pairs import mixed
from millrace.reads.queue.queue_limits import PAIRS_MAX

Lsn = NewType("Lsn", int)
"""Log sequence number: counts the blocks of a queue from 1, in the order they were written."""
SegmentNumber = NewType("SegmentNumber", int)

ALIGNMENT: Final = 64
"""A block begins at a multiple of this, so that mapped columns are aligned."""
LSN: Final = "lsn"
"""In the metadata of a block's batch."""
_ROOM_BYTES: Final = 1024
"""For what surrounds schema and batch."""
_HOME_BITS: Final = 10


@dataclass(frozen=True, slots=True)
class StagedStamps(Table):
    """The system columns of staged rows, without a copy."""

    TYPES: ClassVar[dict[str, Any]] = {"clock": np.uint64}

    tag: Ints
    producer: Ints
    clock: Clocks
    offset: Ints


@dataclass(frozen=True, slots=True)
class Entries(Table):
    """Rows of a pair: their lowest and highest clock, and their number."""

    TYPES: ClassVar[dict[str, Any]] = {"lowest": np.uint64, "highest": np.uint64}

    tag: Ints
    producer: Ints
    lowest: Clocks
    highest: Clocks
    count: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Facts about rows that are known without reading them."""

    rows: int
    lowest: int
    highest: int
    is_exact: bool
    """Whether the entries are all its pairs. Otherwise each is one row of a sample."""
    entries: Entries


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block:
    """A block in a segment file."""

    lsn: Lsn
    segment: SegmentNumber
    position: int
    length: int
    binding: int
    schema: pa.Schema
    rows: int
    """In the file; the summary may be about fewer, if it is known that not all can be read."""
    is_ordered: bool
    """Whether its rows are sorted by clock, then tag, then offset."""
    summary: Summary


def stamps_of(batch: pa.RecordBatch) -> StagedStamps:
    """The system columns of a batch."""
    return StagedStamps(*(batch.column(n).to_numpy() for n in (TAG, PRODUCER, CLOCK, OFFSET)))


def is_ordered(stamps: StagedStamps) -> bool:
    """Whether rows are sorted by clock, then tag, then offset."""
    tag, clock, offset = stamps.tag, stamps.clock, stamps.offset
    fine = clock[1:] > clock[:-1]
    if fine.all():
        return True
    later = (tag[1:] == tag[:-1]) & (offset[1:] > offset[:-1])
    fine |= (clock[1:] == clock[:-1]) & ((tag[1:] > tag[:-1]) | later)
    return bool(fine.all())


def summarise(stamps: StagedStamps) -> Summary:
    """Sum up some rows."""
    assert len(stamps), "a block has rows"
    lowest, highest = stamps.clock.min(), stamps.clock.max()
    is_one = (stamps.tag == stamps.tag[0]).all() and (stamps.producer == stamps.producer[0]).all()
    exact: Entries | None
    if is_one:
        pair = (int(stamps.tag[0]), int(stamps.producer[0]))
        exact = Entries.of([(*pair, int(lowest), int(highest), len(stamps))])
    else:
        exact = _pairs(stamps)
    entries = _sample(stamps) if exact is None else exact
    return Summary(len(stamps), int(lowest), int(highest), exact is not None, entries)


def _pairs(stamps: StagedStamps) -> Entries | None:
    """The pairs of these rows; None if they are many."""
    home = (mixed(stamps.tag, stamps.producer) >> np.uint64(64 - _HOME_BITS)).astype(np.uint16)
    if np.count_nonzero(np.bincount(home)) > PAIRS_MAX:
        return None
    order = np.argsort(home, kind="stable")  # by radix: these are 16 bits
    is_first = _is_first(stamps, order)
    if np.count_nonzero(is_first) > PAIRS_MAX:  # or two pairs share a home, and alternate
        order = np.lexsort((stamps.producer, stamps.tag))
        is_first = _is_first(stamps, order)
        if np.count_nonzero(is_first) > PAIRS_MAX:
            return None
    starts = np.flatnonzero(is_first)
    clock = stamps.clock[order]
    return Entries(
        stamps.tag[order[starts]],
        stamps.producer[order[starts]],
        np.minimum.reduceat(clock, starts),
        np.maximum.reduceat(clock, starts),
        np.diff(starts, append=len(clock)),
    )


def _is_first(stamps: StagedStamps, order: Ints) -> Any:  # noqa: ANN401 - an array of bool
    """Where, in this order, a pair is not that of the row before."""
    tag, producer = stamps.tag[order], stamps.producer[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (tag[1:] != tag[:-1]) | (producer[1:] != producer[:-1])
    return is_first


def _sample(stamps: StagedStamps) -> Entries:
    """Some of the rows, evenly spread and with the last one."""
    places = np.linspace(0, len(stamps) - 1, PAIRS_MAX).astype(np.int64)
    sample = stamps.take(places)
    ones = np.ones(len(places), np.int64)
    return Entries(sample.tag, sample.producer, sample.clock, sample.clock, ones)


class Encoder:
    """Turns batches into the bytes of blocks; each is good until the next."""

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint8)

    def encode(self, batch: pa.RecordBatch, lsn: Lsn) -> memoryview:
        """A complete IPC stream, filled up with zeros to the alignment."""
        room = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + _ROOM_BYTES
        if len(self._scratch) < room + ALIGNMENT:
            self._scratch = np.empty(room + ALIGNMENT, np.uint8)
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(self._scratch[:-ALIGNMENT]))
        try:
            _write(sink, batch, lsn)
        except OSError:  # it needs more: dictionaries, above all
            return self._encode_larger(batch, lsn)
        return self._filled_up(sink.tell())

    def _encode_larger(self, batch: pa.RecordBatch, lsn: Lsn) -> memoryview:
        sink = pa.BufferOutputStream()
        _write(sink, batch, lsn)
        content = np.frombuffer(sink.getvalue(), np.uint8)
        self._scratch = np.empty(len(content) + ALIGNMENT, np.uint8)
        self._scratch[: len(content)] = content
        return self._filled_up(len(content))

    def _filled_up(self, length: int) -> memoryview:
        whole = -(-length // ALIGNMENT) * ALIGNMENT
        self._scratch[length:whole] = 0
        return self._scratch.data[:whole]


def _write(sink: pa.NativeFile, batch: pa.RecordBatch, lsn: Lsn) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={LSN: str(lsn)})


def decode(content: pa.Buffer) -> pa.RecordBatch:
    """The rows of a block, without a copy."""
    try:
        with pa.ipc.open_stream(content) as reader:
            return reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise Corrupt(
            f"a block of a queue cannot be read: {error}\n"
            "  to fix: start the reads again; they begin at the last checkpoint"
        ) from error
