"""Notices that a workspace changed: by the times of a few files, and by the last record of a log.

Invariant: a change is noticed after `LOOK_S` on a disk and in a database, however many pages are
open: they share each look. What has neither, as an object in a bucket or a lease that runs out, is
looked at again after `AGAIN_S`.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from millrace.errors import MillraceError
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.system.resting_workspace import RestingWorkspace
from millrace.transport.owner import broker_address

LOOK_S: Final = 1.0
AGAIN_S: Final = 5.0

ChangeMark = tuple[tuple[int, int], ...]
"""Times of change and sizes of some files; another one means that something happened."""


class ChangeWatch:
    """Looks for all open pages. For many threads."""

    def __init__(self, workspace: RestingWorkspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._mark: ChangeMark = ()
        self._looked = -LOOK_S

    def mark(self) -> ChangeMark:
        """The mark of the workspace as it is now, or was half a look ago."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= LOOK_S / 2:
                self._mark, self._looked = change_mark(self._workspace), now
            return self._mark


def change_mark(workspace: RestingWorkspace) -> ChangeMark:
    """The mark of a workspace as it is now; of a bucket that of its database, if it has one."""
    try:
        end = workspace.database_end()
    except MillraceError:
        end = None  # The page that is asked for next says what is wrong.
    marks = [] if end is None else [(end, 0)]
    store = workspace.store
    if isinstance(store, LocalStore):
        marks += [_mark(os.path.join(store.root, name)) for name in _names(store)]
    return tuple(marks)


def _names(store: LocalStore) -> list[str]:
    """Files and folders that change when something happens."""
    folder = f"{broker_address.FOLDER}"
    names = [
        f"{folder}/{LEDGER}-wal",
        f"{folder}/{LEDGER}",
        f"{folder}/log",
        layout.SHUFFLE,
        broker_address.HOME_FILE,
    ]
    for run in store.numbers(layout.SHUFFLE)[-1:]:
        of_run = f"{layout.SHUFFLE}/{run}"
        names += [of_run, *(f"{of_run}/{stage}" for stage in store.numbers(of_run)[-4:])]
    return names


def _mark(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
