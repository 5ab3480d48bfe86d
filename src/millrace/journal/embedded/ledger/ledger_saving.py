"""What one save changes in the tables of a ledger: a list of named changes. Pure.

A change is a name and rows of values; `STATEMENTS` says in SQL what each name does to the tables.
The SQLite ledger carries the changes out; a ledger that is a log keeps them in its records as well.

Invariant: names and the order of values never change, as logs hold them. A new column of a table
comes last and may be null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from sqlite3 import Connection
from typing import Any, Final

from millrace.journal.core.book import Book, Journal
from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger.ledger_port import InLedger, Storing

Values = Sequence[Any]
Change = tuple[str, Sequence[Values]]
"""The name of a change, and the values of each row that it changes."""

_OF_JOURNAL: Final = ("bodies", "ranges", "sequences", "rolled_back", "group_offsets")
STATEMENTS: Final[Mapping[str, str]] = {
    "put_schema": "INSERT OR IGNORE INTO schemas (content) VALUES (?)",
    "put_journal": (
        "INSERT INTO journals VALUES "
        "(?, ?, (SELECT id FROM schemas WHERE content = ?), ?, ?, ?, ?, ?)"
    ),
    "grow_journal": (
        "UPDATE journals SET start_offset = ?, end_offset = ?, row_count = ? WHERE id = ?"
    ),
    "put_sequence": "REPLACE INTO sequences VALUES (?, ?, ?, ?, ?)",
    "clear_rolled_back": "DELETE FROM rolled_back WHERE journal = ?",
    "put_rolled_back": "INSERT INTO rolled_back VALUES (?, ?, ?, ?)",
    "put_group": "REPLACE INTO group_offsets VALUES (?, ?, ?)",
    "put_lease": "REPLACE INTO leases VALUES (?, ?, ?, ?, ?)",
    "put_producer": "REPLACE INTO producers VALUES (?, ?, ?, ?, ?)",
    "put_counter": "REPLACE INTO counters VALUES (?, ?)",
    "drop_body": "DELETE FROM bodies WHERE id = ?",
    "drop_range": "DELETE FROM ranges WHERE journal = ? AND first_offset = ?",
    "put_body": "INSERT INTO bodies VALUES (?, ?, ?, ?, ?)",
    "put_range": "INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "put_segment": "REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
    "raise_next_segment": ledger_tables.RAISE_NEXT_SEGMENT,
    "drop_segment": "DELETE FROM segments WHERE id = ?",
    "mark_dirty": "REPLACE INTO dirty VALUES (?)",
    "mark_clean": "DELETE FROM dirty WHERE segment = ?",
    "put_garbage": "REPLACE INTO garbage VALUES (?)",
    "drop_garbage": "DELETE FROM garbage WHERE file = ?",
    "truncate_bodies": (
        "DELETE FROM bodies WHERE id IN "
        "(SELECT body FROM ranges WHERE journal = ? AND next_offset <= ?)"
    ),
    "truncate_ranges": "DELETE FROM ranges WHERE journal = ? AND next_offset <= ?",
    **{
        f"clear_{table}": f"DELETE FROM {table} WHERE journal = ?"  # noqa: S608 - names above
        for table in _OF_JOURNAL
        if table != "rolled_back"
    },
    "drop_journal": "DELETE FROM journals WHERE id = ?",
}
"""What each change does, as SQL."""


def is_freeing(draft: Book, storing: Storing) -> bool:
    """Whether a save takes rows or files away and adds none."""
    if draft.blocks or storing.ranges or storing.segments or storing.dirty:
        return False
    return bool(draft.truncated or draft.deleted) or not draft.is_changed()


def changes(draft: Book, storing: Storing) -> list[Change]:
    """All that a save changes, in the order in which it is carried out."""
    every = [*_of_book(draft), *_of_rows(storing), *_taken_away(draft)]
    return [(name, rows) for name, rows in every if rows]


def carry_out(db: Connection, some: Iterable[Change]) -> None:
    """Change the tables, within a transaction of the caller's."""
    for name, rows in some:
        if len(rows) == 1:
            db.execute(STATEMENTS[name], rows[0])
        else:
            db.executemany(STATEMENTS[name], rows)


