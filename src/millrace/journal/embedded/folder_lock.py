"""The lock of a folder with journals. It loads little: many processes find that it is taken.

Invariant: one process at a time has it, and the system takes it from one that died.
"""

from __future__ import annotations

import fcntl
import os

from millrace.errors import AlreadyOwned
from millrace.storage import modes


def lock(path: str) -> int:
    """Lock the folder for this process; the system unlocks it when the process dies."""
    handle = modes.opener(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise AlreadyOwned(
            f"another process has the journals in {os.path.dirname(path)} open\n"
            "  to fix: join it, or end it first"
        ) from None
    except BaseException:
        os.close(handle)
        raise
    _locks[handle] = _identity(handle)
    return handle


_locks: dict[int, tuple[int, int] | None] = {}
"""Handles of locks, and which files they were for: by now a number may be another file's."""


def _identity(handle: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(handle)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _let_go() -> None:
    """In a forked process: hold locks no longer than the process that took them."""
    for handle, file in _locks.items():
        if file is not None and _identity(handle) == file:
            os.close(handle)
    _locks.clear()


os.register_at_fork(after_in_child=_let_go)
