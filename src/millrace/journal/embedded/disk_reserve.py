"""Disk space that is kept for the saves that free space.

A delete is written to the ledger's log before any file goes, and so needs room itself. A file of
fixed size keeps that room while there is plenty. It is removed when a save that frees space, or an
opening, finds the disk full; other saves then wait until the file could be made again.

Invariant: no save but those that free space uses the reserve's room.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from millrace.storage import modes

RESERVE: Final = "reserve"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WRITE_BYTES: Final = 1 << 16


class Reserve:
    """A file that takes room. Used by one thread at a time."""

    def __init__(self, folder: str, size: int) -> None:
        self._path = os.path.join(folder, RESERVE)
        self._size = size
        self.is_held = False
        """Whether the space for such saves is there."""

    def begin(self) -> None:
        """Take the room, or give it away if the disk has less than that left."""
        if self.room() < self._size:
            self.release()
        else:
            self.hold()

    def hold(self) -> bool:
        """Take the room if it is not taken; whether it is, or cannot be."""
        if self.is_held:
            return True
        try:
            if not os.path.exists(self._path) or os.path.getsize(self._path) != self._size:
                _fill(self._path, self._size)
        except OSError as error:
            self.release()
            # Where files cannot be filled beforehand, a full disk is reported when it is met.
            return error.errno not in _NO_ROOM
        self.is_held = True
        return True

    def hold_rest(self) -> None:
        """Take what room there is, up to the whole: the next opening needs some of it."""
        if not self.hold():
            with contextlib.suppress(OSError):
                _fill(self._path, min(self._size, self.room()))

    def room(self) -> int:
        """Bytes that are free on the disk."""
        disk = os.statvfs(os.path.dirname(self._path))
        return disk.f_bavail * disk.f_frsize

    def release(self) -> None:
        """Give the room away."""
        self.is_held = False
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _fill(path: str, size: int) -> None:
    handle = modes.opener(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
        else:
            for position in range(0, size, _WRITE_BYTES):
                os.pwrite(handle, bytes(min(_WRITE_BYTES, size - position)), position)
            os.ftruncate(handle, size)
    finally:
        os.close(handle)
