"""Tables of coordinated reads: sessions and their checkpoints, from journals and status files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from millrace.errors import Corrupt
from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.reads.model.checkpoint import Checkpoint
from millrace.reads.session.checkpoint_store import (
    READS,
    journal_name,
    read_checkpoints,
    read_names,
    stored_read,
)
from millrace.reads.session.session_folder import read_status, sessions_folder
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import (
    NUMBER,
    RATIO,
    TEXT,
    TEXTS,
    YES_NO,
    Asked,
    Column,
    SystemTable,
    table_of,
)

SILENT_MS: Final = 10_000
"""After so long a session may be dead: it saves its status about once a second."""


def names_of_reads(workspace: RestingWorkspace) -> list[str]:
    """The coordinated reads that ran, by name."""
    if not workspace.has_journals():
        return []
    with workspace.journals(JournalChoice(prefixes=(READS,))) as journals:
        return sorted(read_names(journals))


def live_status(workspace: RestingWorkspace, name: str) -> dict[str, Any] | None:
    """What a session of this host last said of itself; None if there is none that can be read."""
    try:
        return read_status(sessions_folder(workspace.store, workspace.id), name)
    except Corrupt:
        return None


def _names(workspace: RestingWorkspace, asked: Asked) -> list[str]:
    names, wanted = names_of_reads(workspace), asked.text("read")
    return names if wanted is None else [name for name in names if name == wanted]


def _sessions(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows = []
    for name in _names(workspace, asked):
        with workspace.journals(JournalChoice(names=(journal_name(name),))) as journals:
            rows.append(session_row(workspace, journals, name))
    return table_of(rows, SESSIONS.columns)


def session_row(
    workspace: RestingWorkspace, journals: RestingJournals, name: str
) -> dict[str, Any]:
    """A row of `sessions`."""
    stored, kept = read_checkpoints(journals, name), stored_read(journals, name)
    live = live_status(workspace, name)
    disk = [] if live is None else live["disk_bytes"]
    return {
        "read": name,
        "bindings": [] if kept is None else [binding.name for binding in kept.bindings],
        "committed": stored.committed.number,
        "prepared": len(stored.prepared),
        "journals": len(stored.committed.reads.tag),
        "open": live is not None and live["age_ms"] <= SILENT_MS,
        "heard_s": None if live is None else live["age_ms"] / 1000,
        "members": None if live is None else len(disk),
        "disk_bytes": sum(disk),
        "waiting": None if live is None else len(live["waiting"]),
    }


def _checkpoints(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for name in _names(workspace, asked):
        with workspace.journals(JournalChoice(names=(journal_name(name),))) as journals:
            rows += checkpoint_rows(journals, name)
    return table_of(rows, CHECKPOINTS.columns)


def checkpoint_rows(journals: RestingJournals, name: str) -> Iterator[dict[str, Any]]:
    """The rows of `checkpoints` of a coordinated read."""
    stored = read_checkpoints(journals, name)
    yield _checkpoint(name, stored.committed, is_committed=True)
    for delta in stored.prepared:
        yield _checkpoint(name, delta, is_committed=False)


def _checkpoint(name: str, checkpoint: Checkpoint, *, is_committed: bool) -> dict[str, Any]:
    return {
        "read": name,
        "checkpoint": checkpoint.number,
        "committed": is_committed,
        "journals": len(checkpoint.reads.tag),
        "producers": len(checkpoint.shown.tag),
        "bytes": len(checkpoint.to_bytes()),
    }


_READ: Final = Column("read", TEXT, "The name of the coordinated read.")
SESSIONS: Final = SystemTable(
    name="sessions",
    about="Coordinated reads, with what an open session last said of itself.",
    keys=("read",),
    columns=(
        _READ,
        Column("bindings", TEXTS, "What it reads, by the names of its bindings."),
        Column("committed", NUMBER, "The last checkpoint that was committed."),
        Column("prepared", NUMBER, "Checkpoints that were handed out and not committed."),
        Column("journals", NUMBER, "Journals in the committed checkpoint."),
        Column("open", YES_NO, "Whether a session was heard of in the last 10 seconds."),
        Column("heard_s", RATIO, "How long ago a session was last heard of."),
        Column("members", NUMBER, "Members of that session."),
        Column("disk_bytes", NUMBER, "Bytes in its members' queues."),
        Column("waiting", NUMBER, "Transactions that wait for their part in another journal."),
    ),
    read=_sessions,
)
CHECKPOINTS: Final = SystemTable(
    name="checkpoints",
    about="Checkpoints of coordinated reads: the committed one, then those handed out since.",
    keys=("read",),
    columns=(
        _READ,
        Column("checkpoint", NUMBER, "Its number."),
        Column("committed", YES_NO, "Whether it was committed; otherwise it is a delta."),
        Column("journals", NUMBER, "Journals that it names."),
        Column("producers", NUMBER, "Pairs of a journal and a producer that it names."),
        Column("bytes", NUMBER, "Its size as it is stored."),
    ),
    read=_checkpoints,
)
