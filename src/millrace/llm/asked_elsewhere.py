"""Locks on questions that are under way, for workers of one workspace on a shared disk.

A question is a byte of one file, locked by the process that asks: the lock goes when that process
ends, however it ends. In a bucket, or where the disk has no locks, each process may ask.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Final

from millrace.errors import MillraceError
from millrace.storage.store import Store

_DIGITS: Final = 15
"""So many hexadecimal digits of a key are its byte: the file never has any."""


class AskedElsewhere:
    """Which questions of a workspace other processes ask now."""

    def __init__(self, store: Store, path: str) -> None:
        self._handle: int | None = None
        if not store.remote:
            with contextlib.suppress(MillraceError, OSError):
                store.create(path, b"")
                self._handle = os.open(store.path(path), os.O_RDWR | os.O_CLOEXEC)

    def claim(self, key: str) -> bool:
        """Whether this process may ask: no other one does. It does so until `release`."""
        if self._handle is None:
            return True
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(key))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return True  # No locks here: asked twice is better than never.
        return True

    def release(self, key: str) -> None:
        """The question is answered, or not asked any more."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, _byte(key))

    def close(self) -> None:
        """Ask without locks from now on."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _byte(key: str) -> int:
    return int(key[:_DIGITS], 16)
