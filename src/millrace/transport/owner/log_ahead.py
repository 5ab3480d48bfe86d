"""Loads the log of an owner that is silent while its lease is watched, for the next owner.

Invariant: at most one log is loaded for a workspace, and one that is not taken is closed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from millrace.errors import MillraceError
from millrace.wakeup import WorkerThread

if TYPE_CHECKING:
    from millrace.journal.ledger_log.loaded_log import LoadedLog

_log: Final = logging.getLogger(__name__)


class LogAhead:
    """For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loading: Future[LoadedLog | None] | None = None

    def begin(self, load: Callable[[], LoadedLog | None]) -> None:
        """Load the log in a thread of its own, unless that was begun."""
        with self._lock:
            if self._loading is not None:
                return
            loading = self._loading = Future()

        def run() -> None:
            try:
                loading.set_result(load())
            except (MillraceError, OSError) as error:
                # The opening does it again, and tells what is wrong.
                _log.info("the log could not be loaded ahead: %s", error)
                loading.set_result(None)
            except BaseException as error:
                loading.set_exception(error)
                raise

        WorkerThread(run, "millrace-log-ahead").start()

    def take(self, wait_s: float) -> LoadedLog | None:
        """The log, which is the caller's to close; None if none was loaded."""
        loading = self._give_up()
        if loading is None:
            return None
        try:
            return loading.result(timeout=wait_s)
        except TimeoutError:
            _close_when_loaded(loading)
            return None

    def drop(self) -> None:
        """Close the log: its owner is there, or another process took over."""
        loading = self._give_up()
        if loading is not None:
            _close_when_loaded(loading)

    def _give_up(self) -> Future[LoadedLog | None] | None:
        with self._lock:
            loading, self._loading = self._loading, None
            return loading


def _close_when_loaded(loading: Future[LoadedLog | None]) -> None:
    def close(done: Future[LoadedLog | None]) -> None:
        with contextlib.suppress(Exception):
            loaded = done.result(timeout=0)
            if loaded is not None:
                loaded.close()

    loading.add_done_callback(close)
