"""The tables of the SQLite ledger, and how values are stored in them. Pure.

Version 3 of the format; `docs/format.md` describes it. Version 1 knew no numbers of commits, and
version 2 no ranges of kind 3; they are brought to version 3 when they are opened. Clocks are 64
bits without a sign; SQLite's signed integers store the same bits.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from millrace.errors import FormatError
from millrace.journal.core.book import RangeKind
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag, ProducerId, Stamp
from millrace.journal.core.values import Appended, Published
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InLedger, InSegment, Segment
from millrace.names import shown

APPLICATION_ID: Final = 0x4D524A31
FORMAT_VERSION: Final = 3
VERSIONS_READ: Final = (1, 2, 3)
_DAMAGED: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
"""The last is for statements that SQLite does not understand: names of columns are damaged."""
FOLDERS: Final = ("segments", "adopted")
"""The folder of the segment files, within the folder of the journals."""
_PARTS_MIN: Final = 2
_NOWHERE: Final = frozenset({"", ".", ".."})
_FILES_MAX: Final = 4_096
"""How many names of files are remembered as checked."""

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', 0);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE schemas (id INTEGER PRIMARY KEY, content BLOB NOT NULL UNIQUE);
CREATE TABLE journals (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, schema_id INTEGER NOT NULL,
  labels TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
  start_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL, row_count INTEGER NOT NULL);
CREATE TABLE sequences (
  journal INTEGER NOT NULL, producer INTEGER NOT NULL, last_commit INTEGER NOT NULL,
  open_begin INTEGER, open_clock INTEGER, PRIMARY KEY (journal, producer)) WITHOUT ROWID;
CREATE TABLE rolled_back (
  journal INTEGER NOT NULL, producer INTEGER NOT NULL, begin_offset INTEGER NOT NULL,
  end_offset INTEGER NOT NULL, PRIMARY KEY (journal, end_offset, producer)) WITHOUT ROWID;
CREATE TABLE group_offsets (
  journal INTEGER NOT NULL, name TEXT NOT NULL, next_offset INTEGER NOT NULL,
  PRIMARY KEY (journal, name)) WITHOUT ROWID;
CREATE TABLE leases (
  name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, holder TEXT, expires_at_ms INTEGER NOT NULL,
  lease_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE producers (
  id INTEGER PRIMARY KEY, name TEXT UNIQUE, clock INTEGER NOT NULL, sequence INTEGER, answer TEXT);
CREATE TABLE segments (
  id INTEGER PRIMARY KEY, journal INTEGER NOT NULL, file TEXT NOT NULL UNIQUE,
  bytes INTEGER NOT NULL, next_offset INTEGER NOT NULL, is_open INTEGER NOT NULL,
  is_adopted INTEGER NOT NULL);
CREATE INDEX segments_of ON segments (journal, next_offset);
CREATE TABLE dirty (segment INTEGER PRIMARY KEY);
CREATE TABLE ranges (
  journal INTEGER NOT NULL, first_offset INTEGER NOT NULL, next_offset INTEGER NOT NULL,
  row_count INTEGER NOT NULL, rows_before INTEGER NOT NULL, kind INTEGER NOT NULL,
  bytes INTEGER NOT NULL, checksum TEXT NOT NULL, segment INTEGER, position INTEGER, body INTEGER,
  producer INTEGER, clock INTEGER, flag INTEGER,
  PRIMARY KEY (journal, first_offset)) WITHOUT ROWID;
CREATE TABLE bodies (
  id INTEGER PRIMARY KEY, journal INTEGER NOT NULL, first_offset INTEGER NOT NULL,
  bytes INTEGER NOT NULL, content BLOB NOT NULL);
CREATE INDEX bodies_of ON bodies (journal, first_offset, bytes);
CREATE TABLE garbage (file TEXT PRIMARY KEY) WITHOUT ROWID;
"""
SEGMENT_INDEX: Final = """
CREATE INDEX IF NOT EXISTS ranges_of_segment ON ranges (segment) WHERE segment IS NOT NULL;
"""
"""A ledger of an earlier Millrace lacks it: it is made when such a ledger is opened."""
COMMIT_TABLES: Final = """
CREATE TABLE last_commit (
  number INTEGER NOT NULL, at_ms INTEGER NOT NULL, file_commit INTEGER NOT NULL);
INSERT INTO last_commit VALUES (0, 0, 0);
CREATE TABLE openings (
  epoch INTEGER PRIMARY KEY, id INTEGER NOT NULL, first_commit INTEGER NOT NULL);
CREATE TABLE losses (at_ms INTEGER NOT NULL, message TEXT NOT NULL);
"""
"""What version 2 added."""
OPENINGS_KEPT: Final = 1000
PUT_LAST_COMMIT: Final = "UPDATE last_commit SET number = ?, at_ms = ?, file_commit = ?"
RAISE_NEXT_SEGMENT: Final = """
INSERT INTO meta VALUES ('next_segment', ?)
ON CONFLICT DO UPDATE SET value = excluded.value WHERE value < excluded.value
"""

