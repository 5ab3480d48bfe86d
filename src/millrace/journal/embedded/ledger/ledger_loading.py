"""Reads the tables of the SQLite ledger into a book, when it is opened."""

from __future__ import annotations

import json
from sqlite3 import Connection
from typing import Any, Final

import pyarrow as pa

from millrace.journal.core.book import Book, Journal, LeaseState, ProducerState
from millrace.journal.core.committed_rows import RolledBackRange
from millrace.journal.core.journal_names import JournalChoice, JournalId, Offset
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.sequencing import OpenTransaction, Sequence
from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger.ledger_port import LedgerContent


def load(db: Connection) -> LedgerContent:
    """Everything but the rows and their ranges."""
    reading = BookLoader()
    for put, query in (
        (reading.schema, "SELECT id, content FROM schemas"),
        (reading.journal, "SELECT * FROM journals"),
        (reading.sequence, "SELECT * FROM sequences"),
        (reading.rolled_back, "SELECT * FROM rolled_back ORDER BY journal, end_offset"),
        (reading.group, "SELECT * FROM group_offsets"),
        (reading.lease, "SELECT * FROM leases"),
        (reading.producer, "SELECT * FROM producers"),
        (reading.counter, "SELECT * FROM counters"),
        (reading.adopted, "SELECT file, bytes FROM segments WHERE is_adopted"),
    ):
        for row in db.execute(query):
            put(row)
    open_ = "SELECT * FROM segments WHERE is_open OR id IN (SELECT segment FROM dirty)"
    shared = "SELECT * FROM segments WHERE is_adopted AND journal = 0"
    sums = "SELECT journal, sum(bytes) FROM bodies GROUP BY journal"
    counted = "SELECT coalesce(max(id), 0) + 1 FROM "
    segment = db.execute("SELECT value FROM meta WHERE name = 'next_segment'").fetchone()
    return LedgerContent(
        book=reading.book,
        segments=[ledger_tables.segment_of(row) for row in db.execute(open_)],
        adopted=[ledger_tables.segment_of(row) for row in db.execute(shared)],
        dirty={row[0] for row in db.execute("SELECT segment FROM dirty")},
        garbage=[ledger_tables.file_of(row[0]) for row in db.execute("SELECT file FROM garbage")],
        waiting={JournalId(id_): size for id_, size in db.execute(sums)},
        next_body=db.execute(counted + "bodies").fetchone()[0],
        next_segment=1 if segment is None else segment[0],
    )


def load_some(db: Connection, choice: JournalChoice) -> Book:
    """A book with the chosen journals alone, and leases of the same names.

    What it takes depends on how many are chosen, not on how many there are.
    """
    reading = BookLoader()
    for row in db.execute("SELECT id, content FROM schemas"):
        reading.schema(row)
    puts = (reading.journal, reading.sequence, reading.rolled_back, reading.group, reading.lease)
    for span in choice.spans():
        for put, query in zip(puts, _OF_SOME, strict=True):
            for row in db.execute(query, span):
                put(row)
    return reading.book


_OF_SOME: Final = (
    "SELECT * FROM journals WHERE name >= ? AND name < ?",
    """
    SELECT s.* FROM journals j CROSS JOIN sequences s ON s.journal = j.id
    WHERE j.name >= ? AND j.name < ?
    """,
    """
    SELECT r.* FROM journals j CROSS JOIN rolled_back r ON r.journal = j.id
    WHERE j.name >= ? AND j.name < ? ORDER BY r.journal, r.end_offset
    """,
    """
    SELECT g.* FROM journals j CROSS JOIN group_offsets g ON g.journal = j.id
    WHERE j.name >= ? AND j.name < ?
    """,
    "SELECT * FROM leases WHERE name >= ? AND name < ?",
)
"""The tables of journals whose names lie between two texts, in the order of a book's parts."""


class BookLoader:
    """Puts rows of the tables into a book."""

    def __init__(self) -> None:
        self.book = Book()
        self._schemas: dict[int, pa.Schema] = {}

    def schema(self, row: tuple[Any, ...]) -> None:
        """A row of `schemas`."""
        id_, content = row
        self._schemas[id_] = pa.ipc.read_schema(pa.py_buffer(content))

    def journal(self, row: tuple[Any, ...]) -> None:
        """A row of `journals`."""
        id_, name, schema, labels, created, start, end, rows = row
        journal = Journal(
            id=JournalId(id_),
            name=name,
            schema=self._schemas[schema],
            labels=json.loads(labels),
            created_at_ms=created,
            start=Offset(start),
            end=Offset(end),
            rows=rows,
        )
        self.book.journals.put(name, journal)

    def sequence(self, row: tuple[Any, ...]) -> None:
        """A row of `sequences`."""
        journal, producer, last, begin, clock = row
        pending = (
            None if begin is None else OpenTransaction(Offset(begin), ledger_tables.unsigned(clock))
        )
        of = self.book.sequences.own.setdefault(JournalId(journal), {})
        assert isinstance(of, dict)
        of[ProducerId(producer)] = Sequence(ledger_tables.unsigned(last), pending)

    def rolled_back(self, row: tuple[Any, ...]) -> None:
        """A row of `rolled_back`."""
        journal, producer, begin, end = row
        gone = RolledBackRange(ProducerId(producer), Offset(begin), Offset(end))
        there = self.book.rolled_back.get(JournalId(journal)) or ()
        self.book.rolled_back.put(JournalId(journal), (*there, gone))

    def group(self, row: tuple[Any, ...]) -> None:
        """A row of `group_offsets`."""
        journal, name, offset = row
        of = self.book.groups.own.setdefault(JournalId(journal), {})
        assert isinstance(of, dict)
        of[name] = Offset(offset)

    def lease(self, row: tuple[Any, ...]) -> None:
        """A row of `leases`."""
        name, epoch, holder, expires, lasts = row
        state = LeaseState(epoch=epoch, holder=holder, expires_at_ms=expires, lease_ms=lasts)
        self.book.leases.put(name, state)

    def producer(self, row: tuple[Any, ...]) -> None:
        """A row of `producers`."""
        id_, name, clock, sequence, answer = row
        state = ProducerState(
            name=name,
            clock=ledger_tables.unsigned(clock),
            sequence=sequence,
            answer=ledger_tables.answer_of(answer),
        )
        self.book.producers.put(ProducerId(id_), state)
        if name is not None:
            self.book.producer_names.put(name, ProducerId(id_))

    def counter(self, row: tuple[Any, ...]) -> None:
        """A row of `counters`."""
        name, value = row
        self.book.counters.put(name, value)

    def adopted(self, row: tuple[Any, ...]) -> None:
        """The file of an adopted segment."""
        file, size = row
        self.book.adopted.put(ledger_tables.file_of(file), max(1, size))
