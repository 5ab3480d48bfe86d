"""How far to read ahead of readers that go through journals. Pure.

A read that begins where an earlier one ended belongs to a reader that goes on. For it more and more
is fetched ahead, twice as much with each read. For a first read nothing is fetched ahead: most
readers that look at a few rows make no other.

Invariant: no more is to be fetched ahead of a reader than the limit.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.journal.core.journal_names import JournalId, Offset

_READERS_MAX: Final = 65_536
"""So many readers are known; the one that came longest ago is forgotten first."""


class OffsetSpan(NamedTuple):
    """Rows of a journal that a reader will ask for."""

    begin: Offset
    end: Offset
    bytes: int
    """About so many."""


@dataclass(slots=True)
class _FollowedReader:
    until: Offset
    """Up to here rows are wanted already."""
    window: int = 0


class ReadWindows:
    """The readers of all journals, by where each reads next. For one thread at a time."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._readers: OrderedDict[tuple[JournalId, Offset], _FollowedReader] = OrderedDict()

    def on_read(
        self, journal: JournalId, offset: Offset, next_: Offset, end: Offset, size: int
    ) -> OffsetSpan | None:
        """Rows from `offset` to before `next_` were read, about `size` bytes; what to fetch ahead.

        `end` is the end of the journal.
        """
        if next_ <= offset:
            return None
        reader = self._readers.pop((journal, offset), None)
        if reader is None:
            reader = _FollowedReader(next_)
        else:
            reader.window = min(max(2 * reader.window, size), self._bytes_max)
        self._readers[journal, next_] = reader
        if len(self._readers) > _READERS_MAX:
            self._readers.popitem(last=False)
        row_bytes = max(1, size // (next_ - offset))
        begin = max(reader.until, next_)
        room = reader.window - (begin - next_) * row_bytes
        if begin >= end or 2 * room < reader.window or room < row_bytes:
            return None  # There is nothing more, or half of the window is wanted already.
        reader.until = Offset(min(end, begin + room // row_bytes))
        return OffsetSpan(begin, reader.until, (reader.until - begin) * row_bytes)
