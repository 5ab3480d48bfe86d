"""Cuts a stream on which nothing came for too long.

A process that was killed ends its streams. One that was stopped, or whose host vanished, does not:
who waits for the next message would wait as long as the whole stream may last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

Message = TypeVar("Message")
_LOOKS_PER_LIMIT: Final = 4


class Silence:
    """Watches the waits for messages of one stream, in a thread of its own."""

    def __init__(self, cut: Callable[[], None], limit_ms: int) -> None:
        """`cut` makes the wait that is under way fail."""
        self._cut, self._limit_s = cut, limit_ms / 1000
        self._waits_since: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="millrace-silence", daemon=True).start()

    def next(self, messages: Iterator[Message]) -> Message | None:
        """The next message; None after the last."""
        self._waits_since = time.monotonic()
        try:
            return next(messages, None)
        finally:
            self._waits_since = None

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._limit_s / _LOOKS_PER_LIMIT):
            since = self._waits_since
            if since is not None and time.monotonic() - since > self._limit_s:
                self._cut()
                return
