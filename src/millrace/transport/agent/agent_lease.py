"""How long an agent runs without calls. Pure, apart from its lock.

Invariant: once a lease has ended no call is taken on, so no client relies on an agent that is about
to end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class AgentLease:
    """Renewed by every call; without a length it never runs out."""

    length_ms: int | None
    renewed_at_ms: int
    ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def on_call(self, now_ms: int) -> bool:
        """Renew. Returns False if the lease has ended and the call must be turned away."""
        with self._lock:
            self.renewed_at_ms = max(self.renewed_at_ms, now_ms)
            return not self.ended

    def on_tick(self, now_ms: int) -> bool:
        """End the lease if it ran out. Returns whether it has ended."""
        with self._lock:
            if self.length_ms is not None and now_ms - self.renewed_at_ms >= self.length_ms:
                self.ended = True
            return self.ended
