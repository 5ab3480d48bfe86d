"""Which journals moved lately: so that who reads very many looks at those alone.

Every journal that grew, was truncated or deleted gets the next version, and only its last one is
kept. Who has seen a version is told the journals with higher ones, at the cost of those. The oldest
are forgotten above a limit, and versions begin at a random number in each life of a broker: whoever
comes with a version that is not known is told to look at all.

Invariant: a journal that moved after a known version is named, or all of them are meant.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.values import MovedJournals

_BASE_BITS: Final = 61


def random_base() -> int:
    """A version that no other life has been at, and that leaves room to count on from."""
    return secrets.randbits(_BASE_BITS)


class MovedLately:
    """The last moves of one broker's journals. May be used by many threads."""

    def __init__(self, limit: int, new_base: Callable[[], int] = random_base) -> None:
        """`limit` is how many journals are remembered."""
        self._limit = limit
        self._new_base = new_base
        self._lock = threading.Lock()
        self._last: OrderedDict[JournalId, int] = OrderedDict()
        """By journal, in the order of its last move."""
        self._version = self._oldest = new_base()

    def note(self, journals: Iterable[JournalId]) -> None:
        """These have moved now."""
        with self._lock:
            for journal in journals:
                self._version += 1
                self._last[journal] = self._version
                self._last.move_to_end(journal)
            while len(self._last) > self._limit:
                _, self._oldest = self._last.popitem(last=False)

    def forget(self) -> None:
        """Begin a new life: no version that was given out is known from now on."""
        with self._lock:
            self._last.clear()
            self._version = self._oldest = self._new_base()

    def is_after(self, since: int) -> bool:
        """Whether there is something to tell to who has seen this version."""
        return self._version != since

    def after(self, since: int) -> MovedJournals:
        """What moved after a version."""
        with self._lock:
            if not self._oldest <= since <= self._version:
                return MovedJournals(version=self._version, journals=None)
            moved: list[JournalId] = []
            for journal, version in reversed(self._last.items()):
                if version <= since:
                    break
                moved.append(journal)
            return MovedJournals(version=self._version, journals=tuple(reversed(moved)))
