"""Makes a backup of a workspace while it is being written.

The ledger of the journals is copied as of one moment, and then the files that it names. If one of
them was removed meanwhile, by a truncation, the ledger is copied again. Large values are copied
before the ledger and after it: a value that a row refers to was there before the row.

Invariant: a snapshot is consistent. Each row in it that was acknowledged before the backup began is
there with its large values, and each manifest with its map outputs.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from millrace.config import Config
from millrace.errors import Conflict, UserError
from millrace.faults import fault
from millrace.ids import QueryId
from millrace.journal.embedded import journals_at_rest
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.pipeline.large import large_values
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.storage.scratch import scratch_folder
from millrace.storage.store import Store
from millrace.transport.owner import broker_address
from millrace.upkeep import snapshots
from millrace.upkeep.backup_objects import PROGRESS, BackupObjects, FileEntry, FileShortened
from millrace.upkeep.backup_source import BackupSource, FolderSource, source_of
from millrace.upkeep.journal_folder import KeptJournals, NoJournals, journal_files
from millrace.upkeep.snapshots import Snapshot

_ROUNDS_MAX: Final = 20
"""How often the ledger is copied again because journals were truncated meanwhile."""
_ATTEMPT_PARTS: Final = 3
"""Stage, map task and attempt are the folders above an output's files."""
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

    store: Store
    source: BackupSource
    objects: BackupObjects
    known: dict[str, FileEntry]
    """What an earlier backup has copied, by path."""
    note: Callable[[FileEntry], None]
    files: dict[str, FileEntry] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, path: str) -> bool:
        """Copy a file unless the backup has it; False if it is gone."""
        return self.add_from(self.source, path, path)

    def add_all(self, paths: Iterable[str]) -> list[str]:
        """Copy files, several at a time from a bucket; those that were there."""
        listed = list(paths)
        return [
            path
            for path, is_there in zip(listed, self.source.each(self.add, listed), strict=True)
            if is_there
        ]

    def add_from(
        self, source: BackupSource, path: str, name: str, length: int | None = None
    ) -> bool:
        """Copy a file, or its first bytes, under a name; False if it is gone, or too short."""
        looked = source.look(path)
        if looked is None:
            return False
        entry = self.known.get(name)
        size = looked.bytes if length is None else length
        is_same = entry is not None and (entry.bytes, entry.mtime_ns) == (size, looked.changed)
        try:
            if entry is None or not is_same or not self.objects.has(entry):
                entry = self.objects.put(source, path, name=name, length=length)
                self.note(entry)
            else:
                self.objects.on_bytes(size)
        except (FileNotFoundError, FileShortened):
            return False
        self.files[name] = entry
        return True


