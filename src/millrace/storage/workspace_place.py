"""Where a workspace was made: a plain copy of it is told from the workspace itself.

    place.json      the path or bucket, the host, and the number of the file workspace.json

A copy has its own `workspace.json`, so another number, at another path. A folder that was renamed
has the same number; one that is mounted elsewhere, too. A copy also has the address of the owner,
the token and the id of its original, so it must not be used before it has its own.

Invariant: a workspace is never taken for a copy where it was made.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Final

from millrace.errors import MillraceError, UserError
from millrace.storage import documents, layout
from millrace.storage.documents import Document
from millrace.storage.local import LocalStore
from millrace.storage.store import Store

PLACE_FILE: Final = "place.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlace:
    """Where a workspace is."""

    path: str
    host: str = ""
    number: int = 0
    """Of the file `workspace.json` on its disk; 0 in a bucket."""

    def is_of(self, other: WorkspacePlace) -> bool:
        """Whether both are one workspace."""
        is_renamed = bool(self.number) and self.number == other.number
        return is_renamed or (self.path, self.host) == (other.path, other.host)

    def __str__(self) -> str:
        return f"{self.path} on host {self.host}" if self.host else self.path


def place_of(store: Store) -> WorkspacePlace:
    """Where a workspace is now."""
    if not isinstance(store, LocalStore):
        return WorkspacePlace(path=store.path(""))
    return WorkspacePlace(
        path=os.path.realpath(store.root),
        host=socket.gethostname(),
        number=os.stat(store.path(layout.WORKSPACE_FILE)).st_ino,
    )


def recorded_place(store: Store) -> WorkspacePlace | None:
    """Where the workspace was made; None if that is not known."""
    data = store.read(PLACE_FILE)
    return None if data is None else decode_place(data, where=store.path(PLACE_FILE))


def decode_place(data: bytes, *, where: str) -> WorkspacePlace:
    """Read `place.json`."""
    return documents.load(
        data,
        _decoded,
        where=where,
        what="the place of a workspace",
        to_fix="remove it; it is written again",
        version=_VERSION,
    )


def record_place(store: Store, *, again: bool = False) -> None:
    """Record where a workspace is, once; `again` for one that has a new place."""
    if not again and store.read(PLACE_FILE) is not None:
        return
    place = place_of(store)
    fields = {"path": place.path, "host": place.host, "number": place.number}
    data = documents.seal({"version": _VERSION, **fields})
    if again:
        store.replace(PLACE_FILE, data)
    else:
        store.create(PLACE_FILE, data)


def original_of(store: Store) -> WorkspacePlace | None:
    """Of which workspace this is a plain copy; None if it is none, as far as that is known."""
    try:
        recorded = recorded_place(store)
    except MillraceError:
        return None  # A damaged file is named by `verify`.
    return None if recorded is None or recorded.is_of(place_of(store)) else recorded


def refuse_copy(store: Store) -> None:
    """Raise at a plain copy of a workspace."""
    original = original_of(store)
    if original is not None:
        raise UserError(
            f"{store.root} is a copy of another workspace\n"
            f"  found: the id, the token and the owner's address of {original}\n"
            f"  to fix: `millrace claim {store.root}` checks it and gives it its own; with "
            "--same-id if the original is gone for good. `millrace backup` makes consistent copies"
        )


def _decoded(document: Document) -> WorkspacePlace:
    return WorkspacePlace(
        path=document.text("path"), host=document.text("host"), number=document.whole("number")
    )
