"""Which journals changed recently, so that a reader of very many looks at those alone.

Every journal that grew, was truncated or deleted gets the next version; only its last one is kept.
A caller that has seen a version gets the journals with higher ones, and pays for those alone. Above
a limit the oldest are forgotten. Versions begin at a random number each time a broker opens. A
caller with an unknown version rescans all journals.

Invariant: the answer for a known version names every journal that changed after it.
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
    """A first version that no earlier opening of the broker has used."""
    return secrets.randbits(_BASE_BITS)


class MovedLately:
    """The last changes of one broker's journals. Many threads may use it."""

    def __init__(self, limit: int, new_base: Callable[[], int] = random_base) -> None:
        """`limit` is how many journals are remembered."""
        self._limit = limit
        self._new_base = new_base
        self._lock = threading.Lock()
        self._last: OrderedDict[JournalId, int] = OrderedDict()
        """By journal, in the order of its last move."""
        self._version = self._oldest = new_base()

    def note(self, journals: Iterable[JournalId]) -> None:
        """These journals changed now."""
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
        """Whether something changed after this version."""
        return self._version != since

    def after(self, since: int) -> MovedJournals:
        """The journals that moved after a version."""
        with self._lock:
            if not self._oldest <= since <= self._version:
                return MovedJournals(version=self._version, journals=None)
            moved: list[JournalId] = []
            for journal, version in reversed(self._last.items()):
                if version <= since:
                    break
                moved.append(journal)
            return MovedJournals(version=self._version, journals=tuple(reversed(moved)))
