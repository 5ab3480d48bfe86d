"""Disks that fail: one that forgets bytes that were not synced, one that refuses calls.

`LyingDisk` stands where segments are written. Everything works until `crash()`: then bytes that
were not synced are gone or torn, files whose folder was not synced do not exist, and files whose
removal was not synced are back. What a ledger writes itself does not go through here.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable

from millrace.journal.embedded.segment_disk import LocalDisk


class LyingDisk(LocalDisk):
    """Remembers the files that a power cut would leave.

    Example:
        >>> import os
        >>> from millrace.testing.bad_disks import LyingDisk
        >>> disk = LyingDisk(os.getcwd())
        >>> disk.write(os.path.abspath("segment"), 0, [b"never synced"])
        >>> disk.crash(os.getcwd())
        >>> os.path.exists("segment")
        False
    """

    def __init__(self, root: str, seed: int = 0) -> None:
        """Everything that is below `root` now counts as durable."""
        super().__init__()
        self._root = root
        self._random = random.Random(seed)  # noqa: S311 - a seed replays it
        self._durable: dict[str, bytes] = {}
        """Bytes of files as of their last sync; names are another matter."""
        self._names: dict[str, set[str]] = {}
        """Names in a folder as of its last sync."""
        for folder, folders, files in os.walk(root):
            self._names[folder] = {*folders, *files}
            for name in files:
                path = os.path.join(folder, name)
                self._durable[path] = _content(path)

    def sync(self, path: str) -> None:
        """Make the bytes of a file durable, not its name."""
        super().sync(path)
        self._durable[path] = _content(path)

    def cut(self, path: str, length: int) -> None:
        """Cut a file back, durably."""
        super().cut(path, length)
        self._durable[path] = _content(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        super().sync_folder(path)
        self._names[path] = set(os.listdir(path))

    def crash(self, below: str) -> None:
        """Leave below a folder what a power cut would: synced bytes, or more of them, torn.

        Example:
            >>> import os
            >>> from millrace.testing.bad_disks import LyingDisk
            >>> disk, path = LyingDisk(os.getcwd()), os.path.abspath("segment")
            >>> disk.write(path, 0, [b"synced"])
            >>> disk.sync(path)
            >>> disk.sync_folder(os.getcwd())
            >>> disk.crash(os.getcwd())
            >>> os.path.getsize(path)
            6
        """
        for folder, _, files in os.walk(below, topdown=False):
            for name in files:
                path = os.path.join(folder, name)
                if self._is_named(path):
                    self._tear(path)
                else:
                    os.unlink(path)
            if not self._is_named(folder) and not os.listdir(folder):
                os.rmdir(folder)
        for path, content in self._durable.items():
            is_below = path.startswith(below + os.sep)
            if is_below and not os.path.exists(path) and self._is_named(path):
                with open(path, "wb") as file:
                    file.write(content)

    def _is_named(self, path: str) -> bool:
        """Whether a power cut leaves this name and those of all folders above it."""
        while path != self._root:
            folder, name = os.path.split(path)
            if name not in self._names.get(folder, ()):
                return False
            path = folder
        return True

    def _tear(self, path: str) -> None:
        """Bytes since the last sync: none, some, or zeros in their place."""
        kept = self._durable.get(path, b"")
        more = _content(path)[len(kept) :]
        torn = more[: self._random.randint(0, len(more))] if more else b""
        tail = self._random.choice([b"", torn, bytes(len(torn))])
        with open(path, "wb") as file:
            file.write(kept + tail)


class RefusingDisk(LocalDisk):
    """Fails at the n-th call of an operation, and works otherwise.

    Example:
        >>> import os
        >>> from millrace.testing.bad_disks import RefusingDisk
        >>> RefusingDisk("sync", at=1).sync(os.path.abspath("segment"))
        Traceback (most recent call last):
        OSError: [Errno 5] Input/output error: ...
    """

    def __init__(self, operation: str, at: int = 1, code: int = errno.EIO) -> None:
        """`operation` is "write", "sync", "sync_folder" or "cut"; `at` counts from 1."""
        super().__init__()
        self._operation = operation
        self._left = at
        self._code = code

    def write(self, path: str, position: int, parts: Iterable[bytes | memoryview]) -> None:
        """Write, or write half and fail."""
        parts = list(parts)
        if self._is_due("write"):
            super().write(path, position, [bytes(parts[0])[: len(parts[0]) // 2]])
            raise OSError(self._code, os.strerror(self._code), path)
        super().write(path, position, parts)

    def sync(self, path: str) -> None:
        """Sync a file, or fail."""
        self._may_refuse("sync", path)
        super().sync(path)

    def sync_folder(self, path: str) -> None:
        """Sync a folder, or fail."""
        self._may_refuse("sync_folder", path)
        super().sync_folder(path)

    def cut(self, path: str, length: int) -> None:
        """Cut a file, or fail."""
        self._may_refuse("cut", path)
        super().cut(path, length)

    def _is_due(self, operation: str) -> bool:
        if operation != self._operation:
            return False
        self._left -= 1
        return self._left == 0

    def _may_refuse(self, operation: str, path: str) -> None:
        if self._is_due(operation):
            raise OSError(self._code, os.strerror(self._code), path)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
