"""A decision log and the tables that it makes, in a scratch folder of this host.

A process that waits for an owner's lease to end loads the log meanwhile, and then reads only what
came since.

Invariant: what was loaded earlier counts for nothing by itself. It is used if the log still has its
last record, with the same bytes, and is built anew if the log was trimmed past it or is another.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import Final, Self

from millrace.errors import StorageError
from millrace.journal.ledger_log import replica
from millrace.journal.ledger_log.decision_log import DecisionLog
from millrace.storage.scratch import own_folder, scratch_folder

_FOLDER: Final = "ledger-"
_TABLES: Final = "ledger.sqlite"


class LoadedLog:
    """The tables are as of `position`. Closing it closes the log too."""

    def __init__(self, log: DecisionLog) -> None:
        self.log = log
        self._end: bytes | None = None
        self._closing = threading.Lock()
        self._resources = contextlib.ExitStack()
        self._resources.callback(log.close)
        try:
            log.prepare()
            self.folder = self._resources.enter_context(scratch_folder(own_folder(), _FOLDER))
            self.path = os.path.join(self.folder, _TABLES)
            self.tables, self.position = replica.build(log, self.path)
            self._resources.callback(self._close_tables)
        except BaseException:
            self._resources.close()
            raise

    @classmethod
    def ahead(cls, log: DecisionLog) -> Self:
        """Load a log that may be opened later, and note where it ends."""
        try:
            loaded = cls(log)
        except sqlite3.Error as error:
            raise StorageError(
                f"the tables of {log.name} cannot be written: {error}\n"
                "  to fix: see that this host's disk has room"
            ) from error
        try:
            loaded._end = log.read(loaded.position.number)
        except BaseException:
            loaded.close()
            raise
        return loaded

    def catch_up(self) -> None:
        """Bring tables that were loaded ahead up to the log's end, or build them anew."""
        at = self.position.number
        if self._end is not None and self.log.read(at) == self._end:
            self.position = replica.catch_up(self.log, self.tables, self.position)
            if self.position.problem is None:
                return
        self._close_tables()
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + suffix)
        self.tables, self.position = replica.build(self.log, self.path)

    def _close_tables(self) -> None:
        self.tables.close()

    def close(self) -> None:
        """Remove the tables."""
        with self._closing:
            self._resources.close()
