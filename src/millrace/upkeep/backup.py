"""Makes a backup of a workspace while it is being written.

The ledger of the journals is copied as of one moment, and then the files that it names. If one of
them was removed meanwhile, by a truncation, the ledger is copied again. Large values are copied
before the ledger and after it: a value that a row refers to was there before the row.

Invariant: a snapshot is consistent. Each row in it that was acknowledged before the backup began is
there with its large values, and each manifest with its map outputs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import Conflict, UserError
from millrace.faults import fault
from millrace.ids import QueryId
from millrace.journal.embedded import journals_at_rest
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.pipeline.large import large_values
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.storage.scratch import scratch_folder
from millrace.storage.store import storage_errors
from millrace.transport.owner import broker_address
from millrace.upkeep import snapshots
from millrace.upkeep.backup_objects import PROGRESS, BackupObjects, FileEntry, FileShortened
from millrace.upkeep.journal_folder import journal_place
from millrace.upkeep.snapshots import Snapshot

_ROUNDS_MAX: Final = 20
"""How often the ledger is copied again because journals were truncated meanwhile."""
_INDEXES: Final = frozenset((layout.INDEX_BIN, layout.INDEX_JSON))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """What a backup copied."""

    snapshot: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    missing: tuple[str, ...]
    """Files that the workspace names and does not have."""
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Backup:
    """One backup under way."""

    source: LocalStore
    objects: BackupObjects
    known: dict[str, FileEntry]
    """What an earlier backup has copied, by path."""
    note: Callable[[FileEntry], None]
    files: dict[str, FileEntry] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, source: str, path: str, length: int | None = None) -> bool:
        """Copy a file unless the backup has it; False if it is gone, or too short."""
        try:
            with storage_errors(f"reading {source}"):
                try:
                    status = os.stat(source)
                    entry = self.known.get(path)
                    size = status.st_size if length is None else length
                    is_same = entry is not None and (entry.bytes, entry.mtime_ns) == (
                        size,
                        status.st_mtime_ns,
                    )
                    if entry is None or not is_same or not self.objects.has(entry):
                        entry = self.objects.put(source, path, length)
                        self.note(entry)
                    else:
                        self.objects.on_bytes(size)
                except (FileNotFoundError, NotADirectoryError):
                    return False
        except FileShortened:
            return False
        self.files[path] = entry
        return True


def make_backup(
    source: LocalStore,
    target: LocalStore,
    *,
    keep: int | None = None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> BackupReport:
    """Copy a workspace to a folder of backups; only new files are copied."""
    workspace = source.workspace_id()
    assert workspace is not None, "the caller has looked"
    _refuse_inside(source, target)
    _refuse_log(source)
    objects = BackupObjects(target.root, on_bytes)
    with snapshots.locked(target):
        snapshots.begin(target, workspace)
        before = snapshots.read(target)
        known = {entry.path: entry for entry in before.files} if before else {}
        known |= {entry.path: entry for entry in objects.progress()}
        with objects.noting() as note:
            backup = _Backup(source, objects, known, note)
            _copy_all(backup)
        objects.sync()
        snapshot = Snapshot(
            number=1 + (before.number if before else 0),
            workspace=workspace,
            created_at_ms=time.time_ns() // 1_000_000,
            files=list(backup.files.values()),
            empty=backup.empty,
            newest_run=max(source.numbers(layout.SHUFFLE), default=0),
            left_out=[*backup.left_out, *(f"{path}: it was missing" for path in backup.missing)],
        )
        snapshots.write(target, snapshot)
        target.remove_file(PROGRESS)
        if keep is not None:
            snapshots.keep_newest(target, keep)
    return BackupReport(
        snapshot=snapshot.number,
        files=len(snapshot.files) + len(snapshot.empty),
        bytes=snapshot.bytes,
        copied_files=objects.copied_files,
        copied_bytes=objects.copied_bytes,
        missing=tuple(backup.missing),
        left_out=tuple(backup.left_out),
    )


def _copy_all(backup: _Backup) -> None:
    source = backup.source
    backup.add(source.path(layout.WORKSPACE_FILE), layout.WORKSPACE_FILE)
    _copy_large(backup)
    _copy_journals(backup)
    fault("backup.after_journals")
    _copy_large(backup)
    for query_id in map(QueryId, source.numbers(layout.SHUFFLE)):
        _copy_run(backup, query_id)
    for path in _below(source, layout.FINGERPRINTS):
        backup.empty.append(path)
    for path in _below(source, layout.INPUTS):
        if path.endswith(".arrow"):
            backup.add(source.path(path), path)
    for path in _below(source, "jobs"):
        if path.endswith(".html"):
            backup.add(source.path(path), path)


def _copy_large(backup: _Backup) -> None:
    for path in _below(backup.source, large_values.ROOT):
        name = path.removesuffix(large_values.GONE)
        if not path.endswith(large_values.DRAFT) and name not in backup.files:
            backup.add(backup.source.path(path), name)


def _copy_journals(backup: _Backup) -> None:
    """Copy the ledger, then the files that it names; again if one was removed meanwhile."""
    place = journal_place(backup.source)
    if place.folder is None:
        if broker_address.recorded(backup.source) is not None:
            backup.left_out.append(place.left_out)
        return
    ledger_path = f"{broker_address.FOLDER}/{LEDGER}"
    for _ in range(_ROUNDS_MAX):
        with scratch_folder(backup.objects.store.root, ".ledger-") as scratch:
            copy = os.path.join(scratch, LEDGER)
            journals_at_rest.copy_ledger(place.folder, copy)
            fault("backup.after_ledger")
            gone = _copy_segments(backup, place.folder, journals_at_rest.files_named(copy))
            if all(journals_at_rest.is_named(place.folder, file) for file in gone):
                backup.missing += [f"{broker_address.FOLDER}/{file}" for file in gone]
                backup.add(copy, ledger_path)
                return
    raise Conflict(
        f"the journals in {place.folder} were truncated all the time while they were copied\n"
        f"  found: {_ROUNDS_MAX} copies of the ledger that were too old at once\n"
        "  to fix: run the backup again; it goes on from here"
    )


def _copy_segments(backup: _Backup, folder: str, named: dict[str, int]) -> list[str]:
    """Copy what is published of each file; those that are gone."""
    prefix = f"{broker_address.FOLDER}/"
    for path in [path for path in backup.files if path.startswith(prefix)]:
        if path.removeprefix(prefix) not in named:
            del backup.files[path]  # Of an earlier copy of the ledger.
    return [
        file
        for file, size in named.items()
        if not backup.add(os.path.join(folder, file), prefix + file, size)
    ]


def _copy_run(backup: _Backup, query_id: QueryId) -> None:
    """Copy a run: what it decided first, then its finished map outputs."""
    source = backup.source
    folder = layout.query_folder(query_id)
    backup.add(source.path(layout.query_path(query_id)), layout.query_path(query_id))
    for stage in source.numbers(folder):
        for name in (layout.MANIFEST_FILE, layout.REUSING_FILE):
            path = f"{folder}/{stage}/{name}"
            backup.add(source.path(path), path)
        for task in source.numbers(f"{folder}/{stage}"):
            for attempt in source.numbers(f"{folder}/{stage}/{task}"):
                _copy_attempt(backup, f"{folder}/{stage}/{task}/{attempt}")
    if not source.exists(layout.query_path(query_id)):
        # It was removed meanwhile; attempts that other runs rely on stay.
        for stage in source.numbers(folder):
            backup.files.pop(f"{folder}/{stage}/{layout.MANIFEST_FILE}", None)
            backup.files.pop(f"{folder}/{stage}/{layout.REUSING_FILE}", None)
        backup.files.pop(layout.query_path(query_id), None)


def _copy_attempt(backup: _Backup, folder: str) -> None:
    """Copy a finished map output: an attempt writes its index last."""
    names = set(backup.source.names(folder))
    if not names & _INDEXES:
        return
    payload = sorted(name for name in names if layout.is_payload_name(name))
    copied = [
        f"{folder}/{name}"
        for name in (*payload, *sorted(names & _INDEXES))
        if backup.add(backup.source.path(f"{folder}/{name}"), f"{folder}/{name}")
    ]
    if not backup.source.exists(folder):
        for path in copied:
            backup.files.pop(path, None)


def _below(source: LocalStore, folder: str) -> Iterator[str]:
    """All files below a folder, by their paths within the workspace."""
    for above, _, names in os.walk(source.path(folder)):
        for name in sorted(names):
            path = os.path.join(above, name)
            if not os.path.islink(path):
                yield os.path.relpath(path, source.root)


def _refuse_log(source: LocalStore) -> None:
    log = journal_place(source).log
    if log is not None:
        raise UserError(
            "a backup does not copy journals whose ledger is a log\n"
            f"  found: ledger {log!r}\n"
            "  to fix: copy the whole folder while no process writes; a ledger in PostgreSQL is "
            "copied by its own tools at the same time"
        )


def _refuse_inside(source: LocalStore, target: LocalStore) -> None:
    inner, outer = os.path.realpath(target.root), os.path.realpath(source.root)
    if f"{inner}/".startswith(f"{outer}/") or f"{outer}/".startswith(f"{inner}/"):
        raise UserError(
            f"a backup of {source.root} cannot lie in {target.root}\n"
            "  found: one is within the other\n  to fix: give a folder elsewhere"
        )
