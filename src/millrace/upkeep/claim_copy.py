"""Makes a plain copy of a workspace a workspace of its own.

A copy that was made while its original was written may be torn: rows are named whose files were
copied too early. So everything in it is checked first, and a torn one is refused with all that is
missing.

Invariant: the original is not touched, and its owner not asked. The copy has the original's id
until all in it is the new workspace's; a claim that was interrupted is begun again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Final

from millrace.config import Config
from millrace.errors import DataLost, UserError
from millrace.faults import fault
from millrace.ids import QueryId, StageId
from millrace.shuffle.handle import Shuffle
from millrace.storage import documents, layout, workspace_file
from millrace.storage.modes import parse_mode
from millrace.storage.store import Store
from millrace.storage.workspace_place import original_of, place_of, record_place
from millrace.transport.owner import broker_address
from millrace.upkeep.backup_source import source_of
from millrace.upkeep.findings import WorkspaceCheck
from millrace.upkeep.restore import of_workspace
from millrace.upkeep.verify import verify_workspace

CLAIM_FILE: Final = "claiming.json"
_PROCESSES: Final = ("owner.json", "owner.alive", "served.json", "token", "retention.done")
"""Files that belong to processes of the original."""
_FOLDERS: Final = ("agents", "metrics", "reads")
_SHOWN_MAX: Final = 20


def claim_copy(
    store: Store,
    config: Config,
    *,
    same_id: bool = False,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> str:
    """Make a copy a workspace of its own; its id, which is the original's with `same_id`."""
    original = original_of(store)
    if original is None:
        raise UserError(
            f"{store.root} is no copy of another workspace\n  found: it is where it was made, or "
            "that is not known\n  to fix: use it as it is"
        )
    before = store.workspace_id()
    assert before is not None, "a place is recorded with a workspace"
    workspace_id = _begun(store)
    if workspace_id is None:
        if not same_id:
            _refuse_database(store)
        check = verify_workspace(store, _not_ours, config, on_bytes)
        _refuse_torn(store, check, str(original))
        workspace_id = before if same_id else secrets.token_hex(16)
        note = {"version": 1, "path": place_of(store).path, "id": workspace_id}
        store.replace(CLAIM_FILE, documents.seal(note))
    fault("claim.after_note")
    for path in [*_PROCESSES, *_below(store, *_FOLDERS)]:
        store.remove_file(path)
    if workspace_id != before:
        for path in [broker_address.HOME_FILE, *_below(store, layout.SHUFFLE)]:
            _give(store, path, workspace_id)
        fault("claim.before_workspace")
        mode = json.loads(store.read(layout.WORKSPACE_FILE) or b"{}").get("mode")
        data = workspace_file.encode(workspace_id, None if mode is None else parse_mode(mode))
        store.replace(layout.WORKSPACE_FILE, data)
        fault("claim.after_workspace")
    record_place(store, again=True)
    store.remove_file(CLAIM_FILE)
    return workspace_id


def _refuse_database(store: Store) -> None:
    ledger = broker_address.recorded_ledger(store)
    if ledger not in (None, broker_address.SQLITE, broker_address.FILES):
        raise UserError(
            f"the journals of {store.root} have their ledger in a database, which was not copied\n"
            f"  found: {ledger}\n"
            "  to fix: use `millrace backup` and `millrace restore`, which copy both"
        )


def _refuse_torn(store: Store, check: WorkspaceCheck, original: str) -> None:
    if check.ok:
        return
    found = "\n".join(
        f"    {problem.path}: {problem.kind}" for problem in check.problems[:_SHOWN_MAX]
    )
    raise DataLost(
        f"{store.root} is a copy of {original} that is not whole: it was written meanwhile\n"
        f"  found: {len(check.problems)} problems\n{found}\n"
        "  to fix: make a copy with `millrace backup` and `millrace restore`"
    )


def _not_ours(query_id: QueryId, stage_id: StageId) -> Shuffle:
    raise UserError(
        f"map outputs of run {query_id}, stage {stage_id}, in folders of hosts are the original's\n"
        "  to fix: nothing; a run that needs them makes them again"
    )


def _begun(store: Store) -> str | None:
    """The id that an interrupted claim of this copy gives it; the copy was checked before."""
    data = store.read(CLAIM_FILE)
    if data is None:
        return None
    path, workspace_id = documents.load(
        data,
        lambda document: (document.text("path"), document.text("id")),
        where=store.path(CLAIM_FILE),
        what="the note of a claim",
        to_fix="remove it, and claim the copy again",
        version=1,
    )
    # The original's own note may have been copied, too.
    return workspace_id if path == place_of(store).path else None


def _give(store: Store, path: str, workspace_id: str) -> None:
    name = path.rpartition("/")[2]
    if name not in (broker_address.HOME_FILE, layout.MANIFEST_FILE, layout.QUERY_FILE):
        return
    data = store.read(path)
    if data is not None:
        store.replace(path, of_workspace(data, workspace_id))


def _below(store: Store, *folders: str) -> Iterator[str]:
    for folder in folders:
        yield from list(source_of(store).below(folder))
