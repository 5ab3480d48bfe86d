"""Rows that a reader fetches from the files of the journals itself.

A range that is taken in parts is fetched and checked once, within a limit of memory.

Invariant: no row is given away whose bytes are not those that were written. What cannot be read is
never taken for empty.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from millrace.errors import StorageError
from millrace.journal.core.row_bundles import FileSpot, ManyRows, SpotPart
from millrace.journal.kept_ranges import KeptRanges
from millrace.storage.store import Store


class SpotUnreadable(Exception):
    """A file is not there, or not as it was written. The owner knows why."""


class DirectReader:
    """Reads files in the folder of a workspace's journals."""

    def __init__(self, store: Store, folder: str, kept: KeptRanges[bytes]) -> None:
        self._store, self._folder, self._kept = store, folder, kept

    def fetch(self, rows: ManyRows) -> ManyRows:
        """Rows whose messages in files are filled in."""
        rows.fetch(self.load)
        return rows

    def load(self, parts: Sequence[SpotPart]) -> list[bytes]:
        """The bytes of each, as they were written; several at a time in a bucket."""
        return self._store.each(self._part, parts)

    def _part(self, part: SpotPart) -> bytes:
        spot = part.spot
        key = (spot.file, spot.position, spot.checksum)
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
        relative = f"{self._folder}/{spot.file}"
        if self._store.remote:
            return bytes(self._store.load(relative, spot.position, spot.bytes)[1].to_pybytes())
        # Not mapped: a file that is cut under its reader would end this process.
        handle = os.open(self._store.path(relative), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(handle, spot.bytes, spot.position)
            while 0 < len(data) < spot.bytes:
                more = os.pread(handle, spot.bytes - len(data), spot.position + len(data))
                if not more:
                    break
                data += more
        finally:
            os.close(handle)
        return data
