"""The two forms of an attempt's rows: a file per partition, or one file with a range per partition.

Each partition is a complete Arrow IPC stream either way. `PartFiles` writes slices as they come
and keeps a bounded number of files open. `OneFile` collects slices in memory, spills them to one
file when they grow too large, and at the end puts each partition's pieces together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import xxhash

from millrace.config import MIB, Config
from millrace.ids import ReducePartition
from millrace.keys import Split
from millrace.shuffle import layout
from millrace.shuffle.index import PartitionMeta

SPILL_FILE: Final = "spill.tmp"
_WRITE_BUFFER_BYTES: Final = 1 * MIB


@dataclass(slots=True)
class _Open:
    """A partition's file while it is written."""

    file: pa.NativeFile
    stream: pa.ipc.RecordBatchStreamWriter
    rows: int = 0
    batches: int = 0


@dataclass(slots=True)
class PartFiles:
    """A file per partition that has rows."""

    folder: str
    schema: pa.Schema
    partitions: int
    config: Config
    open: dict[int, _Open] = field(default_factory=dict)

    def write(self, split: Split) -> None:
        """Append each partition's slice to its file."""
        for partition in range(self.partitions):
            rows = split.rows(partition)
            if rows:
                target = self.open.get(partition) or self._start(partition)
                target.stream.write_batch(split.part(partition))
                target.rows += rows
                target.batches += 1

    def finish(self) -> list[PartitionMeta]:
        """Close all files and describe them."""
        for target in self.open.values():
            target.stream.close()
            target.file.close()
        return [self._describe(partition) for partition in range(self.partitions)]

    def abort(self) -> None:
        """Close files as far as that is possible."""
        for target in self.open.values():
            with contextlib.suppress(OSError, pa.ArrowException):
                target.file.close()

    def _start(self, partition: int) -> _Open:
        name = layout.part_file(ReducePartition(partition))
        file = pa.OSFile(os.path.join(self.folder, name), "wb")
        stream = pa.ipc.new_stream(file, self.schema, options=write_options(self.config))
        self.open[partition] = _Open(file, stream)
        return self.open[partition]

    def _describe(self, partition: int) -> PartitionMeta:
        target = self.open.get(partition)
        if target is None:
            return _empty(partition)
        name = layout.part_file(ReducePartition(partition))
        with pa.memory_map(os.path.join(self.folder, name)) as mapped:
            data = mapped.read_buffer()
            return PartitionMeta(
                reduce_partition=ReducePartition(partition),
                file=name,
                offset=0,
                bytes=data.size,
                rows=target.rows,
                batches=target.batches,
                checksum=checksum(data),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Part of a file that is one partition's stream."""

    offset: int
    bytes: int
    rows: int
    batches: int


@dataclass(slots=True)
class OneFile:
    """One `data.ipc`, each partition's rows a range of it."""

    folder: str
    schema: pa.Schema
    partitions: int
    config: Config
    pending: list[Split] = field(default_factory=list)
    pending_bytes: int = 0
    spill: pa.NativeFile | None = None
    spills: list[list[_Range]] = field(default_factory=list)

    def write(self, split: Split) -> None:
        """Keep the slices; write them aside when there are too many."""
        self.pending.append(split)
        self.pending_bytes += split.nbytes
        if self.pending_bytes >= self.config.task_memory_bytes_max // 2:
            self._spill()

    def finish(self) -> list[PartitionMeta]:
        """Put each partition's pieces together into `data.ipc`."""
        data_path = os.path.join(self.folder, layout.DATA_FILE)
        if not self.spills and not self.pending:
            return [_empty(partition) for partition in range(self.partitions)]
        if self.spill is not None:
            self.spill.close()
        spilled = self._map_spill()
        with pa.OSFile(data_path, "wb") as raw:
            out = pa.BufferedOutputStream(raw, _WRITE_BUFFER_BYTES)
            ranges = [
                self._write_range(out, self._pieces(spilled, partition))
                for partition in range(self.partitions)
            ]
            out.flush()
        if self.spills:
            os.unlink(os.path.join(self.folder, SPILL_FILE))
        with pa.memory_map(data_path) as mapped:
            return [_describe_range(mapped, p, part) for p, part in enumerate(ranges)]

    def abort(self) -> None:
        """Close the spill file as far as that is possible."""
        if self.spill is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self.spill.close()

    def _spill(self) -> None:
        if self.spill is None:
            raw = pa.OSFile(os.path.join(self.folder, SPILL_FILE), "wb")
            self.spill = pa.BufferedOutputStream(raw, _WRITE_BUFFER_BYTES)
        self.spills.append(
            [self._write_range(self.spill, self._held(p)) for p in range(self.partitions)]
        )
        self.pending.clear()
        self.pending_bytes = 0

    def _map_spill(self) -> pa.Buffer | None:
        if not self.spills:
            return None
        with pa.memory_map(os.path.join(self.folder, SPILL_FILE)) as mapped:
            return mapped.read_buffer()

    def _held(self, partition: int) -> Iterator[pa.RecordBatch]:
        return (split.part(partition) for split in self.pending if split.rows(partition))

    def _pieces(self, spilled: pa.Buffer | None, partition: int) -> Iterator[pa.RecordBatch]:
        for ranges in self.spills:
            part = ranges[partition]
            if part.rows:
                assert spilled is not None
                yield from pa.ipc.open_stream(spilled.slice(part.offset, part.bytes))
        yield from self._held(partition)

    def _write_range(self, out: pa.NativeFile, pieces: Iterable[pa.RecordBatch]) -> _Range:
        offset = out.tell()
        rows = batches = 0
        stream = None
        for batch in _coalesced(pieces, self.config.batch_bytes_target):
            if stream is None:
                stream = pa.ipc.new_stream(out, self.schema, options=write_options(self.config))
            stream.write_batch(batch)
            rows += batch.num_rows
            batches += 1
        if stream is not None:
            stream.close()
        return _Range(offset=offset, bytes=out.tell() - offset, rows=rows, batches=batches)


def write_options(config: Config) -> pa.ipc.IpcWriteOptions:
    """How batches are written: one thread, as a task has one slot."""
    codec = None if config.compression == "none" else config.compression
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def checksum(data: pa.Buffer) -> str:
    """XXH3-64 of the bytes, as 16 hexadecimal digits."""
    return str(xxhash.xxh3_64(memoryview(data)).hexdigest())


def _coalesced(pieces: Iterable[pa.RecordBatch], target: int) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece.nbytes
        if held_bytes >= target:
            yield pa.concat_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_batches(held)


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
