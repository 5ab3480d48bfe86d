"""Which workspace a folder is, and what callers of its processes must show.

Invariant: both are made once, by whoever opens the folder first, and never change.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import Final

from millrace.errors import FormatError, UserError
from millrace.shuffle import modes
from millrace.shuffle.store import LocalStore, Store
from millrace.transport.tokens import checked_token

WORKSPACE_FILE: Final = "workspace.json"
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
TOKEN_VARIABLE: Final = "MILLRACE_TOKEN"  # noqa: S105 - a variable's name
_VERSION: Final = 1


def identify(store: Store, mode: int | None = None) -> str:
    """The workspace's id, made with its folder.

    `mode` is what its folders are to have; one that is there must have it already.
    """
    data = store.read(WORKSPACE_FILE)
    if data is None:
        _make(store, mode)
        data = store.read(WORKSPACE_FILE)
    if mode is not None and mode_of(store) != mode:
        raise UserError(
            f"workspace {store.root} has mode {modes.format_mode(mode_of(store))}, and mode "
            f"{modes.format_mode(mode)} was asked for\n"
            "  to fix: open it without mode=; a mode is given when a workspace is made"
        )
    try:
        document = json.loads(data or b"")
        if document["version"] != _VERSION:
            raise FormatError(
                f"{store.path(WORKSPACE_FILE)} has version {document['version']}, this Millrace "
                f"reads version {_VERSION}\n  to fix: open it with a newer Millrace"
            )
        return str(document["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{store.path(WORKSPACE_FILE)} cannot be read: {error}\n"
            "  to fix: restore it, or choose another folder"
        ) from error


def mode_of(store: Store) -> int:
    """The mode of a workspace's folders."""
    return modes.PRIVATE if store.remote else modes.mode_within(store.root)


def _make(store: Store, mode: int | None) -> None:
    about = {"version": _VERSION, "id": secrets.token_hex(8)}
    if mode is not None:
        about["mode"] = modes.format_mode(mode)
    if isinstance(store, LocalStore):
        is_new = store.make_folder(".", mode)
        # An empty folder becomes the workspace; one with other things in it stays as it is.
        if not is_new and not store.names("."):
            with contextlib.suppress(OSError):
                os.chmod(store.root, mode or modes.PRIVATE)
    else:
        store.make_folder(".")
    store.create(WORKSPACE_FILE, json.dumps(about).encode(), mode=mode)


def token_of(store: Store) -> str:
    """What callers must show: given by the environment, else in a file only its user can read."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given is not None:
        return checked_token(given, where=f"the variable {TOKEN_VARIABLE}")
    if store.remote:
        # All hosts see a bucket, so there are no agents that would ask for it.
        return secrets.token_urlsafe(32)
    if not store.exists(TOKEN_FILE):
        store.create(TOKEN_FILE, secrets.token_urlsafe(32).encode(), mode=modes.PRIVATE)
    text = (store.read(TOKEN_FILE) or b"").decode(errors="replace")
    return checked_token(text, where=f"the file {store.path(TOKEN_FILE)}")
