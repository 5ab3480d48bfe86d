"""Parquet in a store, of which the needed column chunks are fetched before they are decoded.

Arrow asks for one chunk after the other and waits for each, or for those of all row groups at once.
Here the chunks of a row group are fetched at the same time, neighbours in one request, and those of
the next row groups while this one is decoded. Invariant: only bytes are fetched, by place; others
are fetched when Arrow asks for them. Beside the row group that is decoded, at most
`S3_AHEAD_BYTES_MAX` are in memory.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.config import Config
from millrace.limits import MIB
from millrace.scan.remote_files import ranges
from millrace.storage.fetched_ahead import FetchedAhead, Piece
from millrace.storage.file_systems import is_remote
from millrace.storage.objects.object_store import S3_AHEAD_BYTES_MAX
from millrace.storage.remote_paths import FileRanges
from millrace.storage.storage_options import StorageOptions

REQUEST_BYTES: Final = 8 * MIB
"""What one request fetches at most: a connection to a bucket gives less than a network."""
GAP_BYTES: Final = 64 * 1024
"""Columns that are not needed are fetched with their neighbours up to this size."""


class ParquetInput:
    """An open Parquet file; `fetch` says what will be read of it."""

    def __init__(self, file: pq.ParquetFile, chunks: ChunkFile | None) -> None:
        self.file, self._chunks = file, chunks

    def fetch(self, row_groups: Sequence[int], columns: Sequence[str] | None) -> None:
        """Begin to fetch these row groups and columns; they are then read in this order."""
        if self._chunks is not None:
            self._chunks.plan(planned(self.file.metadata, row_groups, columns))


@contextmanager
def open_parquet(path: str, options: StorageOptions) -> Iterator[ParquetInput]:
    """A Parquet file on a disk or in a store."""
    if not is_remote(path):
        with pq.ParquetFile(path) as file:
            yield ParquetInput(file, None)
        return
    chunks = ChunkFile(path, ranges(path, options))
    try:
        with parquet_of(chunks) as file:
            yield ParquetInput(file, chunks)
    finally:
        chunks.close()


def parquet_of(chunks: ChunkFile) -> pq.ParquetFile:
    """Parquet whose chunks Arrow asks for one by one: it would fetch all row groups at once."""
    return pq.ParquetFile(pa.PythonFile(chunks, mode="r"), pre_buffer=False)


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What one request fetches."""

    position: int
    bytes: int
    group: int
    """Counts the row groups in the order in which they are read."""
    needed: int
    """How many of the bytes will be asked for."""


def planned(
    meta: pq.FileMetaData, row_groups: Sequence[int], columns: Sequence[str] | None
) -> list[PlannedRange]:
    """The requests for these row groups and columns, in the order in which they are read."""
    paths = [meta.schema.column(number).path for number in range(meta.num_columns)]
    wanted = [n for n, path in enumerate(paths) if columns is None or path.split(".")[0] in columns]
    return [
        PlannedRange(begin, end - begin, order, _needed(chunks, begin, end))
        for order, number in enumerate(row_groups)
        for chunks in [_chunks(meta.row_group(number), wanted)]
        for begin, end in _requests(chunks)
    ]


