"""Which workspace a folder is, and what callers of its processes must show.

Invariant: both are made once, by whoever opens the folder first, and never change.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Final

from millrace.errors import FormatError
from millrace.shuffle.store import Store

WORKSPACE_FILE: Final = "workspace.json"
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
TOKEN_VARIABLE: Final = "MILLRACE_TOKEN"  # noqa: S105 - a variable's name
_VERSION: Final = 1


def identify(store: Store) -> str:
    """The workspace's id, made with its folder."""
    data = store.read(WORKSPACE_FILE)
    if data is None:
        store.make_folder(".")
        mine = json.dumps({"version": _VERSION, "id": secrets.token_hex(8)}).encode()
        store.create(WORKSPACE_FILE, mine)
        data = store.read(WORKSPACE_FILE)
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


def token_of(store: Store) -> str:
    """What callers must show: given by the environment, else in a file only its user can read."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        return given.strip()
    if store.remote:
        # All hosts see a bucket, so there are no agents that would ask for it.
        return secrets.token_urlsafe(32)
    if not store.exists(TOKEN_FILE):
        store.create(TOKEN_FILE, secrets.token_urlsafe(32).encode(), mode=0o600)
    return (store.read(TOKEN_FILE) or b"").decode().strip()
