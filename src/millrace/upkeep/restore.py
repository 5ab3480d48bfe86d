"""Makes a workspace of a backup.

A restored workspace has a token of its own, and by default an id of its own: the original may still
live, and two workspaces of one id would share folders of hosts and the keys of paid calls. Where
the original is gone for good, `same_id` keeps its id.

A ledger that was one kind may be restored as another: its tables are the same.

Invariant: a folder becomes a workspace with its last file. A restore that was interrupted is begun
again, and nothing that others made is overwritten.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from millrace.config import Config
from millrace.errors import UserError
from millrace.faults import fault
from millrace.ids import QueryId
from millrace.journal.embedded import journals_at_rest
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.journal.ledger_log import log_at_rest
from millrace.journal.ledger_log.decision_log import DecisionLog
from millrace.storage import documents, layout, modes, workspace_file
from millrace.storage.local import LocalStore, sync_folder
from millrace.storage.objects.object_store import PROBE
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.store import Store, storage_errors
from millrace.storage.workspace_home import RESTORING_FILE
from millrace.storage.workspace_place import record_place
from millrace.transport.owner import broker_address
from millrace.upkeep import snapshots
from millrace.upkeep.backup_objects import BackupObjects, FileEntry
from millrace.upkeep.snapshots import Snapshot

_RUNS_SKIPPED: Final = 1_000_000
"""Numbers that the original may have given to runs after the backup."""
_LEDGER_PATH: Final = f"{broker_address.FOLDER}/{LEDGER}"
_SCRATCH: Final = "restore-"
_DOCUMENTS: Final = (layout.MANIFEST_FILE, layout.QUERY_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What was restored."""

    workspace: str
    """The id of the restored workspace."""
    snapshot: int
    created_at_ms: int
    files: int
    bytes: int
    left_out: tuple[str, ...]


