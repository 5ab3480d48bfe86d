"""Ranges that a reader is inside of. Pure.

A reader of many journals takes a little of each at a time. The ledger is asked for a range when a
reader enters it, and not again for each part. That is safe: the rows of a range never change. If it
was merged since, its file may be gone, and its reader looks it up again; truncated rows are below
the first offset of the journal, which is looked at before.

Invariant: a range is answered only if it has all rows that one read takes of its journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millrace.journal.core.book import Journal
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InSegment

_JOURNALS_MAX: Final = 65_536


class PartlyRead:
    """By journal, the range that was last read in part. Many threads may use it."""

    def __init__(self) -> None:
        self._ranges: dict[JournalId, AppendRange] = {}

    def note(self, range_: AppendRange, next_: Offset) -> None:
        """Rows of a range were read up to here."""
        if next_ >= range_.next:
            self._ranges.pop(range_.journal, None)
        elif isinstance(range_.where, InSegment):
            if len(self._ranges) >= _JOURNALS_MAX:
                self._ranges = {}
            self._ranges[range_.journal] = range_

    def forget(self, journal: JournalId) -> None:
        """The range of a journal is no longer where it was."""
        self._ranges.pop(journal, None)

    def find(self, journal: Journal, offset: Offset, bytes_max: int) -> AppendRange | None:
        """The range that has all rows of a read of so many bytes; None: ask the ledger."""
        range_ = self._ranges.get(journal.id)
        if range_ is None or not range_.first <= offset < range_.next:
            return None
        row_bytes = max(1, range_.bytes_read // (range_.next - range_.first))
        is_enough = range_.next - offset > bytes_max // row_bytes
        return range_ if is_enough or range_.next >= journal.end else None


def in_turn(
    starts: Sequence[tuple[Journal, Offset]],
    known: Sequence[AppendRange | None],
    asked: Iterable[AppendRange],
) -> Iterator[AppendRange]:
    """Ranges in the order of journals: the known one of each, or those that the ledger gave."""
    rest = iter(asked)
    range_ = next(rest, None)
    for (journal, _), known_range in zip(starts, known, strict=True):
        if known_range is not None:
            yield known_range
            continue
        while range_ is not None and range_.journal == journal.id:
            yield range_
            range_ = next(rest, None)
