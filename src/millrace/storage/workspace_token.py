"""The id of a workspace and its token, which callers of its processes must show.

Invariant: both are made once, by the first process that opens the folder, and never change.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Final

from millrace.errors import UserError
from millrace.storage import modes, workspace_file
from millrace.storage.layout import WORKSPACE_FILE
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.storage.tokens import checked_token

TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
TOKEN_VARIABLE: Final = "MILLRACE_TOKEN"  # noqa: S105 - a variable's name


def make(store: Store, mode: int | None = None) -> str:
    """The id of a workspace that is made now, or was made by another process meanwhile.

    `mode` is what its folders are to have.
    """
    if isinstance(store, LocalStore):
        is_new = store.make_folder(".", mode)
        # An empty folder becomes the workspace; one with other things in it stays as it is.
        if not is_new and not store.names("."):
            with contextlib.suppress(OSError):
                os.chmod(store.root, mode or modes.PRIVATE)
    else:
        store.make_folder(".")
    store.create(WORKSPACE_FILE, workspace_file.encode(secrets.token_hex(16), mode), mode=mode)
    data = store.read(WORKSPACE_FILE)
    return workspace_file.decode(data or b"", where=store.path(WORKSPACE_FILE))


def check_mode(store: Store, mode: int) -> None:
    """Raise unless a workspace that is there has the requested mode."""
    if mode_of(store) != mode:
        raise UserError(
            f"workspace {store.root} has mode {modes.format_mode(mode_of(store))}, and mode "
            f"{modes.format_mode(mode)} was asked for\n"
            "  to fix: open it without mode=; a mode is given when a workspace is made"
        )


def mode_of(store: Store) -> int:
    """The mode of a workspace's folders."""
    return modes.PRIVATE if store.remote else modes.mode_within(store.root)


def given_token() -> str | None:
    """The token that the environment gives; one that is none is refused."""
    given = os.environ.get(TOKEN_VARIABLE)
    return None if given is None else checked_token(given, where=f"the variable {TOKEN_VARIABLE}")


def token_of(store: Store, *, is_for_journals: bool = False) -> str:
    """What callers must show: given by the environment, else in a file only its user can read.

    In a bucket it is an object that all have who may read the workspace; the owner of the journals
    makes it.
    """
    given = given_token()
    if given is not None:
        return given
    if store.remote and not is_for_journals:
        # All hosts see a bucket, so there are no agents that would ask for it.
        return secrets.token_urlsafe(32)
    data = store.read(TOKEN_FILE)
    if data is None:
        store.create(TOKEN_FILE, secrets.token_urlsafe(32).encode(), mode=modes.PRIVATE)
        data = store.read(TOKEN_FILE)  # It may be another process's.
    text = (data or b"").decode(errors="replace")
    return checked_token(text, where=f"the file {store.path(TOKEN_FILE)}")
