"""Looks at a ledger's tables a page at a time, for people: sizes, lags, open transactions.

Invariant: what a look takes depends on the page, not on how many journals there are; a look that
has to pass over all of them says so. Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Final, Literal

from millrace.journal.core.journal_names import JournalChoice, JournalId
from millrace.journal.embedded.ledger import ledger_check
from millrace.journal.embedded.ledger.ledger_errors import reported

JournalOrder = Literal["name", "rows", "created"]
_LAST: Final = "\U0010ffff"
_ORDERS: Final[dict[JournalOrder, str]] = {
    "name": "name",
    "rows": "row_count DESC, name",
    "created": "created_at_ms DESC, name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    """A journal as the ledger has it."""

    id: JournalId
    name: str
    labels: Mapping[str, str]
    created_at_ms: int
    start: int
    end: int
    rows: int
    """Ever appended, without ACKs."""
    schema_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSize:
    """What is stored of a journal."""

    bytes: int
    rows: int
    """Without ACKs; rows that were rolled back count."""
    ranges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransactionRow:
    """A transaction that is not ended."""

    journal: str
    producer: int
    producer_name: str | None
    begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """How far a consumer group has committed in a journal."""

    journal: JournalId
    group: str
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotal:
    """A consumer group, over all its journals."""

    group: str
    journals: int
    lag: int
    """Offsets that it has not committed: of rows, and of what else takes an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """Sums over all journals."""

    journals: int
    appended: int
    bytes: int
    ranges: int
    open_transactions: int


class LedgerPages:
    """Questions to a ledger that is read where it lies."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def count(self, prefix: str = "") -> int:
        """How many journals there are at and below a name."""
        return sum(int(self._db.execute(_COUNT, span).fetchone()[0]) for span in _spans(prefix))

    def journals(
        self,
        prefix: str = "",
        *,
        limit: int,
        offset: int = 0,
        order: JournalOrder = "name",
    ) -> list[JournalRow]:
        """Journals at and below a name. By another order than the name, all of them are passed."""
        where, values = _within(prefix)
        query = f"SELECT * FROM journals WHERE {where} ORDER BY {_ORDERS[order]} LIMIT ? OFFSET ?"  # noqa: S608 - texts above
        return [_journal(row) for row in self._db.execute(query, (*values, limit, offset))]

    def named(self, names: Sequence[str]) -> list[JournalRow]:
        """Journals of these names."""
        query = "SELECT j.* FROM json_each(?) w CROSS JOIN journals j ON j.name = w.value"
        return [_journal(row) for row in self._db.execute(query, (json.dumps(list(names)),))]

    def names_like(self, pattern: str, *, within: str, order: JournalOrder = "name") -> list[str]:
        """Names below `within` that fit a pattern of GLOB. Passes all names there."""
        begin, above = JournalChoice(prefixes=(within,)).spans()[-1]
        query = f"SELECT name FROM journals WHERE {_LIKE} ORDER BY {_ORDERS[order]}"  # noqa: S608 - texts here
        return [row[0] for row in self._db.execute(query, (begin, above, pattern))]

    def sizes(self, ids: Sequence[JournalId]) -> dict[JournalId, StoredSize]:
        """What is stored of these journals."""
        rows = self._db.execute(_SIZES, (json.dumps(list(ids)),))
        return {
            JournalId(id_): StoredSize(bytes=size, rows=count, ranges=ranges)
            for id_, size, count, ranges in rows
        }

    def groups(self, ids: Sequence[JournalId]) -> list[GroupRow]:
        """The groups of these journals."""
        return [
            GroupRow(journal=JournalId(journal), group=group, committed=committed)
            for journal, group, committed in self._db.execute(_GROUPS, (json.dumps(list(ids)),))
        ]

    def open_transactions(
        self, ids: Sequence[JournalId] | None = None, *, limit: int, offset: int = 0
    ) -> list[OpenTransactionRow]:
        """Transactions that are not ended; without ids, all journals are passed over."""
        of = "" if ids is None else "AND s.journal IN (SELECT value FROM json_each(?))"
        chosen = () if ids is None else (json.dumps(list(ids)),)
        values = (*chosen, limit, offset)
        rows = self._db.execute(_OPEN.format(of=of), values)
        return [
            OpenTransactionRow(journal=journal, producer=producer, producer_name=name, begin=begin)
            for journal, producer, name, begin in rows
        ]

    def open_count(self, journal: JournalId) -> int:
        """How many transactions of a journal are not ended."""
        query = "SELECT count(*) FROM sequences WHERE journal = ? AND open_begin IS NOT NULL"
        (count,) = self._db.execute(query, (journal,)).fetchone()
        return int(count)

    def totals(self) -> LedgerTotals:
        """Sums over all journals, all of which are passed."""
        journals, appended = self._db.execute(
            "SELECT count(*), coalesce(sum(row_count), 0) FROM journals"
        ).fetchone()
        size, ranges = self._db.execute(
            "SELECT coalesce(sum(bytes), 0), count(*) FROM ranges"
        ).fetchone()
        (opened,) = self._db.execute(
            "SELECT count(*) FROM sequences WHERE open_begin IS NOT NULL"
        ).fetchone()
        return LedgerTotals(
            journals=journals,
            appended=appended,
            bytes=size,
            ranges=ranges,
            open_transactions=opened,
        )

    def group_totals(self, *, limit: int) -> list[GroupTotal]:
        """The groups that are furthest behind; all of them are passed."""
        rows = self._db.execute(_GROUP_TOTALS, (limit,))
        return [GroupTotal(group=name, journals=count, lag=lag) for name, count, lag in rows]

    def held_leases(self, pattern: str, *, now_ms: int) -> list[str]:
        """Names of leases that fit a pattern of GLOB and are held."""
        query = "SELECT name FROM leases WHERE name GLOB ? AND holder IS NOT NULL"
        rows = self._db.execute(f"{query} AND expires_at_ms > ?", (pattern, now_ms))
        return [row[0] for row in rows]

    def last_commit(self) -> tuple[int, int]:
        """The number and the time (ms) of the last commit; zeros if none is known."""
        there = "SELECT 1 FROM sqlite_master WHERE name = 'last_commit'"
        if self._db.execute(there).fetchone() is None:
            return 0, 0
        row = self._db.execute("SELECT number, at_ms FROM last_commit").fetchone()
        return (0, 0) if row is None else (int(row[0]), int(row[1]))


@contextlib.contextmanager
def ledger_pages(path: str) -> Iterator[LedgerPages]:
    """The tables of a ledger's file as they are now."""
    with reported(path, "reading"), ledger_check.reading(path) as db:
        yield LedgerPages(db)