def make_backup(
    source: Store,
    target: LocalStore,
    config: Config,
    *,
    keep: int | None = None,
    ledger: str | None = None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> BackupReport:
    """Copy a workspace to a folder of backups; only new files are copied.

    `ledger` is the address of the ledger, if it is needed beside what is recorded.
    """
    workspace = source.workspace_id()
    assert workspace is not None, "the caller has looked"
    _refuse_inside(source, target)
    journals = journal_files(source, config, ledger)
    objects = BackupObjects(target.root, on_bytes)
    with snapshots.locked(target):
        snapshots.begin(target, workspace)
        before = snapshots.read(target)
        known = {entry.path: entry for entry in before.files} if before else {}
        known |= {entry.path: entry for entry in objects.progress()}
        with objects.noting() as note:
            backup = _Backup(source, source_of(source), objects, known, note)
            _copy_all(backup, journals)
        objects.sync()
        snapshot = Snapshot(
            number=1 + (before.number if before else 0),
            workspace=workspace,
            created_at_ms=time.time_ns() // 1_000_000,
            files=list(backup.files.values()),
            empty=backup.empty,
            newest_run=max(source.numbers(layout.SHUFFLE), default=0),
            left_out=[*backup.left_out, *(f"{path}: it was missing" for path in backup.missing)],
            ledger=None if isinstance(journals, NoJournals) else journals.ledger,
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


def _copy_all(backup: _Backup, journals: KeptJournals | NoJournals) -> None:
    source = backup.source
    backup.add(layout.WORKSPACE_FILE)
    _copy_large(backup)
    if isinstance(journals, NoJournals):
        if journals.is_elsewhere:
            backup.left_out.append(journals.reason)
    else:
        _copy_journals(backup, journals)
    fault("backup.after_journals")
    _copy_large(backup)
    for query_id in map(QueryId, backup.store.numbers(layout.SHUFFLE)):
        _copy_run(backup, query_id)
    backup.empty += source.below(layout.FINGERPRINTS)
    backup.add_all(path for path in source.below(layout.INPUTS) if path.endswith(".arrow"))
    backup.add_all(path for path in source.below("jobs") if path.endswith(".html"))


def _copy_large(backup: _Backup) -> None:
    values = [
        p for p in backup.source.below(large_values.ROOT) if not p.endswith(large_values.DRAFT)
    ]
    going = [path for path in values if path.endswith(large_values.GONE)]
    backup.add_all(path for path in values if path not in going and path not in backup.files)
    for path in going:
        # Renamed by a clean-up, which may yet keep it.
        name = path.removesuffix(large_values.GONE)
        if name not in backup.files:
            backup.add_from(backup.source, path, name)


def _copy_journals(backup: _Backup, journals: KeptJournals) -> None:
    """Copy the ledger, then the files that it names; again if one was removed meanwhile."""
    for _ in range(_ROUNDS_MAX):
        with scratch_folder(backup.objects.store.root, ".ledger-") as scratch:
            copy = os.path.join(scratch, LEDGER)
            journals.copy_ledger(copy)
            fault("backup.after_ledger")
            gone = _copy_segments(backup, journals, journals_at_rest.files_named(copy))
            if not gone or set(gone) <= set(journals.files_now()):
                backup.missing += [f"{broker_address.FOLDER}/{file}" for file in gone]
                name = f"{broker_address.FOLDER}/{LEDGER}"
                backup.add_from(FolderSource(LocalStore(scratch)), LEDGER, name)
                return
    raise Conflict(
        f"the journals in {journals.name} were truncated all the time while they were copied\n"
        f"  found: {_ROUNDS_MAX} copies of the ledger that were too old at once\n"
        "  to fix: run the backup again; it goes on from here"
    )


def _copy_segments(backup: _Backup, journals: KeptJournals, named: dict[str, int]) -> list[str]:
    """Copy what is published of each file; those that are gone."""
    prefix = f"{broker_address.FOLDER}/"
    for path in [path for path in backup.files if path.startswith(prefix)]:
        if path.removeprefix(prefix) not in named:
            del backup.files[path]  # Of an earlier copy of the ledger.
    source = source_of(journals.store)
    if journals.store.remote:
        # One listing in place of a request for each file.
        for _ in source.below(journals.folder):
            pass
    files = list(named)
    are_there = source.each(
        lambda file: backup.add_from(
            source, posixpath.normpath(f"{journals.folder}/{file}"), prefix + file, named[file]
        ),
        files,
    )
    return [file for file, is_there in zip(files, are_there, strict=True) if not is_there]


def _copy_run(backup: _Backup, query_id: QueryId) -> None:
    """Copy a run: what it decided first, then its finished map outputs."""
    folder = layout.query_folder(query_id)
    decided = [path for path in backup.source.below(folder) if _is_decision(folder, path)]
    backup.add_all(decided)
    outputs = _finished_outputs(folder, backup.source.below(folder))
    copied = backup.add_all(outputs)
    if not copied and not decided:
        return
    there = set(backup.source.below(folder))
    attempts = {os.path.dirname(path) for path in there}
    for path in copied:
        if os.path.dirname(path) not in attempts:
            backup.files.pop(path, None)
    if layout.query_path(query_id) not in there:
        # It was removed meanwhile; attempts that other runs rely on stay.
        for path in decided:
            backup.files.pop(path, None)


def _is_decision(folder: str, path: str) -> bool:
    match path.removeprefix(f"{folder}/").split("/"):
        case [layout.QUERY_FILE]:
            return True
        case [stage, layout.MANIFEST_FILE | layout.REUSING_FILE]:
            return layout.number(stage) is not None
        case _:
            return False


def _finished_outputs(folder: str, paths: Iterable[str]) -> list[str]:
    """The files of finished map outputs, the index of each behind its rows."""
    attempts: dict[str, list[str]] = {}
    for path in paths:
        match path.removeprefix(f"{folder}/").split("/"):
            case [*numbers, name] if len(numbers) == _ATTEMPT_PARTS:
                is_part = name in _INDEXES or layout.is_payload_name(name)
                if is_part and None not in map(layout.number, numbers):
                    attempts.setdefault(os.path.dirname(path), []).append(name)
            case _:
                continue
    return [
        f"{attempt}/{name}"
        for attempt, names in attempts.items()
        if _INDEXES & set(names)
        for name in sorted(names, key=lambda name: (name in _INDEXES, name))
    ]


def _refuse_inside(source: Store, target: LocalStore) -> None:
    if source.remote:
        return
    inner, outer = os.path.realpath(target.root), os.path.realpath(source.root)
    if f"{inner}/".startswith(f"{outer}/") or f"{outer}/".startswith(f"{inner}/"):
        raise UserError(
            f"a backup of {source.root} cannot lie in {target.root}\n"
            "  found: one is within the other\n  to fix: give a folder elsewhere"
        )