_RANGES: Final = """
SELECT r.journal, r.first_offset, r.next_offset, r.row_count, r.rows_before, r.kind, r.bytes,
  r.checksum, r.segment, s.file, r.position, r.body, b.content, r.producer, r.clock, r.flag
FROM ranges r LEFT JOIN segments s ON s.id = r.segment LEFT JOIN bodies b ON b.id = r.body
"""
RANGES_FROM: Final = f"""{_RANGES}
WHERE r.journal = ? AND r.first_offset >= coalesce(
  (SELECT max(first_offset) FROM ranges WHERE journal = ? AND first_offset <= ?), 0)
ORDER BY r.first_offset LIMIT ?
"""  # noqa: S608 - the text above
RANGES_OF: Final = """
SELECT r.journal, r.first_offset, r.next_offset, r.row_count, r.rows_before, r.kind, r.bytes,
  r.checksum, r.segment, s.file, r.position, r.body, r.producer, r.clock, r.flag
FROM json_each(?) w
  CROSS JOIN ranges r ON r.journal = w.value ->> 0 AND r.first_offset < w.value ->> 2
    AND r.first_offset >= coalesce((SELECT max(first_offset) FROM ranges
      WHERE journal = w.value ->> 0 AND first_offset <= w.value ->> 1), 0)
  LEFT JOIN segments s ON s.id = r.segment
"""
"""By journal in the order given: the loops run as they are written."""
RANGES_PAGE: Final = f"""
SELECT json_group_array(json_array(journal, first_offset, next_offset, row_count, rows_before, kind,
  bytes, checksum, segment, file, position, body, NULL, producer, clock, flag))
FROM ({RANGES_OF} LIMIT ?)
"""  # noqa: S608 - the text above
"""A page of these as one row of JSON, without the bytes of the rows: SQLite lets go of the
interpreter's lock for each row that is taken, and other threads would take it each time."""
BODIES: Final = """
SELECT json_group_array(length(content)), group_concat(hex(content), '')
FROM (SELECT b.content FROM json_each(?) w LEFT JOIN bodies b ON b.id = w.value)
"""
"""The bytes of bodies in the order given, as one row for the same reason."""
UNUSED_SEGMENTS: Final = """
SELECT * FROM segments s WHERE NOT is_open
  AND NOT EXISTS (SELECT 1 FROM ranges WHERE segment = s.id)
"""
"""One search for each segment, however many ranges there are."""
WITH_SMALL_RANGES: Final = """
SELECT journal FROM ranges WHERE segment IS NOT NULL AND bytes < ?
GROUP BY journal HAVING count(*) >= ?
"""
CLEAN_OPEN_SEGMENTS: Final = """
SELECT file, bytes FROM segments WHERE is_open AND id NOT IN (SELECT segment FROM dirty)
"""
CONTRADICTIONS: Final = """
SELECT j.name, j.end_offset, j.row_count, r.next_offset, r.rows_before + r.row_count
FROM journals j LEFT JOIN ranges r ON r.journal = j.id AND r.first_offset =
  (SELECT max(first_offset) FROM ranges WHERE journal = j.id)
WHERE coalesce(r.next_offset, j.start_offset) != j.end_offset
  OR coalesce(r.rows_before + r.row_count, j.row_count) != j.row_count
"""
"""Journals that do not end where their last range does; without any, they begin at their end."""
RANGES_WAITING: Final = """
SELECT r.journal, r.first_offset, r.next_offset, r.row_count, r.rows_before, r.kind, r.bytes,
  r.checksum, NULL, NULL, NULL, r.body, b.content, r.producer, r.clock, r.flag
FROM bodies b CROSS JOIN ranges r ON r.journal = b.journal AND r.first_offset = b.first_offset
WHERE b.journal = ? ORDER BY b.first_offset
"""


def unknown_version(path: str, version: int) -> FormatError:
    """The error for a ledger that another Millrace wrote."""
    read = ", ".join(map(str, VERSIONS_READ))
    return FormatError(
        f"{path} is a ledger of version {version}\n"
        f"  versions read: {read}\n  to fix: use a newer Millrace"
    )


def is_damage(error: Exception) -> bool:
    """Whether SQLite says of a file that it is no database, or no longer one."""
    is_text = isinstance(error, UnicodeDecodeError)
    return is_text or getattr(error, "sqlite_errorcode", 0) in _DAMAGED


def signed(clock: int) -> int:
    """The bits of a clock as SQLite keeps them."""
    return clock - 2**64 if clock >= 2**63 else clock


def unsigned(value: int) -> Clock:
    """A clock from the bits that SQLite kept."""
    return Clock(value + 2**64 if value < 0 else value)