def _of_book(draft: Book) -> Iterator[Change]:
    yield from _journals(draft)
    below = draft.sequences.below
    sequences = []
    for id_, states in draft.sequences.own.items():
        known = (below.get(id_) if below else None) or {}
        for producer, state in (states or {}).items():
            if known.get(producer) == state:
                continue
            open_ = state.open
            begin = None if open_ is None else open_.begin
            end = None if open_ is None else ledger_tables.signed(open_.highest)
            last = ledger_tables.signed(state.last_commit)
            sequences.append((id_, producer, last, begin, end))
    yield "put_sequence", sequences
    yield "clear_rolled_back", [(id_,) for id_ in draft.rolled_back.own]
    yield (
        "put_rolled_back",
        [
            (id_, range_.producer, range_.begin, range_.end)
            for id_, gone in draft.rolled_back.own.items()
            for range_ in gone or ()
        ],
    )
    groups, offsets_put = draft.groups.below, []
    for id_, offsets in draft.groups.own.items():
        before = (groups.get(id_) if groups else None) or {}
        offsets_put += [(id_, g, o) for g, o in (offsets or {}).items() if before.get(g) != o]
    yield "put_group", offsets_put
    yield from _names(draft)


def _names(draft: Book) -> Iterator[Change]:
    leases, producers = [], []
    for name, lease in draft.leases.own.items():
        assert lease is not None
        leases.append((name, lease.epoch, lease.holder, lease.expires_at_ms, lease.lease_ms))
    for producer, state in draft.producers.own.items():
        assert state is not None
        clock, answer = ledger_tables.signed(state.clock), ledger_tables.answer_text(state.answer)
        producers.append((producer, state.name, clock, state.sequence, answer))
    yield "put_lease", leases
    yield "put_producer", producers
    yield "put_counter", list(draft.counters.own.items())


def _journals(draft: Book) -> Iterator[Change]:
    below = draft.journals.below
    new: list[tuple[Journal, bytes]] = []
    grown: list[Values] = []
    for name, journal in draft.journals.own.items():
        if journal is None:
            continue
        known = below.get(name) if below else None
        if known is not None and known.id == journal.id:
            grown.append((journal.start, journal.end, journal.rows, journal.id))
        else:
            new.append((journal, journal.schema.serialize().to_pybytes()))
    yield "put_schema", [(schema,) for schema in dict.fromkeys(schema for _, schema in new)]
    yield (
        "put_journal",
        [
            (
                *(journal.id, journal.name, schema, json.dumps(dict(journal.labels))),
                *(journal.created_at_ms, journal.start, journal.end, journal.rows),
            )
            for journal, schema in new
        ],
    )
    yield "grow_journal", grown


def _of_rows(storing: Storing) -> Iterator[Change]:
    bodies, keys = [], []
    for old in storing.moved:
        if isinstance(old.where, InLedger):
            bodies.append((old.where.body,))
        keys.append((old.journal, old.first))
    yield "drop_body", bodies
    yield "drop_range", keys
    yield (
        "put_body",
        [
            (new.where.body, new.journal, new.first, new.bytes, new.where.content)
            for new in storing.ranges
            if isinstance(new.where, InLedger)
        ],
    )
    yield "put_range", [ledger_tables.row_of(range_) for range_ in storing.ranges]
    yield (
        "put_segment",
        [
            (seg.id, seg.journal, seg.file, seg.bytes, seg.next, seg.is_open, seg.is_adopted)
            for seg in storing.segments
        ],
    )
    if storing.segments:
        yield "raise_next_segment", [(1 + max(segment.id for segment in storing.segments),)]
    for name, values in (
        ("drop_segment", storing.segments_gone),
        ("mark_dirty", storing.dirty),
        ("mark_clean", storing.clean),
        ("put_garbage", storing.garbage),
        ("drop_garbage", storing.garbage_gone),
    ):
        yield name, [(value,) for value in values]


def _taken_away(draft: Book) -> Iterator[Change]:
    """Truncated ranges and deleted journals."""
    below = [(journal.id, journal.start) for journal in draft.truncated]
    yield "truncate_bodies", below
    yield "truncate_ranges", below
    gone = [(journal.id,) for journal in draft.deleted]
    for table in _OF_JOURNAL:
        yield f"clear_{table}", gone
    yield "drop_journal", gone
