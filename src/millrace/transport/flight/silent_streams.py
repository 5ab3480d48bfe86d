"""Cuts a stream on which nothing came for too long.

A process that was killed ends its streams. One that was stopped, or whose host vanished, does not:
a reader would wait for the next message as long as the whole stream may last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

_CHECKS_PER_LIMIT: Final = 4


def watched(stream: Any, limit_ms: int) -> Iterator[Any]:  # noqa: ANN401 - a stream of Flight's
    """The messages of a stream, which is cancelled when a wait for one lasts too long."""
    limit_s = limit_ms / 1000
    waits_since: float | None = None
    closed = threading.Event()

    def watch() -> None:
        while not closed.wait(limit_s / _CHECKS_PER_LIMIT):
            since = waits_since
            if since is not None and time.monotonic() - since > limit_s:
                stream.cancel()
                return

    threading.Thread(target=watch, name="millrace-silence", daemon=True).start()
    try:
        while True:
            waits_since = time.monotonic()
            try:
                message = next(stream, None)
            finally:
                waits_since = None
            if message is None:
                return
            yield message
    finally:
        closed.set()
