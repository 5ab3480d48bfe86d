"""What ledgers read from their tables: the book, ranges of rows, and segments.

The tables are a file of SQLite's, whether that is the ledger itself or a replica of a log.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from millrace.errors import Corrupt
from millrace.journal.core.book import Book
from millrace.journal.core.journal_names import JournalChoice, JournalId, Offset
from millrace.journal.embedded.ledger import ledger_loading, ledger_tables
from millrace.journal.embedded.ledger.ledger_connections import ReadingConnections
from millrace.journal.embedded.ledger.ledger_errors import not_a_ledger, reported, words
from millrace.journal.embedded.ledger.ledger_port import AppendRange, LedgerContent, Segment
from millrace.journal.embedded.ledger.ledger_tables import RangeRow
from millrace.limits import MIB
from millrace.message_types import known

_LAST_OFFSET: Final = 2**63 - 1
_PAGE_RANGES: Final = 4_096
_GROUP_BYTES_MAX: Final = 1 * MIB


class TableReader:
    """The half of a ledger that reads: one connection that also writes, and many that only read."""

    _path: str
    _writer: sqlite3.Connection
    _readers: ReadingConnections

    def load(self) -> LedgerContent:
        """See `Ledger.load`."""
        try:
            with self._reported("reading"):
                # All tables of one moment: an owner may be writing.
                self._writer.execute("BEGIN")
                content = ledger_loading.load(self._writer)
                self._writer.execute("COMMIT")
                return content
        except (ValueError, TypeError, KeyError, OSError, pa.ArrowException) as error:
            raise Corrupt(
                f"{words('reading', self._path, error)}\n  found: a row that no ledger holds\n"
                "  to fix: bring ledger.sqlite and ledger.sqlite-wal back from a copy"
            ) from error

    def load_some(self, choice: JournalChoice) -> Book:
        """What `load` has of these journals, as of one moment."""
        with self._reported("reading"), self._readers.reader() as reader:
            reader.execute("BEGIN")
            try:
                return ledger_loading.load_some(reader, choice)
            finally:
                reader.execute("COMMIT")

    def ranges(self, journal: JournalId, offset: Offset, count: int) -> Sequence[AppendRange]:
        """See `Ledger.ranges`."""
        return self._read(ledger_tables.RANGES_FROM, (journal, journal, offset, count))

    def ranges_of(
        self, spans: Sequence[tuple[JournalId, Offset, Offset]]
    ) -> Generator[AppendRange]:
        """See `Ledger.ranges_of`."""
        left = list(spans)
        with self._reported("reading"), self._readers.reader() as reader:
            reader.execute("BEGIN")
            try:
                while left:
                    page = _page(reader, left)
                    yield from page
                    left = _behind(left, page[-1]) if len(page) == _PAGE_RANGES else []
            finally:
                # An open one would keep the ledger's log from being written back.
                reader.execute("COMMIT")

    def waiting(self, journal: JournalId) -> Sequence[AppendRange]:
        """See `Ledger.waiting`."""
        return self._read(ledger_tables.RANGES_WAITING, (journal,))

    def segments_before(self, journal: JournalId, offset: Offset | None) -> Iterable[Segment]:
        """See `Ledger.segments_before`."""
        limit = _LAST_OFFSET if offset is None else offset
        with self._reported("reading"):
            rows = self._writer.execute(
                "SELECT * FROM segments WHERE journal = ? AND next_offset <= ?", (journal, limit)
            ).fetchall()
            return [ledger_tables.segment_of(row) for row in rows]

    def unused_segments(self) -> Sequence[Segment]:
        """See `Ledger.unused_segments`."""
        with self._reported("reading"):
            rows = self._writer.execute(ledger_tables.UNUSED_SEGMENTS).fetchall()
            return [ledger_tables.segment_of(row) for row in rows]

    def with_small_ranges(self, size: int, count: int) -> Sequence[JournalId]:
        """See `Ledger.with_small_ranges`."""
        with self._reported("reading"), self._readers.reader() as reader:
            rows = reader.execute(ledger_tables.WITH_SMALL_RANGES, (size, count)).fetchall()
            return [JournalId(row[0]) for row in rows]

    def _read(self, query: str, values: tuple[Any, ...]) -> list[AppendRange]:
        with self._reported("reading"), self._readers.reader() as reader:
            rows = reader.execute(query, values).fetchall()
            return [ledger_tables.range_of(row) for row in rows]

    def _epoch_there(self) -> int:
        row = self._writer.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
        return int(row[0])

    def _reported(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return reported(self._path, doing)


def _page(
    reader: sqlite3.Connection, spans: Sequence[tuple[JournalId, Offset, Offset]]
) -> list[AppendRange]:
    """The first ranges of these spans."""
    values = (msgspec.json.encode(spans).decode(), _PAGE_RANGES)
    ((text,),) = reader.execute(ledger_tables.RANGES_PAGE, values).fetchall()
    rows = msgspec.json.decode(text, type=known(list[RangeRow]))
    waiting = [row for row in rows if row.body is not None]
    for group in _groups(waiting):
        bodies = msgspec.json.encode([row.body for row in group]).decode()
        ((lengths, content),) = reader.execute(ledger_tables.BODIES, (bodies,)).fetchall()
        data, at = bytes.fromhex(content or ""), 0
        sizes = msgspec.json.decode(lengths, type=known(list[int | None]))
        for row, size in zip(group, sizes, strict=True):
            row.content = data[at : at + (size or 0)]
            at += size or 0
    return [row.range() for row in rows]


def _groups(rows: Sequence[RangeRow]) -> Iterator[list[RangeRow]]:
    """Ranges in the ledger, so many together as are looked up at once."""
    group: list[RangeRow] = []
    size = 0
    for row in rows:
        if group and size + row.bytes > _GROUP_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(row)
        size += row.bytes
    if group:
        yield group


def _behind(
    spans: Sequence[tuple[JournalId, Offset, Offset]], last: AppendRange
) -> list[tuple[JournalId, Offset, Offset]]:
    """What is left of spans behind a range."""
    index = next(index for index, span in enumerate(spans) if span[0] == last.journal)
    rest = list(spans[index + 1 :])
    end = spans[index][2]
    return [(last.journal, last.next, end), *rest] if last.next < end else rest


def make_tables(db: sqlite3.Connection) -> None:
    """Make the tables of an empty ledger."""
    db.executescript(
        f"BEGIN IMMEDIATE; {ledger_tables.TABLES}{ledger_tables.COMMIT_TABLES}"
        f"{ledger_tables.SEGMENT_INDEX}"
        f"PRAGMA application_id = {ledger_tables.APPLICATION_ID};"
        f"PRAGMA user_version = {ledger_tables.FORMAT_VERSION}; COMMIT;"
    )


def check_tables(db: sqlite3.Connection, path: str, *, is_read_only: bool = False) -> None:
    """Refuse tables of another program or a newer version; bring older ones to this version."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != ledger_tables.APPLICATION_ID:
        raise not_a_ledger(path)
    if version not in ledger_tables.VERSIONS_READ:
        raise ledger_tables.unknown_version(path, version)
    if version != ledger_tables.FORMAT_VERSION:
        added = ledger_tables.COMMIT_TABLES if version == 1 else ""
        db.executescript(
            f"BEGIN IMMEDIATE; {added}PRAGMA user_version = {ledger_tables.FORMAT_VERSION}; COMMIT;"
        )
    if not is_read_only:
        db.executescript(ledger_tables.SEGMENT_INDEX)
