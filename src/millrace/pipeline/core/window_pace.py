"""How many calls are recorded ahead, and when results are published: by how long things take. Pure.

A call that ends is followed at once by one that is recorded already. So as many calls are recorded
ahead as end until the next record is durable: while results linger, and while that is published.
"""

from __future__ import annotations

import math

from millrace.pipeline.core.paid_step import WindowLimits

_LATER = 0.9
"""What an average counts after each later call."""
_SPARE = 1.5
_BACKOFF_DOUBLINGS_MAX = 30


class WindowPace:
    """Measures calls and publishes of one turn."""

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._call_s: float | None = None
        self._publish_us = 0
        self._published_us = 0
        self._sent_us = 0

    @property
    def target(self) -> int:
        """How many calls are to be recorded without an outcome."""
        return self._limits.concurrency + self._ahead

    @property
    def _ahead(self) -> int:
        limits = self._limits
        if limits.ahead_max <= 1:
            return limits.ahead_max
        if self._call_s is None:
            return max(1, min(limits.ahead_max, limits.concurrency // 4))
        cycle_us = limits.linger_us + self._publish_us
        ended = limits.concurrency * cycle_us / max(1.0, self._call_s * 1_000_000)
        return max(1, min(limits.ahead_max, math.ceil(_SPARE * ended)))

    def on_called(self, seconds: float, *, is_answer: bool) -> None:
        """A call ended after this time."""
        if is_answer:
            known = seconds if self._call_s is None else self._call_s
            self._call_s = _LATER * known + (1 - _LATER) * seconds

    def on_sent(self, now_us: int) -> None:
        """A change is about to be published."""
        self._sent_us = now_us

    def on_published(self, now_us: int) -> None:
        """A change is published."""
        self._publish_us = max(0, now_us - self._sent_us) if self._sent_us else self._publish_us
        self._published_us = now_us

    @property
    def due_us(self) -> int:
        """When results that wait are to be published."""
        return self._published_us + self._limits.linger_us

    def is_due(self, now_us: int) -> bool:
        """Whether that time has come; a clock that went back makes it come at once."""
        return now_us >= self.due_us or now_us < self._published_us

    def backoff_us(self, attempt: int, chance: float) -> int:
        """How long a call waits behind this attempt; `chance` from 0 to 1 keeps calls apart."""
        doublings = min(attempt - 1, _BACKOFF_DOUBLINGS_MAX)
        waited = min(self._limits.backoff_us << doublings, self._limits.backoff_us_max)
        return int(waited * (1 + chance) / 2)
