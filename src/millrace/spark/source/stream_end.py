"""The end of a reader's process: Spark sends it SIGTERM, and calls nothing.

That would leave the lease of its task, the folder of its queues and the ownership of journals to
whoever comes next. So the signal becomes an exception in the main thread, on which Spark's loop
stops the reader as on any other, within a limit.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

from millrace.wakeup import is_main


class QueryEnded(SystemExit):
    """Spark has ended the query of this process."""


class End:
    """Waits for the signal, once told to, and sees the process to its end."""

    def __init__(self) -> None:
        self._is_watching = False
        self._was_told = False

    def watch(self) -> None:
        """From now on, end in order; only where nobody else has a say about the signal."""
        if is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
            self._is_watching = True

    def begin(self, limit_ms: int) -> None:
        """Everything is let go of now: be gone by this limit, whatever hangs."""
        if self._is_watching:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, limit_ms / 1000)

    def finish(self) -> None:
        """It was let go of; nobody listens to this process any more if the signal came."""
        if self._was_told:
            os._exit(0)
        if self._is_watching:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_watching = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> NoReturn:
        self._was_told = True
        raise QueryEnded(0)
