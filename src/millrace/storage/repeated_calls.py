"""Calls to a store that are made again after an error that may pass.

Clients of stores try again if a request fails, and not all do if the body of its answer ends early.
Invariant: only calls that may be carried out twice come here: reads, and removals. No try begins
after the limit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from millrace.metrics.process_metrics import RETRIES

PAUSE_MS: Final = 100
"""The wait before a read is made again; it doubles with each."""
_Answer = TypeVar("_Answer")


def repeated(
    read: Callable[[float], _Answer],
    passing: type[Exception] | tuple[type[Exception], ...],
    *,
    tries_max: int,
    limit_s: float,
) -> _Answer:
    """Make a read, and make it again after `passing` errors; the last one is raised.

    `read` gets the seconds that are left. A file that is not there, or not allowed, is an answer.
    """
    until = time.monotonic() + limit_s
    pause_s, tries_left = PAUSE_MS / 1000, tries_max
    while True:
        tries_left -= 1
        try:
            return read(until - time.monotonic())
        except (FileNotFoundError, PermissionError):
            raise
        except passing:
            pause_s *= random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come at once
            if not tries_left or time.monotonic() + pause_s >= until:
                raise
        RETRIES.add(1, "store")
        time.sleep(pause_s)
        pause_s *= 2
