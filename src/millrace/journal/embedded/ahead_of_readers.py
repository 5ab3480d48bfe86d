"""Fetches what readers of the owner need, and will need next, where files lie in a bucket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from millrace.journal.core.book import Journal
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_windows import ReadWindows
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InSegment, Ledger
from millrace.journal.embedded.many_journals import ChosenRanges
from millrace.storage.fetched_ahead import FetchedAhead, Piece

Spans = list[tuple[JournalId, Offset, Offset]]


class AheadOfReaders:
    """Has pieces fetched, unless files lie on a disk, which answers at once. For many threads."""

    def __init__(self, ledger: Ledger, ahead: FetchedAhead | None, bytes_max: int) -> None:
        self._ledger, self._ahead = ledger, ahead
        self._windows = ReadWindows(bytes_max)
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether files lie where each request takes its time."""
        return self._ahead is not None

    def needs(self, ranges: Iterable[AppendRange]) -> None:
        """A read takes these ranges now, in this order."""
        if self._ahead is not None:
            self._ahead.need(_pieces(ranges))

    def needs_of(
        self, page: Iterable[AppendRange], offset: Offset, rows_max: int, bytes_max: int
    ) -> None:
        """A read takes rows of these ranges from here on, within limits."""
        if self._ahead is not None:
            self.needs(_within(page, offset, rows_max, bytes_max))

    def have_read(self, reads: Iterable[tuple[Journal, Offset, Offset, int]]) -> None:
        """Rows from an offset up to another were read, of about so many bytes."""
        if self._ahead is None:
            return
        spans: Spans = []
        with self._lock:
            for journal, offset, next_, size in reads:
                span = self._windows.on_read(journal.id, offset, next_, journal.end, size)
                if span is not None:
                    spans.append((journal.id, span.begin, span.end))
        if spans:
            begins = {journal: begin for journal, begin, _ in spans}
            with contextlib.closing(self._ledger.ranges_of(spans)) as ranges:
                # A range in the middle of which a reader is was fetched already.
                self._ahead.want(_pieces(r for r in ranges if r.first >= begins[r.journal]))

    def have_chosen(self, chosen: Iterable[ChosenRanges]) -> None:
        """The same of rows that were chosen of many journals."""
        if self._ahead is not None:
            self.have_read((of.journal, of.offset, of.next, _bytes_of(of)) for of in chosen)


def _within(
    page: Iterable[AppendRange], offset: Offset, rows_max: int, bytes_max: int
) -> Iterator[AppendRange]:
    for range_ in page:
        if rows_max <= 0 or bytes_max <= 0:
            return
        yield range_
        rows = range_.next - max(offset, range_.first)
        rows_max -= rows
        bytes_max -= rows * range_.bytes_read // (range_.next - range_.first)


def _bytes_of(chosen: ChosenRanges) -> int:
    if not chosen.ranges:
        return 0
    return sum(r.bytes_read * count // (r.next - r.first) for r, _, count in chosen.cuts())


def _pieces(ranges: Iterable[AppendRange]) -> list[Piece]:
    return [
        Piece(range_.where.file, range_.where.position, range_.bytes)
        for range_ in ranges
        if isinstance(range_.where, InSegment)
    ]
