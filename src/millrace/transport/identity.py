"""Which workspace a folder is, and what callers of its processes must show.

Invariant: both are made once, by whoever opens the folder first, and never change.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from millrace import at_rest
from millrace.shuffle import identity
from millrace.shuffle.layout import WORKSPACE_FILE
from millrace.shuffle.store import Store

TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
TOKEN_VARIABLE: Final = "MILLRACE_TOKEN"  # noqa: S105 - a variable's name


def make(store: Store) -> str:
    """The id of a workspace that is made now, or was made by another process meanwhile."""
    store.make_folder(".")
    store.create(WORKSPACE_FILE, identity.encode(secrets.token_hex(8)))
    data = store.read(WORKSPACE_FILE)
    return identity.decode(data or b"", where=store.path(WORKSPACE_FILE))


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
    return token_text(store.read(TOKEN_FILE) or b"", where=store.path(TOKEN_FILE))


def token_text(data: bytes, *, where: str) -> str:
    """The token in a file; one that cannot be sent in a header is refused."""
    with at_rest.decoding(where, "a token", "remove it; the next process makes a new one"):
        text = data.decode("ascii").strip()
        if not text.isprintable():
            raise ValueError("it has control characters")
        return text