def restore(
    source: LocalStore,
    target: Store,
    config: Config,
    *,
    number: int | None = None,
    same_id: bool = False,
    ledger: str | None = None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> RestoreReport:
    """Make a workspace of the newest backup, or of the one with this number.

    `ledger` is what is to keep the ledger of the journals; by default what kept the original's.
    """
    original = snapshots.workspace_of(source)
    snapshot = snapshots.read(source, number)
    if snapshot is None:
        raise UserError(
            f"{source.root} holds no whole backup\n  found: one that was interrupted\n"
            "  to fix: run `millrace backup` again"
        )
    objects = BackupObjects(source.root, on_bytes)
    ledger = _ledger(target, snapshot, ledger)
    target.probe()
    workspace_id = _begin(source, target, snapshot, original if same_id else None)
    mode = None if target.remote else _mode(objects, snapshot)
    target.each(
        lambda entry: _restore_file(objects, entry, target, None if same_id else workspace_id),
        [e for e in snapshot.files if e.path not in (layout.WORKSPACE_FILE, _LEDGER_PATH)],
    )
    for path in snapshot.empty:
        target.make_folder(os.path.dirname(path))
    target.each(lambda path: target.create(path, b""), snapshot.empty)
    _restore_journals(objects, target, snapshot, workspace_id, ledger, config)
    _claim_numbers(target, snapshot, same_id=same_id)
    if isinstance(target, LocalStore):
        if mode is not None:
            _set_modes(target.root, mode)
        _sync_folders(target.root)
    fault("restore.before_workspace")
    target.create(
        layout.WORKSPACE_FILE, workspace_file.encode(workspace_id, mode), sync=True, mode=mode
    )
    record_place(target)
    target.remove_file(RESTORING_FILE)
    return RestoreReport(
        workspace=workspace_id,
        snapshot=snapshot.number,
        created_at_ms=snapshot.created_at_ms,
        files=len(snapshot.files) + len(snapshot.empty),
        bytes=snapshot.bytes,
        left_out=tuple(snapshot.left_out),
    )


def _ledger(target: Store, snapshot: Snapshot, ledger: str | None) -> str:
    """What is to keep the ledger: as asked for, else as the original's."""
    if ledger is not None:
        broker_address.check_ledger(ledger, broker_address.EMBEDDED, is_bucket=target.remote)
        return ledger
    original = snapshot.ledger or broker_address.SQLITE
    is_kept = not target.remote or original != broker_address.SQLITE
    return original if is_kept else broker_address.FILES


def _begin(source: LocalStore, target: Store, snapshot: Snapshot, same_id: str | None) -> str:
    """Claim the folder for this restore; the id that the workspace will have."""
    note = {"version": 1, "backup": source.root, "snapshot": snapshot.number}
    data = target.read(RESTORING_FILE)
    if data is None:
        is_there = target.remote or os.path.isdir(target.root)
        there = target.names(".") if is_there else []
        if set(there) - {PROBE}:
            raise UserError(
                f"{target.root} is not empty, and nothing is overwritten\n"
                f"  found: {', '.join(sorted(there)[:3])}\n  to fix: give a new folder"
            )
        if isinstance(target, LocalStore):
            target.make_folder(".", modes.PRIVATE)
        fresh = {**note, "id": same_id or secrets.token_hex(16)}
        target.create(RESTORING_FILE, documents.seal(fresh), sync=True)
        data = target.read(RESTORING_FILE) or b""
    begun = documents.load(
        data,
        lambda document: document.fields,
        where=target.path(RESTORING_FILE),
        what="the note of a restore",
        to_fix=f"remove {target.root} and restore again",
        version=1,
    )
    expected = {**note, "id": same_id or begun["id"]}
    if {name: begun.get(name) for name in expected} != expected:
        raise UserError(
            f"another restore was begun in {target.root}\n"
            f"  found: snapshot {begun.get('snapshot')} of {begun.get('backup')}\n"
            f"  to fix: finish that one, or remove {target.root}"
        )
    return str(begun["id"])


def _mode(objects: BackupObjects, snapshot: Snapshot) -> int | None:
    """The mode of the original's folders, if it has one."""
    entry = next(entry for entry in snapshot.files if entry.path == layout.WORKSPACE_FILE)
    data = objects.read(entry)
    workspace_file.decode(data, where=objects.store.path(entry.object))
    mode = json.loads(data).get("mode")
    return None if mode is None else modes.parse_mode(mode)


def _restore_file(
    objects: BackupObjects, entry: FileEntry, target: Store, workspace_id: str | None
) -> None:
    folder, _, name = entry.path.rpartition("/")
    if workspace_id is not None and name in _DOCUMENTS:
        data = of_workspace(objects.read(entry), workspace_id)
        target.make_folder(folder)
        target.replace(entry.path, data)
    elif isinstance(target, LocalStore):
        objects.take(entry, target.path(entry.path))
    else:
        with target.payload_folder(folder) as own:
            objects.take(entry, os.path.join(own, name))
            target.keep(own, folder, [name], sync=True)
    fault("restore.after_file")


def of_workspace(data: bytes, workspace_id: str) -> bytes:
    """A document that belongs to another workspace from now on; a damaged one stays as it is."""
    try:
        fields: dict[str, Any] = json.loads(data)
    except ValueError:
        return data
    if documents.WORKSPACE not in fields:
        return data
    fields.pop(documents.CHECKSUM, None)
    return documents.seal({**fields, documents.WORKSPACE: workspace_id})


def _restore_journals(
    objects: BackupObjects,
    target: Store,
    snapshot: Snapshot,
    workspace_id: str,
    ledger: str,
    config: Config,
) -> None:
    entry = next((entry for entry in snapshot.files if entry.path == _LEDGER_PATH), None)
    if entry is None:
        return
    if ledger == broker_address.SQLITE:
        assert isinstance(target, LocalStore), "checked before"
        objects.take(entry, target.path(_LEDGER_PATH))
        journals_at_rest.mark_copy(target.path(_LEDGER_PATH))
    else:
        with (
            scratch_folder(own_folder(), _SCRATCH) as folder,
            closing(broker_address.decision_log(target, workspace_id, ledger, config)) as log,
        ):
            path = os.path.join(folder, LEDGER)
            objects.take(entry, path)
            _refuse_used(log)
            log_at_rest.begin_from(log, path)
    broker_address.record_home(target, workspace_id, broker_address.EMBEDDED, ledger)


def _refuse_used(log: DecisionLog) -> None:
    """Refuse a log that is not this restore's: in PostgreSQL the original's may still be there."""
    log.prepare()
    if log.numbers(1):
        raise UserError(
            f"{log.name} holds a log of this workspace already\n"
            f"  found: {len(log.numbers(1))} records\n"
            "  to fix: restore without --same-id, or give another database with --ledger"
        )


def _claim_numbers(target: Store, snapshot: Snapshot, *, same_id: bool) -> None:
    """See that the next run gets a number that no run of the original has."""
    if snapshot.newest_run:
        newest = snapshot.newest_run + (_RUNS_SKIPPED if same_id else 0)
        target.make_folder(layout.SHUFFLE)
        target.claim(layout.query_folder(QueryId(newest)))


def _set_modes(root: str, mode: int) -> None:
    with storage_errors(f"setting the mode of {root}"):
        for above, _, names in os.walk(root):
            os.chmod(above, mode)
            for name in names:
                os.chmod(os.path.join(above, name), mode & 0o666)


def _sync_folders(root: str) -> None:
    with storage_errors(f"syncing {root}"):
        for above, _, _ in os.walk(root, topdown=False):
            sync_folder(above)
