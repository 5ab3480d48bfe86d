"""Asks the owner again while it cannot be reached, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import LeaseHeld, Retriable
from millrace.metrics.process_metrics import RETRIES

T = TypeVar("T")


def patiently(ask: Callable[[], T], config: Config, passing: type[Retriable] = Retriable) -> T:
    """Make a call that is safe to repeat, until it succeeds or the time of a lease is over.

    After the time of a lease another worker has the unit, so this worker need not go on.
    """
    until = time.monotonic() + ms(config.job_lease) / 1000
    wait_ms = config.job_idle_ms
    while True:
        try:
            return ask()
        except LeaseHeld:
            raise
        except passing:
            if time.monotonic() + wait_ms / 1000 > until:
                raise
        RETRIES.add(1, "owner")
        time.sleep(wait_ms / 1000)
        wait_ms *= 2
