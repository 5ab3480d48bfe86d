"""What the embedded broker keeps in its ledger, and the interface of a ledger. Pure.

One `save` is one durable transaction: the changes of a draft of the book, together with where
its rows were stored. SQLite is behind it now; a server could be later.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from millrace.journal.core.book import Book, RangeKind
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Stamp

STAMP_BYTES: Final = 41
"""What the system fields of a row take."""
SHARED: Final = JournalId(0)
"""Whose a segment is that holds small ranges of many journals."""


class InLedger(msgspec.Struct, frozen=True, gc=False):
    """Rows that are still in the ledger."""

    body: int
    content: bytes


class InSegment(msgspec.Struct, frozen=True, gc=False):
    """Rows in a segment file."""

    segment: int
    file: str
    """Relative to the broker's folder."""
    position: int


class AppendRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An append range: its offsets, its bytes and their checksum, and where they are stored.

    The garbage collector need not look at these: they hold no references to each other.
    """

    journal: JournalId
    first: Offset
    next: Offset
    rows: int
    rows_before: int
    kind: RangeKind
    bytes: int
    checksum: str
    where: InLedger | InSegment
    stamp: Stamp | None = None
    """The system fields of an adopted file's rows, which hold none themselves."""

    @property
    def bytes_read(self) -> int:
        """About what its rows take in memory, with their system fields."""
        added = 0 if self.stamp is None else STAMP_BYTES * (self.next - self.first)
        return self.bytes + added


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A file of rows and how much of it is published."""

    id: int
    journal: JournalId
    file: str
    bytes: int
    next: Offset
    """Above every row in it."""
    is_open: bool
    """Whether more may be appended to it."""
    is_adopted: bool = False


@dataclass(slots=True)
class Storing:
    """What changes about stored rows in one transaction."""

    ranges: list[AppendRange] = field(default_factory=list)
    moved: list[AppendRange] = field(default_factory=list)
    """Ranges that are replaced by some in `ranges`."""
    segments: list[Segment] = field(default_factory=list)
    segments_gone: list[int] = field(default_factory=list)
    dirty: list[int] = field(default_factory=list)
    clean: list[int] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)
    garbage_gone: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class LedgerContent:
    """What a ledger holds when it is opened."""

    book: Book
    segments: list[Segment]
    """The segments that are open or dirty."""
    adopted: list[Segment]
    """The segments whose files were written by other processes, which may add to them."""
    dirty: set[int]
    garbage: list[str]
    waiting: dict[JournalId, int]
    """Bytes that are still in the ledger, by journal."""
    next_body: int
    next_segment: int


class Ledger(Protocol):
    """Durable truth of one broker. `save` is called by one thread at a time, the rest by any."""

    @property
    def epoch(self) -> int:
        """How often the ledger has been opened; a lower epoch may not write any more."""

    def load(self) -> LedgerContent:
        """Everything but the rows and their ranges."""

    def save(self, draft: Book, storing: Storing) -> None:
        """Make all of it durable at once.

        Raises `StorageError` if nothing of it was saved, and `BrokerStopped` if that is not known
        or if another process has taken the ledger over.
        """

    def ranges(self, journal: JournalId, offset: Offset, count: int) -> Sequence[AppendRange]:
        """Some ranges in order, from the one that holds this offset on, as of one moment."""

    def ranges_of(
        self, spans: Sequence[tuple[JournalId, Offset, Offset]]
    ) -> Generator[AppendRange]:
        """Ranges of many journals, in the order given, each in order, as of one moment.

        Of each journal those from the one that holds the first offset up to the second. They are
        looked up in pages as they are taken: close it when there are enough.
        """

    def waiting(self, journal: JournalId) -> Sequence[AppendRange]:
        """A journal's ranges that are still in the ledger, in order."""

    def segments_before(self, journal: JournalId, offset: Offset | None) -> Iterable[Segment]:
        """Segments whose rows are all below an offset; all of the journal's for None."""

    def unused_segments(self) -> Sequence[Segment]:
        """Segments to which no more is added here, and of which no range is left."""

    def with_small_ranges(self, size: int, count: int) -> Sequence[JournalId]:
        """Journals with at least so many ranges in files that are below a size."""

    def write_back(self) -> None:
        """Do what waits for an idle moment."""

    def close(self) -> None:
        """Close its files."""
