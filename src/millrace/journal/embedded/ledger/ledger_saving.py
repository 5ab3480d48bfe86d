"""What one save writes to the tables of the SQLite ledger, within a transaction of the caller's."""

from __future__ import annotations

import json
from sqlite3 import Connection
from typing import Any, Final

from millrace.journal.core.book import Book, Journal
from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger.ledger_port import InLedger, Storing

_PUT_RANGE: Final = "INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def is_freeing(draft: Book, storing: Storing) -> bool:
    """Whether a save takes rows or files away and adds none."""
    if draft.blocks or storing.ranges or storing.segments or storing.dirty:
        return False
    return bool(draft.truncated or draft.deleted) or not draft.is_changed()


def put_book(db: Connection, draft: Book) -> None:
    """Write the changes of a draft."""
    for journal in filter(None, draft.journals.own.values()):
        _put_journal(db, journal)
    below = draft.sequences.below
    for id_, states in draft.sequences.own.items():
        known = (below.get(id_) if below else None) or {}
        changed = [(p, s) for p, s in (states or {}).items() if known.get(p) != s]
        for producer, state in changed:
            begin, clock = (state.open.begin, state.open.highest) if state.open else (None, None)
            row = (id_, producer, ledger_tables.signed(state.last_commit), begin)
            end = None if clock is None else ledger_tables.signed(clock)
            db.execute("REPLACE INTO sequences VALUES (?, ?, ?, ?, ?)", (*row, end))
    for id_, gone in draft.rolled_back.own.items():
        db.execute("DELETE FROM rolled_back WHERE journal = ?", (id_,))
        rows = [(id_, range_.producer, range_.begin, range_.end) for range_ in gone or ()]
        db.executemany("INSERT INTO rolled_back VALUES (?, ?, ?, ?)", rows)
    groups = draft.groups.below
    for id_, offsets in draft.groups.own.items():
        before = (groups.get(id_) if groups else None) or {}
        new = [(id_, g, o) for g, o in (offsets or {}).items() if before.get(g) != o]
        db.executemany("REPLACE INTO group_offsets VALUES (?, ?, ?)", new)
    _put_names(db, draft)


def _put_names(db: Connection, draft: Book) -> None:
    for name, lease in draft.leases.own.items():
        assert lease is not None
        row: tuple[Any, ...] = (lease.epoch, lease.holder, lease.expires_at_ms, lease.lease_ms)
        db.execute("REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", (name, *row))
    for producer, state in draft.producers.own.items():
        assert state is not None
        answer = ledger_tables.answer_text(state.answer)
        row = (producer, state.name, ledger_tables.signed(state.clock), state.sequence, answer)
        db.execute("REPLACE INTO producers VALUES (?, ?, ?, ?, ?)", row)
    for name, value in draft.counters.own.items():
        db.execute("REPLACE INTO counters VALUES (?, ?)", (name, value))


def _put_journal(db: Connection, journal: Journal) -> None:
    grown = db.execute(
        "UPDATE journals SET start_offset = ?, end_offset = ?, row_count = ? WHERE id = ?",
        (journal.start, journal.end, journal.rows, journal.id),
    )
    if grown.rowcount:
        return
    schema = journal.schema.serialize().to_pybytes()
    known = db.execute("SELECT id FROM schemas WHERE content = ?", (schema,)).fetchone()
    if known is None:
        known = (db.execute("INSERT INTO schemas (content) VALUES (?)", (schema,)).lastrowid,)
    labels = json.dumps(dict(journal.labels))
    db.execute(
        "INSERT INTO journals VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(journal.id, journal.name, known[0], labels, journal.created_at_ms),
            *(journal.start, journal.end, journal.rows),
        ),
    )


def put_storing(db: Connection, storing: Storing) -> None:
    """Write where the rows are stored."""
    for old in storing.moved:
        assert isinstance(old.where, InLedger)
        db.execute("DELETE FROM bodies WHERE id = ?", (old.where.body,))
        key = (old.journal, old.first)
        db.execute("DELETE FROM ranges WHERE journal = ? AND first_offset = ?", key)
    for new in storing.ranges:
        if isinstance(new.where, InLedger):
            body = (new.where.body, new.journal, new.first, new.bytes, new.where.content)
            db.execute("INSERT INTO bodies VALUES (?, ?, ?, ?, ?)", body)
    db.executemany(_PUT_RANGE, map(ledger_tables.row_of, storing.ranges))
    for seg in storing.segments:
        row = (seg.id, seg.journal, seg.file, seg.bytes, seg.next, seg.is_open, seg.is_adopted)
        db.execute("REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    if storing.segments:
        highest = 1 + max(segment.id for segment in storing.segments)
        db.execute(ledger_tables.RAISE_NEXT_SEGMENT, (highest,))
    for query, values in (
        ("DELETE FROM segments WHERE id = ?", storing.segments_gone),
        ("REPLACE INTO dirty VALUES (?)", storing.dirty),
        ("DELETE FROM dirty WHERE segment = ?", storing.clean),
        ("REPLACE INTO garbage VALUES (?)", storing.garbage),
        ("DELETE FROM garbage WHERE file = ?", storing.garbage_gone),
    ):
        db.executemany(query, [(value,) for value in values])


def take_away(db: Connection, draft: Book) -> None:
    """Delete truncated ranges and deleted journals."""
    for journal in draft.truncated:
        key = (journal.id, journal.start)
        db.execute(
            "DELETE FROM bodies WHERE id IN "
            "(SELECT body FROM ranges WHERE journal = ? AND next_offset <= ?)",
            key,
        )
        db.execute("DELETE FROM ranges WHERE journal = ? AND next_offset <= ?", key)
    for journal in draft.deleted:
        for table in ("bodies", "ranges", "sequences", "rolled_back", "group_offsets"):
            db.execute(f"DELETE FROM {table} WHERE journal = ?", (journal.id,))  # noqa: S608 - names above
        db.execute("DELETE FROM journals WHERE id = ?", (journal.id,))
