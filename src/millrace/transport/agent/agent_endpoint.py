"""The file with the address of an agent, and the lock for starting or ending one.

Invariant: an agent removes only its own file, and only while no other is being started.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from millrace.storage import documents, modes
from millrace.storage.local import LocalStore
from millrace.storage.store import storage_errors

AGENT_FILE: Final = "agent.json"
LOCK_FILE: Final = "agent.lock"
LOG_FILE: Final = "agent.log"
SERVICE_LOCK_FILE: Final = "service.lock"
_POLL_S: Final = 0.02


class Endpoint(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """The address of an agent; `instance` is unique, unlike a process number."""

    address: str
    pid: int
    instance: str


def write(store: LocalStore, endpoint: Endpoint) -> None:
    """Write the agent's address to its file, over that of an earlier agent."""
    store.replace(AGENT_FILE, msgspec.json.encode(endpoint))


def read(store: LocalStore) -> Endpoint | None:
    """The address in an agent's file; None if there is none, or none that can be read."""
    return documents.hint(store.read(AGENT_FILE), Endpoint)


def remove(store: LocalStore, instance: str) -> None:
    """Remove the file of this instance. A process that starts another agent replaces it anyway."""
    with locked(store, LOCK_FILE, wait_ms=0) as has_lock:
        endpoint = read(store)
        if has_lock and endpoint is not None and endpoint.instance == instance:
            store.remove_file(AGENT_FILE)


@contextmanager
def locked(store: LocalStore, name: str, *, wait_ms: int) -> Iterator[bool]:
    """Hold a lock of this folder, which dies with its process. Yields False if it was not got."""
    with storage_errors(f"locking {store.path(name)}"):
        handle = modes.opener(store.path(name), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        yield _lock(handle, wait_ms)
    finally:
        os.close(handle)


def _lock(handle: int, wait_ms: int) -> bool:
    deadline = time.monotonic() + wait_ms / 1000
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True