def _chunks(group: pq.RowGroupMetaData, wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Where these column chunks of a row group begin and end, in the order of the file."""
    found: list[tuple[int, int]] = []
    for chunk in map(group.column, wanted):
        begin = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
            begin = chunk.dictionary_page_offset
        found.append((begin, begin + chunk.total_compressed_size))
    return sorted(found)


def _requests(chunks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Neighbours together, and what is long in pieces."""
    spans: list[tuple[int, int]] = []
    for begin, end in chunks:
        if spans and begin - spans[-1][1] <= GAP_BYTES:
            begin, end = spans[-1][0], max(end, spans.pop()[1])  # noqa: PLW2901 - the longer one
        spans.append((begin, end))
    for begin, end in spans:
        count = -(-(end - begin) // REQUEST_BYTES)
        cuts = [begin + (end - begin) * n // count for n in range(count)] if count else []
        yield from zip(cuts, [*cuts[1:], end], strict=True)


def _needed(chunks: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(end, last) - max(begin, first)) for first, last in chunks)


@dataclass(slots=True)
class _Held:
    """A piece that was fetched, and how much of it Arrow has not asked for."""

    data: pa.Buffer
    left: int


class ChunkFile(io.RawIOBase):
    """The file as Arrow sees it. One thread reads; others fetch."""

    def __init__(self, path: str, file: FileRanges, bytes_max: int = S3_AHEAD_BYTES_MAX) -> None:
        super().__init__()
        self._path, self._file, self._bytes_max = path, file, bytes_max
        self._at = self._done_bytes = 0
        self._group = -1
        self._ranges: list[PlannedRange] = []
        self._by_place: list[PlannedRange] = []
        self._held: dict[PlannedRange, _Held] = {}
        at_once = Config().s3_calls_at_once
        self._ahead = FetchedAhead(self._load, at_once=at_once, bytes_max=bytes_max)

    def plan(self, read: Sequence[PlannedRange]) -> None:
        """What will be read; each range once."""
        self._ranges = list(read)
        self._by_place = sorted(read, key=lambda one: one.position)

    def read(self, size: int | None = -1) -> Any:  # noqa: ANN401 - pyarrow takes its buffers as well
        """Bytes from here on, as many as there are up to `size`."""
        left = self._file.size - self._at
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted <= 0:
            return b""
        data = self._planned(self._at, wanted)
        if data is None:
            data = self._loaded(self._at, wanted)
        self._at += wanted
        return data

    def read_buffer(self, size: int | None = -1) -> Any:  # noqa: ANN401 - as above
        """The same."""
        return self.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = start + position
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Fetch nothing more."""
        if not self.closed:
            self._ahead.close()
            self._held.clear()
        super().close()

    def _planned(self, at: int, size: int) -> pa.Buffer | None:
        """Bytes of planned ranges; None if they are not all in such."""
        first = max(0, bisect_right(self._by_place, at, key=lambda one: one.position) - 1)
        chosen: list[PlannedRange] = []
        end = at
        for one in self._by_place[first:]:
            if end >= at + size or not one.position <= end < one.position + one.bytes:
                break
            chosen.append(one)
            end = one.position + one.bytes
        if end < at + size:
            return None
        parts: list[pa.Buffer] = []
        for one in chosen:
            begin = max(at, one.position)
            count = min(at + size, one.position + one.bytes) - begin
            parts.append(self._taken(one, begin - one.position, count))
        return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))

    def _taken(self, one: PlannedRange, begin: int, count: int) -> pa.Buffer:
        held = self._held.get(one)
        if held is None:
            self._look_ahead(one.group)
            data = pa.py_buffer(self._ahead.take(self._piece(one)))
            held = self._held[one] = _Held(data, one.needed)
        held.left -= count
        if held.left <= 0:
            del self._held[one]
        return held.data.slice(begin, count)

    def _look_ahead(self, group: int) -> None:
        """Fetch a row group, and of the next ones twice what was read, but one at least."""
        if group <= self._group:
            return
        self._group = group
        now = [one for one in self._ranges if one.group == group]
        self._ahead.need([self._piece(one) for one in now])
        self._done_bytes += sum(one.bytes for one in now)
        soon: list[Piece] = []
        room = min(self._bytes_max, 2 * self._done_bytes)
        for one in self._ranges:
            if one.group > group:
                room -= one.bytes
                if room < 0 and one.group > group + 1:
                    break
                soon.append(self._piece(one))
        self._ahead.want(soon)

    def _piece(self, one: PlannedRange) -> Piece:
        return Piece(self._path, one.position, one.bytes)

    def _load(self, piece: Piece) -> bytes:
        loaded: bytes = self._loaded(piece.position, piece.bytes)
        return loaded

    def _loaded(self, position: int, size: int) -> Any:  # noqa: ANN401 - bytes, or what holds them
        data = self._file.load(position, size)
        if data is None or len(data) < size:
            raise FileNotFoundError(f"{self._path} was removed or replaced while it was read")
        return data
