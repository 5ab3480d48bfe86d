"""Connections to the SQLite file of a ledger: one that writes, and as many readers as needed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from millrace.errors import StorageError
from millrace.storage import modes

LEDGER_BUSY_MS_MAX: Final = 5_000
"""How long the ledger waits for another reader or writer before that is an error."""


def connect(path: str, *, is_read_only: bool) -> sqlite3.Connection:
    """Open the file; it is made if it is not there."""
    if not os.path.exists(path):
        modes.make_file(path)  # Its log and index get the same mode.
    # Statements begin and end their transactions themselves.
    mode = read_only_mode(path) if is_read_only else "rwc"
    db = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        timeout=LEDGER_BUSY_MS_MAX / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA temp_store = MEMORY")
    # Overwriting deleted rows with zeros would take room in the log.
    db.execute("PRAGMA secure_delete = OFF")
    return db


def read_only_mode(path: str) -> str:
    """How to open a ledger that is only looked at, for its url.

    Without a log no process has it open, and SQLite would make an empty one.
    """
    return "ro" if os.path.exists(f"{path}-wal") else "ro&immutable=1"


class ReadingConnections:
    """Reading connections that are used again: as many as there were readers at once."""

    def __init__(self, path: str, *, is_read_only: bool) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._idle: list[sqlite3.Connection] = []
        self._closing = threading.Lock()
        self._is_closed = False

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for this block alone, so readers do not wait for each other."""
        with self._closing:
            if self._is_closed:
                raise StorageError(
                    f"ledger {self._path} was closed\n  found: a call after close()\n"
                    "  to fix: open the workspace again"
                )
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = connect(self._path, is_read_only=self._is_read_only)
            connection.execute("PRAGMA query_only = ON")
        try:
            yield connection
        finally:
            with self._closing:
                is_kept = not self._is_closed
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()

    def close(self) -> bool:
        """Close the connections; whether this is the first call."""
        with self._closing:
            is_first = not self._is_closed
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        return is_first
