"""Notices that a workspace changed, by looking at the times of a few files.

Invariant: a change is noticed after `LOOK_S` on a disk. What has no such file, as an object in a
bucket or a lease that runs out, is looked at again after `AGAIN_S`.
"""

from __future__ import annotations

import os
from typing import Final

from millrace.journal.embedded.segment_reader import LEDGER
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.transport.owner import broker_address

LOOK_S: Final = 1.0
AGAIN_S: Final = 5.0

ChangeMark = tuple[tuple[int, int], ...]
"""Times of change and sizes of some files; another one means that something happened."""


def change_mark(store: Store) -> ChangeMark:
    """The mark of a workspace as it is now; always the same in a bucket."""
    if not isinstance(store, LocalStore):
        return ()
    folder = f"{broker_address.FOLDER}"
    names = [
        f"{folder}/{LEDGER}-wal",
        f"{folder}/{LEDGER}",
        f"{folder}/log",
        layout.SHUFFLE,
        broker_address.HOME_FILE,
    ]
    runs = store.numbers(layout.SHUFFLE)
    for run in runs[-1:]:
        of_run = f"{layout.SHUFFLE}/{run}"
        names += [of_run, *(f"{of_run}/{stage}" for stage in store.numbers(of_run)[-4:])]
    return tuple(_mark(os.path.join(store.root, name)) for name in names)


def _mark(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
