"""The tables of a log, kept on this host and brought up to date with each look.

Invariant: a look changes nothing of the log. What it gives is the state as of a record that was the
log's last one after the look began; a log that was trimmed past the replica is built anew.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

from millrace.journal.embedded.segment_reader import LEDGER
from millrace.journal.ledger_log import replica
from millrace.journal.ledger_log.decision_log import DecisionLog
from millrace.journal.ledger_log.replica import LogPosition

_BUILDS_MAX: Final = 5


class LogReplica:
    """A replica in a folder of its own. For many threads."""

    def __init__(self, folder: str, open_log: Callable[[], DecisionLog]) -> None:
        self._path = os.path.join(folder, LEDGER)
        self._open_log = open_log
        self._lock = threading.Lock()
        self._tables: sqlite3.Connection | None = None
        self._position: LogPosition | None = None

    def path(self) -> str:
        """The file of the tables, as of now. Raises `DataLost` if records are missing."""
        with self._lock, closing(self._open_log()) as log:
            for _ in range(_BUILDS_MAX):
                position = self._caught_up(log)
                if position.problem is None:
                    return self._path
                self._forget()  # Its owner may have trimmed what was to be read next.
            raise replica.data_lost(replica.lost(log.name, position, 0) or log.name)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._forget()

    def _caught_up(self, log: DecisionLog) -> LogPosition:
        if self._tables is None or self._position is None:
            self._tables, self._position = replica.build(log, self._path)
        else:
            self._position = replica.catch_up(log, self._tables, self._position)
        return self._position

    def _forget(self) -> None:
        if self._tables is not None:
            self._tables.close()
        self._tables = self._position = None
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(self._path + suffix)
