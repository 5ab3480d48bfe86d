"""Which ranges of very many journals are read in one call. Pure.

What is read is chosen by the ledger's ranges alone, before a byte of the rows is read.

Invariant: rows are chosen as `RowCollector` would collect them, one journal after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from millrace.journal.core.book import Journal
from millrace.journal.core.journal_names import Offset
from millrace.journal.embedded.ledger.ledger_port import AppendRange


@dataclass(slots=True)
class ChosenRanges:
    """What is read of one journal: these ranges, less the rows before `offset`."""

    journal: Journal
    offset: Offset
    next: Offset
    ranges: list[AppendRange] = field(default_factory=list)
    """None if the ledger has no range with the row at `offset`."""

    def cuts(self) -> Iterator[tuple[AppendRange, int, int]]:
        """Each range, with the first of its chosen rows and their number."""
        begin = self.offset - self.ranges[0].first
        for range_ in self.ranges:
            yield range_, begin, min(range_.next, self.next) - range_.first - begin
            begin = 0


@dataclass(slots=True)
class RangeChooser:
    """Goes along ranges until the limits are reached, as `RowCollector` does."""

    rows_left: int
    bytes_left: int
    bytes_each: int
    """Of one journal."""
    _bytes_of_journal: int = 0

    def is_full(self) -> bool:
        """Whether no further journal is looked at."""
        return self.rows_left <= 0 or self.bytes_left <= 0

    def choose(
        self, starts: Sequence[tuple[Journal, Offset]], ranges: Iterable[AppendRange]
    ) -> Iterator[ChosenRanges]:
        """What to read of these journals, whose ranges come in the same order."""
        rest = iter(starts)
        now: ChosenRanges | None = None
        for range_ in ranges:
            while now is None or now.journal.id != range_.journal:
                if now is not None:
                    yield now
                if self.is_full():
                    return
                journal, offset = next(rest)
                now = ChosenRanges(journal, offset, offset)
                self._bytes_of_journal = self.bytes_each
            if not self._take(now, range_):
                self.bytes_left = 0
                break
        if now is not None:
            yield now
        if not self.is_full():
            yield from (ChosenRanges(journal, offset, offset) for journal, offset in rest)

    def _take(self, now: ChosenRanges, range_: AppendRange) -> bool:
        """Take what fits of a range; False if a limit of the whole read ended it."""
        if not range_.first <= now.next < range_.next:
            return True
        count = min(range_.next, now.journal.end) - now.next
        size = max(1, range_.bytes_read // (range_.next - range_.first))
        of_all = min(self.rows_left, self.bytes_left // size)
        fitting = min(of_all, self._bytes_of_journal // size)
        chosen = min(count, fitting if now.ranges else max(1, fitting))
        if chosen > 0:
            now.ranges.append(range_)
            now.next = Offset(now.next + chosen)
            self.rows_left -= chosen
            self.bytes_left -= chosen * size
            self._bytes_of_journal -= chosen * size
        if chosen < count and fitting < of_all:
            self._bytes_of_journal = 0  # No later range of it is taken either.
            return True
        return chosen == count