@lru_cache(maxsize=_FILES_MAX)
def file_of(given: object) -> str:
    """The name of a segment's file; one that is not within the folder of the journals is none."""
    parts = given.split("/") if isinstance(given, str) else []
    if len(parts) < _PARTS_MIN or parts[0] not in FOLDERS or _NOWHERE & set(parts):
        raise ValueError(f"a segment's file is {shown(given)}")
    return "/".join(parts)


class RangeRow(msgspec.Struct, array_like=True, gc=False):
    """A row of `RANGES_FROM`, as it is found: a damaged ledger may hold anything."""

    journal: Any
    first: Any
    next: Any
    rows: Any
    rows_before: Any
    kind: Any
    bytes: Any
    checksum: Any
    segment: Any
    file: Any
    position: Any
    body: Any
    content: Any
    producer: Any
    clock: Any
    flag: Any

    def range(self) -> AppendRange:
        """The range that it says."""
        return AppendRange(
            journal=JournalId(self.journal),
            first=Offset(self.first),
            next=Offset(self.next),
            rows=self.rows,
            rows_before=self.rows_before,
            kind=RangeKind(self.kind),
            bytes=self.bytes,
            checksum=self.checksum,
            where=self._where(),
            stamp=None if self.producer is None else self._stamp(),
        )

    def _where(self) -> InLedger | InSegment:
        if self.body is None:
            return InSegment(self.segment, file_of(self.file), self.position)
        return InLedger(self.body, self.content)

    def _stamp(self) -> Stamp:
        return Stamp(
            first_offset=Offset(self.first),
            producer=ProducerId(self.producer),
            first_clock=unsigned(self.clock),
            flag=Flag(self.flag),
        )


def range_of(row: Sequence[Any]) -> AppendRange:
    """A range from a row of `RANGES_FROM`."""
    return RangeRow(*row).range()


def row_of(range_: AppendRange) -> tuple[Any, ...]:
    """A row of `ranges`."""
    where, stamp = range_.where, range_.stamp
    file = where if isinstance(where, InSegment) else None
    return (
        range_.journal,
        range_.first,
        range_.next,
        range_.rows,
        range_.rows_before,
        range_.kind.value,
        range_.bytes,
        range_.checksum,
        None if file is None else file.segment,
        None if file is None else file.position,
        where.body if isinstance(where, InLedger) else None,
        None if stamp is None else stamp.producer,
        None if stamp is None else signed(stamp.first_clock),
        None if stamp is None else stamp.flag.value,
    )


def segment_of(row: tuple[Any, ...]) -> Segment:
    """A segment from a row of `segments`."""
    id_, journal, file, size, next_, is_open, is_adopted = row
    return Segment(
        id=id_,
        journal=JournalId(journal),
        file=file_of(file),
        bytes=size,
        next=Offset(next_),
        is_open=bool(is_open),
        is_adopted=bool(is_adopted),
    )


def answer_text(answer: Published | None) -> str | None:
    """The answer to a numbered publish, as it is kept."""
    if answer is None:
        return None
    appended = [
        [a.journal, a.first_offset, a.rows, a.next_offset] for a in answer.appended.values()
    ]
    return json.dumps({"producer": answer.producer, "clock": answer.clock, "appended": appended})


def answer_of(text: str | None) -> Published | None:
    """The answer to a numbered publish, from its row."""
    if text is None:
        return None
    kept = json.loads(text)
    appended = {
        name: Appended(
            journal=name, first_offset=Offset(first), rows=rows, next_offset=Offset(next_)
        )
        for name, first, rows, next_ in kept["appended"]
    }
    producer, clock = ProducerId(kept["producer"]), Clock(kept["clock"])
    return Published(producer=producer, clock=clock, appended=appended)


def first_integer(page: bytes) -> int | None:
    """The first column of the only row in a page of a table, as SQLite lays it out; None if not so.

    A page is: its kind, two bytes, how many rows, three bytes, where they begin. A row is: length,
    row id, length of its header, types of its columns, columns.
    """
    if len(page) < _PAGE_HEADER or page[0] != _LEAF or int.from_bytes(page[3:5]) != 1:
        return None
    try:
        position = int.from_bytes(page[_PAGE_HEADER : _PAGE_HEADER + 2])
        for _ in range(2):
            _, position = _varint(page, position)
        header, types = _varint(page, position)
        kind, _ = _varint(page, types)
    except IndexError:
        return None
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    size = _INTEGER_BYTES.get(kind)
    begin = position + header
    if size is None or begin + size > len(page):
        return None
    return int.from_bytes(page[begin : begin + size], signed=True)


_LEAF: Final = 13
_PAGE_HEADER: Final = 8
_CONSTANTS: Final = {8: 0, 9: 1}
_INTEGER_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_VARINT_BYTES: Final = 9


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of SQLite's, and where it ends."""
    value = 0
    for at in range(position, position + _VARINT_BYTES - 1):
        value = value << 7 | data[at] & 0x7F
        if data[at] < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return value, at + 1
    return value << 8 | data[position + _VARINT_BYTES - 1], position + _VARINT_BYTES
