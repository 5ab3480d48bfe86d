"""The folder of an open session: its queues, and its status for other processes."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict, replace
from typing import Any, Final

from millrace.journal.core.values import Lease
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.session.session_status import SessionStatus
from millrace.storage import documents, modes
from millrace.storage.documents import Document
from millrace.storage.local import LocalStore
from millrace.storage.scratch import own_folder
from millrace.storage.store import Store

_STATUS: Final = "status.json"
_STORED_AS: Final = {"name": "task"}
"""Fields of a status that have another name in the file."""
_READS: Final = "reads"


def fresh_folder(parent: str, read: CoordinatedRead, lease: Lease) -> str:
    """The folder of this session's queues; what earlier sessions of this read left is removed."""
    modes.make_folders(parent)
    for name in os.listdir(parent):
        stem, _, epoch = name.rpartition("-")
        if stem == read.name and epoch.isdecimal() and int(epoch) < lease.epoch:
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    folder = os.path.join(parent, f"{read.name}-{lease.epoch}")
    modes.make_folders(folder)
    return folder


def write_status(folder: str, status: SessionStatus, now_ms: int) -> None:
    """Save the status of a session, for other processes."""
    values = asdict(replace(status, open=()))
    about = {
        documents.WORKSPACE: _workspace_of(os.path.dirname(folder)),
        **{_STORED_AS.get(key, key): value for key, value in values.items()},
        "at_ms": now_ms,
    }
    path = os.path.join(folder, _STATUS)
    with open(f"{path}.new", "wb", opener=modes.opener) as file:
        file.write(documents.seal(about))
    os.replace(f"{path}.new", path)


def read_status(parent: str, name: str) -> dict[str, Any] | None:
    """The status that an open session last saved in this folder; None if there is none."""
    folders = os.listdir(parent) if os.path.isdir(parent) else []
    parts = [folder.rpartition("-") for folder in folders]
    epochs = [int(last) for stem, _, last in parts if stem == name and last.isdecimal()]
    for epoch in sorted(epochs, reverse=True):
        try:
            path = os.path.join(parent, f"{name}-{epoch}", _STATUS)
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        return documents.load(
            data,
            _status_of,
            where=path,
            what="the status of a session",
            to_fix="remove the file; a session that is open writes it again",
            workspace=_workspace_of(parent),
        )
    return None


def _status_of(document: Document) -> dict[str, Any]:
    """The status that a session saved, and its age."""
    document.wholes("disk_bytes")
    lists = ("waiting", "long_open", "streams")
    # A session of an earlier version tells of no streams.
    for name in lists if "streams" in document.fields else lists[:2]:
        document.documents(name)
    ours = (documents.WORKSPACE, documents.CHECKSUM)
    names = {stored: name for name, stored in _STORED_AS.items()}
    fields = document.fields.items()
    about = {names.get(key, key): value for key, value in fields if key not in ours}
    return {**about, "age_ms": time.time_ns() // 1_000_000 - document.whole("at_ms")}


def sessions_folder(store: Store, workspace_id: str) -> str:
    """The folder of the sessions of a workspace: for one in a bucket, on this host's disk."""
    if not store.remote:
        return store.path(_READS)
    return os.path.join(own_folder(), f"reads-{workspace_id}", _READS)


def _workspace_of(parent: str) -> str | None:
    """The workspace of a folder of sessions."""
    return LocalStore(os.path.dirname(os.path.abspath(parent))).workspace_id()
