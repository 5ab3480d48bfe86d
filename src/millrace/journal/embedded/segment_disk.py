"""The few things segments ask of a disk, behind a port, so that tests can put a bad one there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from millrace.config import Config
from millrace.journal.block_memory import BlockMemory
from millrace.metrics.process_metrics import SYNC_SECONDS
from millrace.storage import modes
from millrace.storage.fetched_ahead import FetchedAhead, Piece
from millrace.storage.local import sync_file, sync_folder


class SegmentDisk(Protocol):
    """Files of segments. Raises `OSError` as the operating system does."""

    @property
    def ahead(self) -> FetchedAhead | None:
        """Fetches pieces of files before they are read; None: reading takes no time to speak of."""

    def write(self, path: str, position: int, parts: Iterable[bytes | memoryview]) -> None:
        """Write parts one behind the other from a position on; make the file if it is missing."""

    def sync(self, path: str) -> None:
        """Make a file's bytes durable."""

    def make_folder(self, path: str) -> bool:
        """Make a folder whose parent is there; whether it is new."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""

    def size(self, path: str) -> int | None:
        """A file's length; None if it is not there."""

    def cut(self, path: str, length: int) -> None:
        """Cut a file back to a length, durably."""

    def read(
        self, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        """Bytes of a file, maybe in this memory; fewer than asked for if it ends before."""

    def remove(self, path: str) -> None:
        """Remove a file, which may be gone already."""


class LocalDisk:
    """The real disk.

    A written file stays open until it is synced: a failure to write back is reported to
    handles that were open when it happened.
    """

    ahead: FetchedAhead | None = None

    def __init__(self) -> None:
        self._written: dict[str, int] = {}

    def write(self, path: str, position: int, parts: Iterable[bytes | memoryview]) -> None:
        """See `SegmentDisk.write`."""
        handle = self._written.pop(path, None)
        if handle is None:
            handle = modes.opener(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    done = os.pwrite(handle, view, position)
                    position += done
                    view = view[done:]
        except BaseException:
            os.close(handle)
            raise
        self._written[path] = handle

    def sync(self, path: str) -> None:
        """See `SegmentDisk.sync`."""
        handle = self._written.pop(path, None)
        if handle is None:
            sync_file(path)
            return
        try:
            with SYNC_SECONDS.timed():
                os.fsync(handle)
        finally:
            os.close(handle)

    def make_folder(self, path: str) -> bool:
        """See `SegmentDisk.make_folder`."""
        try:
            modes.make_folder(path)
        except FileExistsError:
            return False
        return True

    def sync_folder(self, path: str) -> None:
        """See `SegmentDisk.sync_folder`."""
        sync_folder(path)

    def size(self, path: str) -> int | None:
        """See `SegmentDisk.size`."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def cut(self, path: str, length: int) -> None:
        """See `SegmentDisk.cut`."""
        os.truncate(path, length)
        sync_file(path)

    def read(
        self, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        """See `SegmentDisk.read`."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if memory is not None:
                return _read_into(memory.piece(length), handle, position)
            data = os.pread(handle, length, position)
            while 0 < len(data) < length:
                more = os.pread(handle, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        finally:
            os.close(handle)
        return data

    def remove(self, path: str) -> None:
        """See `SegmentDisk.remove`."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


class NetworkDisk(LocalDisk):
    """A folder on a network file system, where opening a file to read it takes its time."""

    def __init__(self, root: str, config: Config) -> None:
        super().__init__()
        self._root = root
        self.ahead: FetchedAhead = FetchedAhead(
            self._load,
            at_once=config.s3_calls_at_once,
            bytes_max=config.journal_ahead_bytes_max,
        )

    def read(
        self, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        """See `SegmentDisk.read`."""
        del memory
        return self.ahead.take(Piece(os.path.relpath(path, self._root), position, length))

    def _load(self, piece: Piece) -> bytes:
        path = os.path.join(self._root, piece.path)
        return bytes(super().read(path, piece.position, piece.bytes))


def _read_into(memory: memoryview, handle: int, position: int) -> memoryview:
    done = 0
    while done < len(memory):
        more = os.preadv(handle, [memory[done:]], position + done)
        if not more:
            return memory[:done]
        done += more
    return memory
