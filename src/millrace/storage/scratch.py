"""Folders on this host's disk for one piece of work: gone at its end, or swept if it was killed.

Invariant: a folder that can be found by its prefix is locked as long as its owner lives, so only
those of the dead are swept. On a disk without locks nothing is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Final

from millrace.errors import StorageError
from millrace.storage import modes
from millrace.storage.store import storage_errors

_MAKING: Final = "millrace-new-"
_LOCK: Final = "lock"
_FOLDER_VARIABLE: Final = "MILLRACE_FOLDER"


@contextlib.contextmanager
def scratch_folder(parent: str, prefix: str) -> Iterator[str]:
    """A new folder of this prefix; what killed ones left of it in the same place goes first."""
    with storage_errors(f"making a folder in {parent}"):
        modes.make_folders(parent)
        _sweep(parent, prefix)
        folder, lock = _make(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def own_folder() -> str:
    """The folder of this user's tasks on this host's disk; no other user may have made it."""
    parent = os.environ.get(_FOLDER_VARIABLE) or tempfile.gettempdir()
    folder = os.path.join(os.path.abspath(os.path.expanduser(parent)), f"millrace-{os.getuid()}")
    with storage_errors(f"making folder {folder}"):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owner = os.lstat(folder).st_uid
    if owner != os.getuid():
        raise StorageError(
            f"folder {folder} belongs to another user\n  found: user {owner}\n"
            f"  to fix: remove it, or name another place in {_FOLDER_VARIABLE}"
        )
    return folder


def _make(parent: str, prefix: str) -> tuple[str, int]:
    made = tempfile.mkdtemp(prefix=_MAKING, dir=parent)
    lock = os.open(os.path.join(made, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # A disk without locks.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder = os.path.join(parent, prefix + os.path.basename(made).removeprefix(_MAKING))
    os.rename(made, folder)  # Only now can it be taken for a dead one's, and it is locked.
    return folder, lock


def _sweep(parent: str, prefix: str) -> None:
    for name in os.listdir(parent):
        if not name.startswith(prefix):
            continue
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):  # Somebody else's, or going away.
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