_LIKE: Final = "name >= ? AND name < ? AND name GLOB ?"
_COUNT: Final = "SELECT count(*) FROM journals WHERE name >= ? AND name < ?"
_SIZES: Final = """
SELECT r.journal, sum(r.bytes), sum(r.row_count), count(*)
FROM json_each(?) w CROSS JOIN ranges r ON r.journal = w.value GROUP BY r.journal
"""
_GROUPS: Final = """
SELECT g.journal, g.name, g.next_offset
FROM json_each(?) w CROSS JOIN group_offsets g ON g.journal = w.value
"""
_GROUP_TOTALS: Final = """
SELECT g.name, count(*), sum(max(0, j.end_offset - g.next_offset)) AS lag
FROM group_offsets g JOIN journals j ON j.id = g.journal
GROUP BY g.name ORDER BY lag DESC, g.name LIMIT ?
"""
_OPEN: Final = """
SELECT j.name, s.producer, p.name, s.open_begin
FROM sequences s JOIN journals j ON j.id = s.journal LEFT JOIN producers p ON p.id = s.producer
WHERE s.open_begin IS NOT NULL {of} ORDER BY j.name, s.open_begin LIMIT ? OFFSET ?
"""


def _spans(prefix: str) -> tuple[tuple[str, str], ...]:
    return JournalChoice(prefixes=(prefix,)).spans() if prefix else (("", _LAST),)


def _within(prefix: str) -> tuple[str, list[str]]:
    spans = _spans(prefix)
    where = " OR ".join("(name >= ? AND name < ?)" for _ in spans)
    return f"({where})", [text for span in spans for text in span]


def _journal(row: tuple[int, str, int, str, int, int, int, int]) -> JournalRow:
    id_, name, schema, labels, created, start, end, rows = row
    return JournalRow(
        id=JournalId(id_),
        name=name,
        labels=json.loads(labels),
        created_at_ms=created,
        start=start,
        end=end,
        rows=rows,
        schema_id=schema,
    )
