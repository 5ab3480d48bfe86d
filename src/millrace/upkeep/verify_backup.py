"""Checks a folder of backups: every snapshot, and every file that one of them names."""

from __future__ import annotations

from collections.abc import Callable

from millrace.storage.local import LocalStore
from millrace.upkeep import snapshots
from millrace.upkeep.backup_objects import BackupObjects
from millrace.upkeep.findings import Findings, WorkspaceCheck


def verify_backup(
    target: LocalStore, on_bytes: Callable[[int], None] = lambda _count: None
) -> WorkspaceCheck:
    """Check all snapshots; a file that several of them name is read once."""
    found = Findings()
    objects = BackupObjects(target.root, on_bytes)
    seen: set[str] = set()
    with found.checking(target.path(snapshots.BACKUP_FILE)):
        snapshots.workspace_of(target)
    for number in snapshots.numbers(target):
        with found.checking(target.path(f"{snapshots.SNAPSHOTS}/{number}.json")):
            snapshot = snapshots.read(target, number)
            assert snapshot is not None
            for text in snapshot.left_out:
                found.note(f"snapshot {number}: {text}")
            for entry in snapshot.files:
                if entry.object in seen:
                    continue
                seen.add(entry.object)
                with found.checking(target.path(entry.object)):
                    objects.check(entry)
                    found.looked(entry.bytes)
    return found.report()
