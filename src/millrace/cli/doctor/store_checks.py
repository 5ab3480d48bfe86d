"""Looks at the storage of a workspace: its conditions, its room and its clock.

Invariant: it leaves the workspace as it was. What it tries is removed again, in a folder beside
the workspace's own files.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from typing import Final

from millrace.cli.doctor.doctor_findings import DoctorFinding, fine, missing, note, of_error
from millrace.cli.doctor.host_checks import disk
from millrace.config import Config
from millrace.errors import MillraceError
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.storage.workspace_home import store_at

CLOCK_MS_MAX: Final = 2_000
"""Leases last seconds: clocks further apart than this cut into them."""
_TRY: Final = ".millrace-doctor-"


def look_at_store(path: str, config: Config) -> Iterator[DoctorFinding]:
    """The storage at a path: conditions, clock, and disk where there is one."""
    try:
        store = store_at(path, config)
        identity = store.workspace_id()
    except (MillraceError, OSError) as error:
        yield of_error("workspace", error)
        return
    if identity is None:
        yield note("workspace", f"none at {store.root} yet: the first write makes it")
    else:
        yield fine("workspace", f"{identity} at {store.root}")
    yield from _bucket(store) if store.remote else _folder(store.root)


def _bucket(store: Store) -> Iterator[DoctorFinding]:
    try:
        store.probe()
    except (MillraceError, OSError) as error:
        yield of_error("store conditions", error)
        return
    yield fine("store conditions", "of two creators of one name one wins, and listings are current")
    yield clock("clock of the store", store.now_ms() - _now_ms())


def _folder(root: str) -> Iterator[DoctorFinding]:
    parent = root
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    folder = os.path.join(parent, f"{_TRY}{secrets.token_hex(8)}")
    try:
        os.mkdir(folder)
        try:
            store = LocalStore(folder)
            made = [store.create("name", text, sync=True) for text in (b"first", b"second")]
            kept, changed_ms = store.read("name"), store.changed_at_ms("name")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (MillraceError, OSError) as error:
        yield of_error("store conditions", error, f"give this user the right to write to {parent}")
        return
    if made != [True, False] or kept != b"first" or changed_ms is None:
        found = f"of two creators of one name {sum(made)} won at {parent}"
        yield missing("store conditions", found, "use a disk or NFS 4 with exclusive creation")
        return
    yield fine("store conditions", "of two creators of one name one wins, and files are synced")
    yield clock("clock of the store", changed_ms - _now_ms())
    yield disk("disk of the workspace", parent)


def clock(part: str, apart_ms: int) -> DoctorFinding:
    """How far another clock is ahead of this host's."""
    found = f"{abs(apart_ms) / 1000:.1f} s {'ahead of' if apart_ms > 0 else 'behind'} this host's"
    if abs(apart_ms) > CLOCK_MS_MAX:
        return missing(part, found, "set both clocks by NTP: leases are measured in seconds")
    return fine(part, found)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
