"""Ctrl-C and SIGTERM while a job runs: the first asks it to stop, the second ends at once.

PySpark's own handler of Ctrl-C would cancel all tasks at once, and with them calls that cost money.
So a run installs its own handlers, if it runs in the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console

from millrace.wakeup import is_main

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts signals inside its `with` block."""

    def __init__(self, on_first: Callable[[], None], say: str) -> None:
        self._on_first, self._say = on_first, say
        self._before: dict[signal.Signals, Any] = {}
        self.seen: list[int] = []

    @property
    def is_forced(self) -> bool:
        """Whether a second signal came."""
        return len(self.seen) > 1

    def __enter__(self) -> Self:
        if is_main():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_again(self, text: str) -> None:
        """Raise the exception of the signal after the run has ended; no effect without a signal."""
        if signal.SIGTERM in self.seen:
            raise SystemExit(128 + signal.SIGTERM)
        if self.seen:
            raise KeyboardInterrupt(text)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.seen.append(number)
        if len(self.seen) == 1:
            self._on_first()
            # Written by another thread: this one may be in the middle of writing.
            threading.Thread(target=say, args=(self._say,), daemon=True).start()


def say(text: str) -> None:
    """Show the user a message while the job runs."""
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
