"""An attempt's rows: one file with a range for each partition, a complete Arrow IPC stream.

Slices are collected in memory, spilled when they grow too many, and put together at the end. If
there is one partition, its batches are written as they come.

Invariant: the batches of a partition have rows in input order, and are few and large under every
memory limit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import xxhash

from millrace.config import KIB, MIB, Config
from millrace.ids import ReducePartition
from millrace.keys import PartitionedBatch
from millrace.metrics.spills import note_spill
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.storage import layout, modes

SPILL_FILE: Final = "spill.tmp"
BATCH_ROWS_MIN: Final = 4096
_WRITE_BUFFER_BYTES_MAX: Final = 1 * MIB
_WORTH_A_BATCH_BYTES: Final = 128 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Part of a file that is one stream."""

    offset: int
    bytes: int
    rows: int
    batches: int


@dataclass(slots=True)
class _Spill:
    """A file beside the payload for rows that wait. It is never compressed, and gone at the end."""

    folder: str
    schema: pa.Schema
    config: Config
    out: pa.NativeFile | None = None

    @property
    def path(self) -> str:
        """The path of the spill file."""
        return os.path.join(self.folder, SPILL_FILE)

    def put(self, batches: Iterable[pa.RecordBatch]) -> _Range:
        """Write batches as one stream."""
        if self.out is None:
            modes.make_file(self.path)
            self.out = _buffered(pa.OSFile(self.path, "wb"), self.config)
        return write_range(self.out, batches, self.schema, _options("none"))

    def get(self, ranges: Sequence[_Range]) -> Iterator[pa.RecordBatch]:
        """Read ranges back, in order, mapped."""
        if not ranges:
            return
        assert self.out is not None
        self.out.flush()
        with pa.memory_map(self.path) as mapped:
            for part in ranges:
                mapped.seek(part.offset)
                yield from pa.ipc.open_stream(mapped.read_buffer(part.bytes))

    def remove(self) -> None:
        """Close and delete it."""
        if self.out is not None:
            self.abort()
            os.unlink(self.path)

    def abort(self) -> None:
        """Close it as far as that is possible."""
        if self.out is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self.out.close()


