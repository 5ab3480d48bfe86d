"""Rows that a reader fetches from the files of the journals itself.

Invariant: no row is given away whose bytes are not those that were written. What cannot be read is
never taken for empty.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from millrace.errors import StorageError
from millrace.journal.core.row_bundles import FileSpot
from millrace.storage.store import Store


class SpotUnreadable(Exception):
    """A file is not there, or not as it was written. The owner knows why."""


class DirectReader:
    """Reads files in the folder of a workspace's journals."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder

    def load(self, spots: Sequence[FileSpot]) -> list[bytes]:
        """The bytes of each, as they were written; several at a time in a bucket."""
        return self._store.each(self._load, spots)

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
