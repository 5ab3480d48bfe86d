"""The end of a reader's process: Spark sends it SIGTERM, and calls nothing.

That would leave the lease of its read, the folder of its queues and the ownership of journals to
the next process. So the signal becomes an exception in the main thread, on which Spark's loop
stops the reader as on any other, within a limit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from millrace.wakeup import WorkerThread, is_main, still_running


class QueryEnded(SystemExit):
    """Spark has ended the query of this process."""


class ProcessEnd:
    """Waits for the signal, once `watch` was called, and ends the process in order."""

    def __init__(self) -> None:
        self._is_watching = False
        self._got_signal = False

    def watch(self) -> None:
        """From now on, end in order; only if no other handler has the signal."""
        if is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
            self._is_watching = True

    def finish(self, let_go: Callable[[], None], limit_ms: int) -> None:
        """Close everything, within a time limit, even if a call hangs.

        If the signal came, Spark no longer listens to this process, and it ends here. Otherwise
        the process goes on, so that Spark gets the reader's error.
        """
        if self._is_watching:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        thread = WorkerThread(let_go, "stream-end")
        thread.start()
        hangs = bool(still_running([thread], limit_ms))
        if self._got_signal:
            os._exit(0)
        if self._is_watching:
            if hangs:
                signal.setitimer(signal.ITIMER_REAL, limit_ms / 1000)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_watching = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> NoReturn:
        # Spark may send it twice: the second would end what the first one began to let go.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._got_signal = True
        raise QueryEnded(0)