@dataclass(slots=True)
class ManyPartitions:
    """One `data.ipc`, each partition's rows a range of it."""

    folder: str
    schema: pa.Schema
    partitions: int
    config: Config
    spill: _Spill = field(init=False)
    pending: list[PartitionedBatch] = field(default_factory=list)
    pending_bytes: int = 0
    spills: list[list[_Range]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Have a place for slices that are too many to hold."""
        self.spill = _Spill(self.folder, self.schema, self.config)

    def write(self, split: PartitionedBatch) -> None:
        """Keep the slices; write them aside when there are too many."""
        self.pending.append(split)
        self.pending_bytes += split.nbytes
        if self.pending_bytes >= self.config.task_memory_bytes_max * 3 // 8:
            self._put_aside()

    def finish(self) -> list[PartitionMeta]:
        """Put each partition's pieces together into `data.ipc`."""
        if self.spills and self.pending:
            self._put_aside()
        if not self.spills and not self.pending:
            return [_empty(partition) for partition in range(self.partitions)]
        path = os.path.join(self.folder, layout.DATA_FILE)
        options = _options(self.config.compression)
        modes.make_file(path)
        with pa.OSFile(path, "wb") as raw:
            out = _buffered(raw, self.config)
            ranges = [
                write_range(out, self._batches(partition), self.schema, options)
                for partition in range(self.partitions)
            ]
            out.flush()
        self.spill.remove()
        with pa.memory_map(path) as mapped:
            return [_describe_range(mapped, p, part) for p, part in enumerate(ranges)]

    def abort(self) -> None:
        """Close the spill file as far as that is possible."""
        self.spill.abort()

    def _put_aside(self) -> None:
        ranges = [self._spill(partition) for partition in range(self.partitions)]
        self.spills.append(ranges)
        note_spill(sum(part.bytes for part in ranges))
        self.pending.clear()
        self.pending_bytes = 0

    def _spill(self, partition: int) -> _Range:
        batches = list(self._pending_batches(partition))
        return self.spill.put([_one_batch(batches)] if batches else [])

    def _pending_batches(self, partition: int) -> Iterator[pa.RecordBatch]:
        return (split.part(partition) for split in self.pending if split.rows(partition))

    def _batches(self, partition: int) -> Iterator[pa.RecordBatch]:
        """The batches of a partition, from memory or, once something was spilled, from there."""
        ranges = [part[partition] for part in self.spills if part[partition].rows]
        rows = sum(part.rows for part in ranges)
        rows += sum(split.rows(partition) for split in self.pending)
        pieces = self.spill.get(ranges) if self.spills else self._pending_batches(partition)
        return coalesced(pieces, rows=rows, config=self.config)


@dataclass(slots=True)
class OnePartition:
    """One `data.ipc` of one partition: nothing has to wait but slices too small to be a batch."""

    folder: str
    schema: pa.Schema
    config: Config
    raw: pa.NativeFile | None = None
    stream: pa.ipc.RecordBatchStreamWriter | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    batches: int = 0

    def write(self, split: PartitionedBatch) -> None:
        """Append the rows, or keep them until they are worth a batch."""
        if split.rows(0):
            self.waiting.append(split.part(0))
        rows = sum(batch.num_rows for batch in self.waiting)
        if _worth_a_batch(rows, sum(batch.nbytes for batch in self.waiting)):
            self._append()

    def finish(self) -> list[PartitionMeta]:
        """Close the file and describe it."""
        if self.waiting:
            self._append()
        if self.stream is None or self.raw is None:
            return [_empty(0)]
        self.stream.close()
        self.raw.close()
        with pa.memory_map(os.path.join(self.folder, layout.DATA_FILE)) as mapped:
            whole = _Range(offset=0, bytes=mapped.size(), rows=self.rows, batches=self.batches)
            return [_describe_range(mapped, 0, whole)]

    def abort(self) -> None:
        """Close the file as far as that is possible."""
        if self.raw is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self.raw.close()

    def _append(self) -> None:
        if self.stream is None:
            path = os.path.join(self.folder, layout.DATA_FILE)
            modes.make_file(path)
            self.raw = pa.OSFile(path, "wb")
            options = _options(self.config.compression)
            self.stream = pa.ipc.new_stream(self.raw, self.schema, options=options)
        batch = _one_batch(self.waiting)
        self.waiting = []
        self.stream.write_batch(batch)
        self.rows += batch.num_rows
        self.batches += 1


def write_range(
    out: pa.NativeFile,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    options: pa.ipc.IpcWriteOptions,
) -> _Range:
    """Append batches to a file as one complete stream; nothing at all if there are none."""
    offset = out.tell()
    rows = count = 0
    stream = None
    for batch in batches:
        if stream is None:
            stream = pa.ipc.new_stream(out, schema, options=options)
        stream.write_batch(batch)
        rows += batch.num_rows
        count += 1
        del batch  # Else it would live on while the next one is put together.
    if stream is not None:
        stream.close()
    return _Range(offset=offset, bytes=out.tell() - offset, rows=rows, batches=count)


def coalesced(
    pieces: Iterable[pa.RecordBatch], *, rows: int, config: Config
) -> Iterator[pa.RecordBatch]:
    """Put pieces of `rows` rows together into batches worth reading.

    A batch has about the target's bytes and at least `BATCH_ROWS_MIN` rows, the last one too, but
    wide rows do not make it larger than a few times the target.
    """
    bytes_max = max(1, config.task_memory_bytes_max // 2)
    target = min(config.batch_bytes_target, bytes_max)
    bytes_max = min(4 * target, bytes_max)
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = gathered_rows = 0
    for piece in pieces:
        gathered.append(piece)
        gathered_bytes += piece.nbytes
        gathered_rows += piece.num_rows
        enough = gathered_bytes >= target and gathered_rows >= BATCH_ROWS_MIN
        leaves_enough = rows - gathered_rows >= BATCH_ROWS_MIN
        if gathered_bytes >= bytes_max or (enough and leaves_enough):
            yield _one_batch(gathered)
            rows -= gathered_rows
            gathered, gathered_bytes, gathered_rows = [], 0, 0
    if gathered:
        yield _one_batch(gathered)


def checksum(data: pa.Buffer) -> str:
    """XXH3-64 of the bytes, as 16 hexadecimal digits."""
    return str(xxhash.xxh3_64(memoryview(data)).hexdigest())


def _options(compression: str) -> pa.ipc.IpcWriteOptions:
    """How batches are written: one thread, as a task has one slot."""
    codec = None if compression == "none" else compression
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def _buffered(raw: pa.NativeFile, config: Config) -> pa.NativeFile:
    size = min(_WRITE_BUFFER_BYTES_MAX, max(4 * KIB, config.task_memory_bytes_max // 16))
    return pa.BufferedOutputStream(raw, size)


def _worth_a_batch(rows: int, size: int) -> bool:
    """Twice the rows that a batch should have, so that a short last one leaves the mean above."""
    return rows >= 2 * BATCH_ROWS_MIN or size >= _WORTH_A_BATCH_BYTES


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _describe_range(mapped: pa.MemoryMappedFile, partition: int, part: _Range) -> PartitionMeta:
    if not part.rows:
        return _empty(partition)
    mapped.seek(part.offset)
    return PartitionMeta(
        reduce_partition=ReducePartition(partition),
        file=layout.DATA_FILE,
        offset=part.offset,
        bytes=part.bytes,
        rows=part.rows,
        batches=part.batches,
        checksum=checksum(mapped.read_buffer(part.bytes)),
    )


def _empty(partition: int) -> PartitionMeta:
    return PartitionMeta(
        reduce_partition=ReducePartition(partition),
        file=None,
        offset=0,
        bytes=0,
        rows=0,
        batches=0,
        checksum=None,
    )
