"""Counts the files of a workspace now and then, in a thread of its own.

Invariant: counting takes at most a twentieth of a processor, however many files there are; nobody
waits for it longer than `FIRST_WAIT_S`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import MillraceError
from millrace.storage.store import Store
from millrace.system.file_tables import file_rows
from millrace.wakeup import WorkerThread

AGAIN_S: Final = 60.0
"""Files are counted again after this time at the earliest."""
FIRST_WAIT_S: Final = 1.0
_PAUSES: Final = 20
"""The pause is at least so many times as long as the last count took."""


@dataclass(frozen=True, slots=True)
class FileCount:
    """What was found, and when it was complete."""

    kinds: dict[str, tuple[int, int]]
    """Files and bytes on the disk, by what they are for."""
    at: float
    """In steady seconds."""
    took_s: float


@dataclass(slots=True)
class FileTotals:
    """The last count. May be used by many threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: FileCount | None = None
    _counting: WorkerThread | None = None
    _error: Exception | None = None
    """Why the last count was not finished, until it is raised."""

    def counted(self, store: Store) -> FileCount | None:
        """The last count; None while the first one goes on. A new one begins if it is old.

        Raises what ended a count before its end, once.
        """
        with self._lock:
            if self._counting is None and self._is_due():
                self._counting = WorkerThread(lambda: self._count(store), "millrace-file-count")
                self._counting.start()
            thread = self._counting
        if self._last is None and thread is not None:
            thread.ended.wait(FIRST_WAIT_S)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._last

    def _is_due(self) -> bool:
        last = self._last
        if last is None:
            return True
        return time.monotonic() - last.at > max(AGAIN_S, _PAUSES * last.took_s)

    def _count(self, store: Store) -> None:
        began, kinds = time.monotonic(), dict[str, tuple[int, int]]()
        try:
            for row in file_rows(store):
                files, size = kinds.get(row["kind"], (0, 0))
                kinds[row["kind"]] = (files + 1, size + row["disk_bytes"])
            now = time.monotonic()
            self._last = FileCount(kinds, now, now - began)
        except (MillraceError, OSError) as error:
            self._error = error
        finally:
            self._counting = None
