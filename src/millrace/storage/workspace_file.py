"""Which workspace a folder or a part of a bucket is: the document `workspace.json`. Pure.

Invariant: an id is 16 to 64 hexadecimal digits, so it can be a part of a path and leads nowhere.
"""

from __future__ import annotations

from typing import Final

from millrace.names import shown
from millrace.storage import documents, modes
from millrace.storage.documents import Document
from millrace.storage.layout import is_folder_id

VERSION: Final = 1


def encode(workspace_id: str, mode: int | None = None) -> bytes:
    """Write as `workspace.json`; `mode` is that of its folders, if one was given."""
    document = {"version": VERSION, "id": workspace_id}
    if mode is not None:
        document["mode"] = modes.format_mode(mode)
    return documents.seal(document)


def decode(data: bytes, *, where: str) -> str:
    """Read `workspace.json`: the workspace's id."""
    return documents.load(
        data,
        _id,
        where=where,
        what="a workspace's own file",
        to_fix="restore it, or choose another folder",
        version=VERSION,
    )


def _id(document: Document) -> str:
    workspace_id = document.text("id")
    if not is_folder_id(workspace_id):
        raise ValueError(f"id is {shown(workspace_id)}, expected 16 to 64 hexadecimal digits")
    return workspace_id
