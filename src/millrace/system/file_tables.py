"""The table of files: what a workspace keeps on its disk or in its bucket, by kind and age."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import (
    NUMBER,
    TEXT,
    TIME,
    Asked,
    Column,
    SystemTable,
    table_of,
)

KINDS: Final = {
    layout.SHUFFLE: "shuffles",
    layout.FINGERPRINTS: "fingerprints",
    layout.MERGED: "shuffles",
    layout.INPUTS: "inputs",
    layout.TRASH: "trash",
    layout.SPILL: "spill",
    layout.TABLE_WRITES: "table writes",
    "journals": "journals",
    "jobs": "jobs",
    "large": "large values",
    "reads": "queues of reads",
    "agents": "agents",
    "metrics": "counts of processes",
}
"""What the folders of a workspace hold; all else is the workspace's own."""
OWN: Final = "workspace"


def kind_of(path: str) -> str:
    """What a file is for."""
    return KINDS.get(path.split("/", 1)[0], OWN) if "/" in path else OWN


def file_rows(store: Store) -> Iterator[dict[str, Any]]:
    """A row of `files` for each file."""
    return _of_folder(store.root) if isinstance(store, LocalStore) else _of_bucket(store)


def _of_folder(root: str) -> Iterator[dict[str, Any]]:
    """Files of a folder; those that go away meanwhile are left out."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    yield _row(name, status.st_blocks * 512, status.st_size, status.st_mtime_ns)
        except OSError:
            continue


def _row(name: str, taken: int, size: int, changed_ns: int) -> dict[str, Any]:
    return {
        "path": name,
        "kind": kind_of(name),
        "bytes": size,
        "disk_bytes": taken,
        "changed": changed_ns // 1000,
    }


def _of_bucket(store: Store) -> Iterator[dict[str, Any]]:
    """Objects of a bucket; their times are not asked for, as each would be a request."""
    names = store.below(".")
    sizes = store.sizes(".", names)
    for name in names:
        if name in sizes:
            size = sizes[name]
            yield {"path": name, "kind": kind_of(name), "bytes": size, "disk_bytes": size}


def _files(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows = file_rows(workspace.store)
    taken = (row for count, row in enumerate(rows) if asked.limit is None or count < asked.limit)
    return table_of(taken, FILES.columns)


FILES: Final = SystemTable(
    name="files",
    about="Files of the workspace's folder, or objects of its bucket.",
    columns=(
        Column("path", TEXT, "Relative to the workspace."),
        Column("kind", TEXT, f"What it is for: {', '.join(dict.fromkeys(KINDS.values()))}, {OWN}."),
        Column("bytes", NUMBER, "Its length."),
        Column("disk_bytes", NUMBER, "What it takes on the disk: files may have holes."),
        Column("changed", TIME, "When it last changed; null in a bucket."),
    ),
    read=_files,
)
