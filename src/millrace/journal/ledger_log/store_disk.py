"""Files of rows in a bucket, as segments ask for them: each is written whole, once.

Invariant: after `sync_folder` returned, all that was written is in the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.faults import fault
from millrace.storage.store import Store


class StoreDisk:
    """A `SegmentDisk` over a store. Paths are names in the folder of the journals."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._written: dict[str, bytes] = {}

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

    def read(self, path: str, position: int, length: int) -> bytes:
        """See `SegmentDisk.read`."""
        _, data = self._store.load(f"{self._folder}/{path}", position, length)
        return bytes(data.to_pybytes())

    def remove(self, path: str) -> None:
        """See `SegmentDisk.remove`."""
        self._store.remove_file(f"{self._folder}/{path}")

    def upload(self, folder: str, name: str, target: str) -> None:
        """Put a file of this host's, whole."""
        self._store.keep(folder, f"{self._folder}/{target}", [name], sync=True)

    def _put(self, path: str, data: bytes) -> None:
        fault("ledger.rows.before_put")
        # A name has its owner's epoch, so it can only be taken by an earlier try of this put.
        self._store.create(f"{self._folder}/{path}", data, sync=True)
