"""Checks everything of a workspace at rest, and names what is missing or damaged.

Invariant: nothing is changed, and no lock is taken. An owner and running jobs are not disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from millrace.config import Config
from millrace.reads.session.session_folder import read_status
from millrace.storage import documents, layout, workspace_file
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.storage.workspace_place import PLACE_FILE, decode_place
from millrace.transport.owner import broker_address
from millrace.upkeep.findings import Findings, WorkspaceCheck
from millrace.upkeep.journal_folder import NoJournals, journal_files
from millrace.upkeep.verify_journals import verify_journals
from millrace.upkeep.verify_shuffles import OpenShuffle, verify_inputs, verify_shuffles


def verify_workspace(
    store: Store,
    open_shuffle: OpenShuffle,
    config: Config,
    on_bytes: Callable[[int], None] = lambda _count: None,
    ledger: str | None = None,
) -> WorkspaceCheck:
    """Check a workspace: shuffles, saved rows, journals, jobs, checkpoints, large values.

    `ledger` is the address of the ledger, if one was given when the workspace was opened.
    """
    found = Findings(on_bytes)
    with found.checking(store.path(layout.WORKSPACE_FILE)):
        data = store.read(layout.WORKSPACE_FILE)
        workspace_file.decode(data or b"", where=store.path(layout.WORKSPACE_FILE))
        found.looked(len(data or b""))
    verify_shuffles(store, open_shuffle, found)
    verify_inputs(store, found)
    if isinstance(store, LocalStore):
        _verify_small_files(store, found)
    with found.checking(store.path(broker_address.HOME_FILE)):
        files = journal_files(store, config, ledger)
        if isinstance(files, NoJournals):
            found.note(files.reason)
        else:
            verify_journals(store, files, config, found)
    return found.report()


def _verify_small_files(store: LocalStore, found: Findings) -> None:
    folders = [name.rpartition("-")[0] for name in store.names("reads")]
    for name in sorted(set(folders)):
        with found.checking(store.path(f"reads/{name}")):
            read_status(store.path("reads"), name)
    if (data := store.read(PLACE_FILE)) is not None:
        with found.checking(store.path(PLACE_FILE)):
            decode_place(data, where=store.path(PLACE_FILE))
            found.looked(len(data))
    for name in ("served.json",):
        if (data := store.read(name)) is not None:
            with found.checking(store.path(name)):
                documents.load(
                    data, lambda _: None, where=store.path(name), what="a note", to_fix="remove it"
                )
                found.looked(len(data))


def as_json(check: WorkspaceCheck) -> str:
    """The report for programs."""
    problems = [
        {"kind": problem.kind, "path": problem.path, "message": problem.message}
        for problem in check.problems
    ]
    return json.dumps(
        {
            "ok": check.ok,
            "files": check.files,
            "bytes": check.bytes,
            "problems": problems,
            "left_out": list(check.left_out),
        }
    )
