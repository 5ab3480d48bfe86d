"""Whose turn it is among the journals of a follower. Pure.

Journals with rows take turns within a priority; one of a lower priority has its turn when no
journal of a higher one has rows. A journal at its end waits for rows, and one whose next row is
under its read delay waits for the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import Offset
from millrace.reads.live.ring import AtEnd


class Turn(Protocol):
    """A journal that is followed."""

    journal: str

    def on_more(self, waited_for: Offset) -> None:
        """There is more to read than up to this offset."""


Taker = TypeVar("Taker", bound=Turn)


class JournalTurns(Generic[Taker]):
    """The journals of one follower, by name, each ready, at its end, or under its delay."""

    def __init__(self) -> None:
        self._all: dict[str, tuple[int, Taker]] = {}
        self._ready: dict[int, deque[Taker]] = {}
        self.at_end: dict[str, Offset] = {}
        """The journals that wait for rows at or above an offset."""
        self._delayed: dict[str, AtEnd] = {}

    def add(self, taker: Taker, priority: int) -> None:
        """Read a journal from now on."""
        self._all[taker.journal] = (priority, taker)
        self._ready.setdefault(priority, deque()).append(taker)
        self._ready = dict(sorted(self._ready.items(), reverse=True))

    def next(self) -> tuple[int, Taker] | None:
        """The journal whose turn it is, and its priority."""
        for priority, ready in self._ready.items():
            if ready:
                return priority, ready[0]
        return None

    def had_turn(self, priority: int) -> None:
        """The journal whose turn it was gave rows: others of its priority are next."""
        self._ready[priority].rotate(-1)

    def wait(self, priority: int, end: AtEnd) -> None:
        """The journal whose turn it was has no rows now."""
        taker = self._ready[priority].popleft()
        if end.due is None:
            self.at_end[taker.journal] = end.offset
        else:
            self._delayed[taker.journal] = end

    def remove(self, priority: int) -> None:
        """The journal whose turn it was was read to its end."""
        del self._all[self._ready[priority].popleft().journal]

    def on_rows(self, journals: Iterable[str]) -> None:
        """These journals, which were at their ends, have rows."""
        for name in journals:
            self._go_on(name, self.at_end.pop(name))

    def on_time(self, now: Clock) -> None:
        """Rows that were due at this clock, or before, wait no longer."""
        for name, end in list(self._delayed.items()):
            assert end.due is not None, end
            if end.due <= now:
                del self._delayed[name]
                self._go_on(name, end.offset)

    def next_due(self) -> Clock | None:
        """When the next row is due that waits for its delay."""
        return min((end.due for end in self._delayed.values() if end.due is not None), default=None)

    def at_end_above(self, priority: int) -> Mapping[str, Offset]:
        """The journals of higher priorities that wait for rows."""
        if len(self._ready) <= 1:
            return {}
        return {
            name: offset for name, offset in self.at_end.items() if self._all[name][0] > priority
        }

    def clear(self) -> None:
        """Follow nothing any more."""
        self._all.clear()
        self._ready.clear()
        self.at_end.clear()
        self._delayed.clear()

    def _go_on(self, name: str, waited_for: Offset) -> None:
        priority, taker = self._all[name]
        taker.on_more(waited_for)
        self._ready[priority].append(taker)
