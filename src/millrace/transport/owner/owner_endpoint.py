"""Where the owner of a workspace's journals answers: the file it leaves, and what tasks carry.

Invariant: the file is only a hint. An owner proves by its answer that it is the one; that it is
dead is known by its lock, and never by its process number, which may be another's by now.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Final

from millrace.config import Config
from millrace.errors import MillraceError
from millrace.storage import documents
from millrace.storage.objects.object_address import is_url
from millrace.storage.store import Store
from millrace.storage.workspace_home import store_at

OWNER_FILE: Final = "owner.json"
LOCK_FILE: Final = "owner.lock"
SERVED_FILE: Final = "served.json"
VERSION: Final = 1
READ_ONLY: Final = " (read-only: commits are missing)"
"""Added to the broker's name by an owner that serves what is left after a loss."""

Mark = tuple[int, int] | None
"""Which file an owner's is: its number and time of change; None if there is none to be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerEndpoint:
    """The address of an owner; `instance` is unique, a higher epoch is younger."""

    address: str
    epoch: int
    instance: str
    pid: int
    host: str
    broker: str
    """What serves the journals: "embedded", "memory" or where a Kafka is."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, at {self.address}"


def store_of(workspace: str) -> Store:
    """The folder or bucket of a workspace, as users name it."""
    return store_at(workspace, Config())


def write(store: Store, endpoint: OwnerEndpoint) -> None:
    """Write the owner's address to its file, over that of an earlier owner."""
    store.replace(OWNER_FILE, json.dumps({"version": VERSION, **asdict(endpoint)}).encode())


def read(store: Store) -> OwnerEndpoint | None:
    """The address in an owner's file; None if there is none, or none that can be read."""
    data = store.read(OWNER_FILE)
    try:
        document = json.loads(data or b"")
        if document["version"] != VERSION:
            return None
        return OwnerEndpoint(
            address=str(document["address"]),
            epoch=int(document["epoch"]),
            instance=str(document["instance"]),
            pid=int(document["pid"]),
            host=str(document["host"]),
            broker=str(document["broker"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def remove(store: Store, instance: str) -> None:
    """Remove the file of this instance. Without a lock, a younger owner restores its own."""
    endpoint = read(store)
    if endpoint is not None and endpoint.instance == instance:
        store.remove_file(OWNER_FILE)


def restore(store: Store, endpoint: OwnerEndpoint) -> None:
    """Write the owner's address again if an older owner removed it, or wrote its own over it.

    Without a lock an owner that was suspended can do so when it wakes up, in the place of the next
    one.
    """
    seen = read(store)
    if seen is None or seen.epoch < endpoint.epoch:
        write(store, endpoint)


def keep_for(store: Store, address: str | None) -> None:
    """Leave the journals to an owner at a fixed address, or to the first process that opens them.

    Its file stays when that owner ends, even by a crash: others wait for it to come back.
    """
    if address is None:
        store.remove_file(SERVED_FILE)
    else:
        store.replace(SERVED_FILE, documents.seal({"version": VERSION, "address": address}))


def kept_for(store: Store) -> str | None:
    """The address of the owner that alone may have the journals; None if any process may."""
    data = store.read(SERVED_FILE)
    if data is None:
        return None
    return documents.load(
        data,
        lambda document: document.text("address"),
        where=store.path(SERVED_FILE),
        what="the address of `millrace serve`",
        to_fix="start `millrace serve` again, or remove the file",
        version=VERSION,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalAddress:
    """How to reach the journals of a workspace from anywhere; small, and can be pickled.

    Where the workspace's folder can be seen, its owner's file says where to go, also after another
    process took over. Elsewhere the address that was known when this was made has to do.
    """

    token: str = field(repr=False)
    path: str | None = None
    """The workspace's folder."""
    address: str | None = None
    """Where the owner answered."""
    workspace_id: str | None = None

    def mark(self) -> Mark:
        """Which file the owner's is now: each owner writes a new one."""
        if self.path is None or is_url(self.path):
            return None
        try:
            status = os.stat(os.path.join(self.path, OWNER_FILE))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def owner(self) -> OwnerEndpoint | None:
        """What the owner's file says, if the folder can be seen here."""
        if self.path is None:
            return None
        try:
            store = store_of(self.path)
            if self.workspace_id not in (None, store.workspace_id()):
                return None
            return read(store)
        except MillraceError:
            return None
