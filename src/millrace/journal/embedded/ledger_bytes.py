"""How many bytes of each journal are in the ledger, and which journals have the most. Pure.

Invariant: the cost of a question grows with its answer, not with the number of journals.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

from millrace.journal.core.journal_names import JournalId

_SPARE: Final = 1024


class LedgerBytes:
    """Bytes by journal, with their sum, and the largest at hand."""

    def __init__(self, sizes: Mapping[JournalId, int]) -> None:
        self._sizes = dict(sizes)
        self.total = sum(self._sizes.values())
        self._heap: list[tuple[int, JournalId]] = []
        """Largest first. Entries that are no longer true are passed over when they come up."""
        self._gather()

    def of(self, journal: JournalId) -> int:
        """How much of a journal waits."""
        return self._sizes.get(journal, 0)

    def add(self, journal: JournalId, size: int) -> None:
        """More of a journal waits."""
        self._sizes[journal] = now = self.of(journal) + size
        self.total += size
        heapq.heappush(self._heap, (-now, journal))
        if len(self._heap) > 2 * len(self._sizes) + _SPARE:
            self._gather()

    def drop(self, journal: JournalId) -> None:
        """Nothing of a journal waits any more."""
        self.total -= self._sizes.pop(journal, 0)

    def largest(self, count: int, least: int = 1) -> list[JournalId]:
        """The journals with the most bytes in the ledger, at least so many, largest first."""
        sizes: dict[JournalId, int] = {}
        while self._heap and len(sizes) < count and -self._heap[0][0] >= least:
            size, journal = heapq.heappop(self._heap)
            # An old entry is true again when a journal grew to the same size once more.
            if self._sizes.get(journal) == -size:
                sizes[journal] = size
        for journal, size in sizes.items():
            heapq.heappush(self._heap, (size, journal))
        return list(sizes)

    def _gather(self) -> None:
        self._heap = [(-size, journal) for journal, size in self._sizes.items()]
        heapq.heapify(self._heap)
