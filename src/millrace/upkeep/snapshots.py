"""Snapshots of a backup: which files a workspace had at one time.

Invariant: a snapshot is made once, whole, after everything that it names is durable.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millrace.errors import Conflict, UserError
from millrace.faults import fault
from millrace.storage import documents, modes
from millrace.storage.documents import Document
from millrace.storage.local import LocalStore
from millrace.storage.store import storage_errors
from millrace.upkeep.backup_objects import FILES, FileEntry

BACKUP_FILE: Final = "backup.json"
LOCK_FILE: Final = "backup.lock"
SNAPSHOTS: Final = "snapshots"
VERSION: Final = 1
_NAME: Final = re.compile(r"([1-9][0-9]*)\.json")
_OBJECT: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One backup of a workspace."""

    number: int
    workspace: str
    created_at_ms: int
    files: Sequence[FileEntry]
    empty: Sequence[str] = ()
    """Files without bytes, by their paths."""
    newest_run: int = 0
    left_out: Sequence[str] = ()
    """What is not in the backup, and why."""
    ledger: str | None = None
    """What kept the ledger of the journals; None if there were none."""

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(entry.bytes for entry in self.files)


def is_backup(folder: str) -> bool:
    """Whether a folder holds backups."""
    return os.path.exists(os.path.join(folder, BACKUP_FILE))


def begin(target: LocalStore, workspace: str) -> None:
    """Make a folder one of backups; refuse one of another workspace, or with other files in it."""
    if not is_backup(target.root):
        others = [name for name in target.names(".") if not name.startswith(".")]
        if set(others) - {LOCK_FILE}:
            raise UserError(
                f"{target.root} is not empty, and holds no backup\n"
                f"  found: {', '.join(sorted(others)[:3])}\n  to fix: give a new folder"
            )
        about = {"version": VERSION, documents.WORKSPACE: workspace}
        target.create(BACKUP_FILE, documents.seal(about), sync=True)
    owner = workspace_of(target)
    if owner != workspace:
        raise UserError(
            f"{target.root} holds backups of another workspace\n"
            f"  found: {owner}, this is {workspace}\n  to fix: give a folder of its own"
        )


def workspace_of(target: LocalStore) -> str:
    """Whose backups a folder holds."""
    data = target.read(BACKUP_FILE)
    if data is None:
        raise UserError(
            f"{target.root} holds no backup\n  found: no {BACKUP_FILE}\n"
            "  to fix: give the folder that `millrace backup` wrote to"
        )
    return documents.load(
        data,
        lambda document: document.text(documents.WORKSPACE),
        where=target.path(BACKUP_FILE),
        what="a folder of backups",
        to_fix="restore it from a copy of the backup",
        version=VERSION,
    )


@contextmanager
def locked(target: LocalStore) -> Iterator[None]:
    """One process at a time makes a backup; the lock dies with it."""
    with storage_errors(f"locking {target.path(LOCK_FILE)}"):
        target.make_folder(".")
        handle = modes.opener(target.path(LOCK_FILE), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another process makes a backup in {target.root}\n  found: its lock\n"
                "  to fix: wait for it, or end it"
            ) from None
        yield
    finally:
        os.close(handle)


def numbers(target: LocalStore) -> list[int]:
    """The snapshots that are there, oldest first."""
    names = map(_NAME.fullmatch, target.names(SNAPSHOTS))
    return sorted(int(name[1]) for name in names if name)


def read(target: LocalStore, number: int | None = None) -> Snapshot | None:
    """A snapshot, the newest by default; None if there is none at all."""
    there = numbers(target)
    if number is None:
        if not there:
            return None
        number = there[-1]
    data = target.read(_path(number))
    if data is None:
        raise UserError(
            f"there is no snapshot {number} in {target.root}\n"
            f"  found: {', '.join(map(str, there)) or 'none'}\n  to fix: give one of these"
        )
    return documents.load(
        data,
        lambda document: _decoded(document, number),
        where=target.path(_path(number)),
        what="a snapshot of a backup",
        to_fix="restore another snapshot",
        version=VERSION,
    )


def write(target: LocalStore, snapshot: Snapshot) -> None:
    """Make a snapshot known."""
    about = {
        "version": VERSION,
        documents.WORKSPACE: snapshot.workspace,
        "number": snapshot.number,
        "created_at_ms": snapshot.created_at_ms,
        "newest_run": snapshot.newest_run,
        "ledger": snapshot.ledger,
        "left_out": list(snapshot.left_out),
        "empty": list(snapshot.empty),
        "files": [[e.path, e.bytes, e.mtime_ns, e.digest] for e in snapshot.files],
    }
    target.make_folder(SNAPSHOTS)
    fault("backup.before_snapshot")
    if not target.create(_path(snapshot.number), documents.seal(about), sync=True):
        raise Conflict(
            f"snapshot {snapshot.number} of {target.root} was made by another process\n"
            "  to fix: run the backup again"
        )
    fault("backup.after_snapshot")


def keep_newest(target: LocalStore, count: int) -> int:
    """Remove all but the newest snapshots, then the files that none of them names."""
    there = numbers(target)
    for number in there[:-count]:
        target.remove_file(_path(number))
    fault("backup.keep.after_snapshots")
    needed = set()
    for number in there[-count:]:
        snapshot = read(target, number)
        needed |= {entry.object for entry in snapshot.files} if snapshot else set()
    removed = 0
    for folder in target.names(FILES):
        for name in target.names(f"{FILES}/{folder}"):
            if f"{FILES}/{folder}/{name}" not in needed:
                target.remove_file(f"{FILES}/{folder}/{name}")
                removed += 1
    return removed


def _path(number: int) -> str:
    return f"{SNAPSHOTS}/{number}.json"


def _decoded(document: Document, number: int) -> Snapshot:
    if document.whole("number") != number:
        raise ValueError(f"it is snapshot {document.whole('number')}")
    return Snapshot(
        number=number,
        workspace=document.text(documents.WORKSPACE),
        created_at_ms=document.whole("created_at_ms"),
        newest_run=document.whole("newest_run"),
        ledger=document.text_or_none("ledger"),
        left_out=[str(text) for text in document.items("left_out")],
        empty=[_inside(path) for path in document.items("empty")],
        files=[_entry(*fields) for fields in document.items("files")],
    )


def _entry(path: object, size: object, mtime_ns: object, digest: object) -> FileEntry:
    if not isinstance(size, int) or not isinstance(mtime_ns, int):
        raise TypeError(f"the size of {path} is {size!r}")
    if not isinstance(digest, str) or not _OBJECT.fullmatch(digest):
        raise ValueError(f"the checksum of {path} is {digest!r}")
    return FileEntry(_inside(path), size, mtime_ns, digest)


def _inside(path: object) -> str:
    """A path of a workspace's file; one that leads outside is none."""
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or {"", ".", ".."} & set(parts):
        raise ValueError(f"a file is named {path!r}")
    return "/".join(parts)
