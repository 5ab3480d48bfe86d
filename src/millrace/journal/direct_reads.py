"""Rows that a reader fetches from the files of the journals itself.

A range that is taken in parts is fetched and checked once, within a limit of memory.

Invariant: no row is given away whose bytes are not those that were written. What cannot be read is
never taken for empty.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import xxhash

from millrace.config import Config
from millrace.errors import MillraceError, StorageError
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.read_windows import ReadWindows
from millrace.journal.core.row_bundles import FileSpot, ManyRows, SpotPart
from millrace.journal.kept_ranges import KeptRanges
from millrace.storage.fetched_ahead import FetchedAhead, Piece
from millrace.storage.store import Store

_log: Final = logging.getLogger(__name__)


class SpotUnreadable(Exception):
    """A file is not there, or not as it was written. The owner knows why."""


class AheadOfSpots:
    """Fetches what readers will ask for next, where a request takes its time. For many threads."""

    def __init__(
        self, store: Store, folder: str, config: Config, locate: Callable[[ReadRequest], ManyRows]
    ) -> None:
        self._store, self._folder, self._locate = store, folder, locate
        self._bytes_max = config.journal_ahead_bytes_max
        self._windows = ReadWindows(self._bytes_max)
        self._lock = threading.Lock()
        self.pieces = FetchedAhead(
            self._load, at_once=config.s3_calls_at_once, bytes_max=self._bytes_max
        )

    def has_read(self, request: ReadRequest, rows: ManyRows) -> None:
        """Rows were read; what their readers will ask for is located, and then fetched."""
        sizes = dict.fromkeys(range(len(rows)), 0)
        for bundle in rows.bundles:
            if bundle.spot is not None:
                size = bundle.spot.bytes * bundle.counts[0] // bundle.spot.rows
                sizes[bundle.whose[0]] += size
        wanted: dict[str, Offset] = {}
        size_max = 0
        with self._lock:
            for number, size in sizes.items():
                name, next_ = rows.journals[number], rows.nexts[number]
                begin = Offset(request.offsets[name])
                span = self._windows.on_read(
                    rows.ids[number], begin, next_, rows.ends[number], size
                )
                if size and span is not None:
                    wanted[name] = span.begin
                    size_max = max(size_max, span.bytes)
        if wanted:
            further = replace(
                request,
                offsets=wanted,
                rows_max=None,
                bytes_max=min(size_max * len(wanted), self._bytes_max),
                bytes_each_max=size_max,
                missing="tell",
            )
            self.pieces.run(lambda: self._want(further))

    def _want(self, request: ReadRequest) -> None:
        try:
            rows = self._locate(request)
        except MillraceError as error:  # Its reader will ask the same, and be told.
            _log.debug("nothing is fetched ahead: %s", error)
            return
        spots = [bundle.spot for bundle in rows.bundles if bundle.spot and not bundle.begins[0]]
        self.pieces.want(_piece(spot) for spot in spots)

    def _load(self, piece: Piece) -> bytes:
        path = f"{self._folder}/{piece.path}"
        return read_range(self._store, path, piece.position, piece.bytes)


def read_range(store: Store, path: str, position: int, size: int) -> bytes:
    """Bytes of a file in a folder or a bucket; fewer if it ends before."""
    if store.remote:
        return bytes(store.load(path, position, size)[1].to_pybytes())
    # Not mapped: a file that is cut under its reader would end this process.
    handle = os.open(store.path(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(handle, size, position)
        while 0 < len(data) < size:
            more = os.pread(handle, size - len(data), position + len(data))
            if not more:
                break
            data += more
    finally:
        os.close(handle)
    return data


def _piece(spot: FileSpot) -> Piece:
    return Piece(spot.file, spot.position, spot.bytes)


def _key(spot: FileSpot) -> tuple[str, int, str]:
    return spot.file, spot.position, spot.checksum


class DirectReader:
    """Reads files in the folder of a workspace's journals."""

    def __init__(
        self,
        store: Store,
        folder: str,
        kept: KeptRanges[bytes],
        ahead: AheadOfSpots | None = None,
    ) -> None:
        """`ahead` is for a store where each request takes its time."""
        self._store, self._folder, self._kept, self._ahead = store, folder, kept, ahead

    def fetch(self, rows: ManyRows) -> ManyRows:
        """Rows whose messages in files are filled in."""
        rows.fetch(self.load)
        return rows

    def load(self, parts: Sequence[SpotPart]) -> list[bytes]:
        """The bytes of each, as they were written; several at a time where reading takes time."""
        if self._ahead is not None:
            spots = [part.spot for part in parts if _key(part.spot) not in self._kept]
            self._ahead.pieces.need([_piece(spot) for spot in spots])
        return [self._part(part) for part in parts]

    def _part(self, part: SpotPart) -> bytes:
        spot = part.spot
        key = _key(spot)
        data = self._kept.get(key, is_last=part.is_last)
        if data is None:
            data = self._load(spot)
            if not part.is_last:
                self._kept.keep(key, data, len(data))
        return data

    def _load(self, spot: FileSpot) -> bytes:
        try:
            data = self._read(spot)
        except (OSError, StorageError) as error:
            raise SpotUnreadable(f"{spot.file}: {error}") from error
        if len(data) != spot.bytes or xxhash.xxh3_64_hexdigest(data) != spot.checksum:
            raise SpotUnreadable(f"{spot.file} at {spot.position}: other bytes than expected")
        return data

    def _read(self, spot: FileSpot) -> bytes:
        if self._ahead is not None:
            return self._ahead.pieces.take(_piece(spot))
        return read_range(self._store, f"{self._folder}/{spot.file}", spot.position, spot.bytes)
