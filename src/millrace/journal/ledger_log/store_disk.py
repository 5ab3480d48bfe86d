"""Files of rows in a bucket, as segments ask for them: each is written whole, once.

Small pieces that were just written or read are kept in memory: workers of a job read the same rows
again with each turn, and each read would be a request. No file changes under its name, so that a
kept piece is never old.

Invariant: after `sync_folder` returned, all that was written is in the store. No more than
`S3_KEPT_BYTES_MAX` is kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.config import Config
from millrace.faults import fault
from millrace.journal.block_memory import BlockMemory
from millrace.limits import MIB
from millrace.storage.fetched_ahead import FetchedAhead, Piece
from millrace.storage.store import Store

S3_KEPT_BYTES_MAX: Final = 64 * MIB
"""How much of the journals' rows the owner keeps in memory in front of a bucket."""

S3_KEPT_PIECE_BYTES_MAX: Final = 1 * MIB
"""The largest piece that is kept."""


class RecentPieces:
    """Pieces of files, one of each file, the least recently used ones dropped. For many threads."""

    def __init__(self, bytes_max: int = S3_KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._pieces: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """What is kept."""
        return self._bytes

    def get(self, path: str, position: int, length: int) -> bytes | None:
        """Bytes of a file, if they are kept."""
        with self._lock:
            begin, data = self._pieces.get(path, (0, b""))
            at = position - begin
            if at < 0 or at + length > len(data):
                return None
            self._pieces.move_to_end(path)
        return data[at : at + length]

    def keep(self, path: str, position: int, data: bytes) -> None:
        """Keep bytes of a file, in place of others of it."""
        with self._lock:
            self._drop(path)
            if len(data) > S3_KEPT_PIECE_BYTES_MAX:
                return
            self._pieces[path] = (position, data)
            self._bytes += len(data)
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._pieces)))

    def forget(self, path: str) -> None:
        """A file is gone."""
        with self._lock:
            self._drop(path)

    def _drop(self, path: str) -> None:
        _, data = self._pieces.pop(path, (0, b""))
        self._bytes -= len(data)


class StoreDisk:
    """A `SegmentDisk` over a store. Paths are names in the folder of the journals."""

    def __init__(self, store: Store, folder: str, config: Config) -> None:
        self._store = store
        self._folder = folder
        self._written: dict[str, bytes] = {}
        self._recent = RecentPieces()
        self.ahead = FetchedAhead(
            self._load,
            at_once=config.s3_calls_at_once,
            bytes_max=config.journal_ahead_bytes_max,
        )

    def write(self, path: str, position: int, parts: Iterable[bytes | memoryview]) -> None:
        """See `SegmentDisk.write`: put by `sync_folder`, together with others."""
        assert not position, "files of a store do not grow"
        self._written[path] = b"".join(parts)

    def sync(self, path: str) -> None:
        """See `SegmentDisk.sync`: done by `sync_folder`."""

    def make_folder(self, path: str) -> bool:
        """See `SegmentDisk.make_folder`: folders are only parts of names."""
        del path
        return False

    def sync_folder(self, path: str) -> None:
        """See `SegmentDisk.sync_folder`: put all that was written, several at a time."""
        del path
        written, self._written = self._written, {}
        self._store.each(lambda name: self._put(name, written[name]), list(written))

    def forget(self) -> None:
        """Do not put what was written and is not needed any more."""
        self._written.clear()

    def size(self, path: str) -> int | None:
        """See `SegmentDisk.size`."""
        folder, _, name = path.rpartition("/")
        return self._store.sizes(f"{self._folder}/{folder}", [name]).get(name)

    def cut(self, path: str, length: int) -> None:
        """Not asked for: files are whole."""
        raise AssertionError(f"{path} is whole, and not to be cut to {length}")

    def read(
        self, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes:
        """See `SegmentDisk.read`: a store gives bytes in memory of its own."""
        del memory
        data = self.ahead.take(Piece(path, position, length))
        self._recent.keep(path, position, data)
        return data

    def remove(self, path: str) -> None:
        """See `SegmentDisk.remove`."""
        self._recent.forget(path)
        self._store.remove_file(f"{self._folder}/{path}")

    def upload(self, folder: str, names: Sequence[str], target: str) -> None:
        """Put files of this host's, each whole, several at a time."""

        def put(name: str) -> None:
            self._store.keep(folder, f"{self._folder}/{target}", [name], sync=True)
            path = os.path.join(folder, name)
            if os.path.getsize(path) <= S3_KEPT_PIECE_BYTES_MAX:
                with open(path, "rb") as file:
                    self._recent.keep(f"{target}/{name}", 0, file.read())

        self._store.each(put, names)

    def _load(self, piece: Piece) -> bytes:
        kept = self._recent.get(*piece)
        if kept is not None:
            return kept
        path, position, length = piece
        _, loaded = self._store.load(f"{self._folder}/{path}", position, length)
        return bytes(loaded.to_pybytes())

    def _put(self, path: str, data: bytes) -> None:
        fault("ledger.rows.before_put")
        # A name has its owner's epoch, so it can only be taken by an earlier try of this put.
        self._store.create(f"{self._folder}/{path}", data, sync=True)
        self._recent.keep(path, 0, data)
