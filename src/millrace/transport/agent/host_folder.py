"""A host's own folder: one per workspace, with an id, a token and the files of its agent.

    {folder}/agent.json                      where a service for all workspaces answers
    {folder}/{workspace_id}/folder.json      the id under which manifests know this folder
    {folder}/{workspace_id}/token            what callers must show, readable by its user alone
    {folder}/{workspace_id}/agent.json       where this workspace's agent answers
    {folder}/{workspace_id}/shuffle/...      as in any workspace

Invariant: a folder's id is made once and never changes, so an answer for it can come from no other.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import FormatError, MillraceError
from millrace.ids import FolderId
from millrace.names import shown
from millrace.storage import documents, layout, modes
from millrace.storage.documents import Document
from millrace.storage.local import LocalStore
from millrace.storage.store import storage_errors
from millrace.storage.tokens import checked_token

FOLDER_FILE: Final = "folder.json"
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
VERSION: Final = 1


def open_folder(store: LocalStore, mode: int = modes.PRIVATE) -> FolderId:
    """The id of a host's folder, made with the folder if it is missing, with this mode."""
    store.make_folder(".", mode)
    if not store.exists(FOLDER_FILE):
        about = {"version": VERSION, "id": secrets.token_hex(16)}
        if mode != modes.PRIVATE:
            about["mode"] = modes.format_mode(mode)
        store.create(FOLDER_FILE, documents.seal(about), mode=mode)
    folder_id = find_folder(store)
    if folder_id is None:
        raise FormatError(f"{store.path(FOLDER_FILE)} vanished\n  to fix: run the task again")
    return folder_id


def find_folder(store: LocalStore) -> FolderId | None:
    """The id of a host's folder; None if there is none."""
    data = store.read(FOLDER_FILE)
    if data is None:
        return None
    return documents.load(
        data,
        _folder_id,
        where=store.path(FOLDER_FILE),
        what="a host's folder",
        to_fix="remove the folder; its tasks run again",
        version=VERSION,
    )


def _folder_id(document: Document) -> FolderId:
    text = document.text("id")
    if not layout.is_folder_id(text):
        raise ValueError(f"id is {shown(text)}, expected 16 to 64 hexadecimal digits")
    return FolderId(text)


def write_token(store: LocalStore, token: str) -> None:
    """Leave the token where the agent finds it, in a file that only this user can read."""
    checked_token(token, where="what the driver gave to this task")
    if store.read(TOKEN_FILE) == token.encode():
        return
    path = store.path(TOKEN_FILE)
    draft = f"{path}.{secrets.token_hex(8)}.draft"
    with storage_errors(f"writing {path}"):
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token)
        os.replace(draft, path)


def read_token(store: LocalStore) -> str | None:
    """The token that callers must show; None if there is none yet."""
    data = store.read(TOKEN_FILE)
    if data is None:
        return None
    return checked_token(data.decode(errors="replace"), where=f"the file {store.path(TOKEN_FILE)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFolder:
    """One folder that an agent serves."""

    folder: FolderId
    store: LocalStore
    token: str


@dataclass(slots=True)
class Hosting:
    """All folders that an agent serves, listed again for an unknown one.

    `roots` lists their paths. `token` counts for all of them; without it each has its own.
    """

    roots: Callable[[], list[str]]
    token: str | None = None
    _known: dict[FolderId, str] = field(default_factory=dict, repr=False)

    @classmethod
    def one(cls, root: str) -> Hosting:
        """Just this folder."""
        return cls(lambda: [root])

    @classmethod
    def below(cls, folder: str, token: str | None = None) -> Hosting:
        """The folders of all workspaces, those that come later too."""
        store = LocalStore(folder)
        return cls(lambda: [store.path(name) for name in sorted(store.names("."))], token)

    def find(self, folder: FolderId) -> HostFolder | None:
        """The folder of this id with the token it has now; None if it is not here."""
        if folder not in self._known:
            self._known = {folder_id: root for root in self.roots() for folder_id in _ids(root)}
        root = self._known.get(folder)
        if root is None:
            return None
        store = LocalStore(root)
        token = read_token(store) if self.token is None else self.token
        return None if token is None else HostFolder(folder=folder, store=store, token=token)

    def is_empty(self) -> bool:
        """Whether nothing is left to serve."""
        return not any(_ids(root) for root in self.roots())


def _ids(root: str) -> list[FolderId]:
    try:
        folder_id = find_folder(LocalStore(root))
    except MillraceError:
        return []  # Not a folder that can be served; opening it raises the reason.
    return [] if folder_id is None else [folder_id]
