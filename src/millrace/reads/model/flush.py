"""When a slice flushes: one flush at a time, begun by a commit. Pure.

idle --commit--> flushing --last answer--> idle, and at once again if commits came meanwhile
"""

from __future__ import annotations


class FlushCycle:
    """Counts flushes, and the queues that have answered the one in flight."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._cycle = 0
        self._awaited: set[int] = set()
        self._is_wanted = False

    def want(self) -> None:
        """Something was committed: flush as soon as no flush is in flight."""
        self._is_wanted = True

    def begin(self) -> int | None:
        """The number of the flush to send to every queue now; None if there is none to send."""
        if self._awaited or not self._is_wanted:
            return None
        self._is_wanted = False
        self._cycle += 1
        self._awaited = set(range(self._queues))
        return self._cycle

    def on_flushed(self, queue: int, cycle: int) -> bool:
        """Whether this was the last answer."""
        assert cycle == self._cycle, (cycle, self._cycle)
        assert queue in self._awaited, (queue, self._awaited)
        self._awaited.remove(queue)
        return not self._awaited
