"""The ledger in one SQLite file: WAL, synchronous=FULL, one writing connection.

Invariant: `save` returned means that all of it is on disk. A commit that failed is in doubt, so
nothing is written after it; the next opening finds out what was saved.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final

from millrace.config import Config
from millrace.errors import BrokerStopped, Corrupt, FormatError, MillraceError, StorageError
from millrace.faults import fault
from millrace.journal.book import Book, Journal
from millrace.journal.embedded import tables
from millrace.journal.embedded.ledger import Held, InLedger, Range, Segment, Storing
from millrace.journal.names import JournalId, Offset
from millrace.shuffle.store import storage_errors, sync_folder

_NOT_A_LEDGER: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_PAGE_BYTES: Final = 4096
_PUT_RANGE: Final = "INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteLedger:
    """One writer, and as many reading connections as there were readers at once."""

    def __init__(self, path: str, config: Config) -> None:
        """Open the ledger at `path`, making it if need be, under the next epoch."""
        self._path = path
        self._config = config
        self._idle: list[sqlite3.Connection] = []
        self._closing = threading.Lock()
        self._is_closed = False
        with self._reported("opening"):
            self._writer = self._connect()
            self._prepare()
        self._epoch = self._next_epoch()

    @property
    def epoch(self) -> int:
        """See `Ledger.epoch`."""
        return self._epoch

    def load(self) -> Held:
        """See `Ledger.load`."""
        with self._reported("reading"):
            return self._load()

    def save(self, draft: Book, storing: Storing) -> None:
        """See `Ledger.save`."""
        db = self._writer
        try:
            db.execute("BEGIN IMMEDIATE")
            self._check_epoch()
            self._put_book(draft)
            self._put_storing(storing)
            self._take_away(draft)
        except sqlite3.Error as error:
            self._roll_back()
            raise StorageError(_words("writing to", self._path, error)) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            fault("journal.ledger.before_commit")
            db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._roll_back()
            raise BrokerStopped(
                f"{_words('committing to', self._path, error)}\n  whether the last requests were "
                "saved is not known\n  to fix: mend the disk, open the broker again and ask"
            ) from error
        fault("journal.ledger.after_commit")

    def ranges(self, journal: JournalId, offset: Offset, count: int) -> Sequence[Range]:
        """See `Ledger.ranges`."""
        return self._read(tables.RANGES_FROM, (journal, offset, count))

    def ranges_of(self, wanted: Sequence[tuple[JournalId, Offset, Offset]]) -> Generator[Range]:
        """See `Ledger.ranges_of`."""
        with self._reported("reading"), self._reader() as reader:
            cursor = reader.execute(tables.RANGES_OF, (json.dumps(wanted),))
            try:
                yield from map(tables.range_of, cursor)
            finally:
                # An open one would keep the ledger's log from being written back.
                cursor.close()

    def waiting(self, journal: JournalId) -> Sequence[Range]:
        """See `Ledger.waiting`."""
        return self._read(tables.RANGES_WAITING, (journal,))

    def segments_before(self, journal: JournalId, offset: Offset | None) -> Iterable[Segment]:
        """See `Ledger.segments_before`."""
        limit = 2**63 - 1 if offset is None else offset
        with self._reported("reading"):
            rows = self._writer.execute(
                "SELECT * FROM segments WHERE journal = ? AND next_offset <= ?", (journal, limit)
            ).fetchall()
        return [tables.segment_of(row) for row in rows]

    def unused_shared(self) -> Sequence[Segment]:
        """See `Ledger.unused_shared`."""
        with self._reported("reading"):
            rows = self._writer.execute(tables.UNUSED_SHARED).fetchall()
        return [tables.segment_of(row) for row in rows]

    def write_back(self) -> None:
        """See `Ledger.write_back`: put the log into the file."""
        with self._reported("writing back"):
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """See `Ledger.close`."""
        with self._closing:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._writer.close()

    # Opening.
    def _connect(self) -> sqlite3.Connection:
        # Statements begin and end their transactions themselves.
        db = sqlite3.connect(
            self._path,
            timeout=self._config.ledger_busy_ms_max / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        db.execute("PRAGMA synchronous = FULL")
        return db

    def _prepare(self) -> None:
        db = self._writer
        if not db.execute("PRAGMA user_version").fetchone()[0]:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise FormatError(_no_ledger(self._path))
            self._make()
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if application != tables.APPLICATION_ID:
            raise FormatError(_no_ledger(self._path))
        if version != tables.FORMAT_VERSION:
            raise FormatError(
                f"{self._path} is a ledger of version {version}\n"
                f"  versions read: {tables.FORMAT_VERSION}\n  to fix: use a newer Millrace"
            )
        pages = max(1, self._config.ledger_checkpoint_bytes // _PAGE_BYTES)
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StorageError(
                f"{self._path} cannot keep a write-ahead log\n  found: journal mode {mode!r}\n"
                "  to fix: put the workspace on a local disk; network file systems cannot"
            )
        db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        db.execute("PRAGMA fullfsync = ON")

    def _make(self) -> None:
        db = self._writer
        db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        script = (
            f"BEGIN IMMEDIATE; {tables.TABLES}"
            f"PRAGMA application_id = {tables.APPLICATION_ID};"
            f"PRAGMA user_version = {tables.FORMAT_VERSION}; COMMIT;"
        )
        db.executescript(script)
        with storage_errors(f"syncing {self._path}"):
            sync_folder(os.path.dirname(self._path))

    def _next_epoch(self) -> int:
        with self._reported("writing to"):
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
            found = self._writer.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
            self._writer.execute("COMMIT")
        return int(found[0])

    def _load(self) -> Held:
        db = self._writer
        reading = tables.Reading()
        for put, query in (
            (reading.schema, "SELECT id, content FROM schemas"),
            (reading.journal, "SELECT * FROM journals"),
            (reading.sequence, "SELECT * FROM sequences"),
            (reading.rolled_back, "SELECT * FROM rolled_back ORDER BY journal, end_offset"),
            (reading.group, "SELECT * FROM group_offsets"),
            (reading.lease, "SELECT * FROM leases"),
            (reading.producer, "SELECT * FROM producers"),
            (reading.counter, "SELECT * FROM counters"),
            (reading.adopted, "SELECT file FROM segments WHERE is_adopted"),
        ):
            for row in db.execute(query):
                put(row)
        open_ = "SELECT * FROM segments WHERE is_open OR id IN (SELECT segment FROM dirty)"
        sums = "SELECT journal, sum(bytes) FROM bodies GROUP BY journal"
        counted = "SELECT coalesce(max(id), 0) + 1 FROM "
        segment = db.execute("SELECT value FROM meta WHERE name = 'next_segment'").fetchone()
        return Held(
            book=reading.book,
            segments=[tables.segment_of(row) for row in db.execute(open_)],
            dirty={row[0] for row in db.execute("SELECT segment FROM dirty")},
            garbage=[row[0] for row in db.execute("SELECT file FROM garbage")],
            waiting={JournalId(id_): size for id_, size in db.execute(sums)},
            next_body=db.execute(counted + "bodies").fetchone()[0],
            next_segment=1 if segment is None else segment[0],
        )

    # Writing.
    def _check_epoch(self) -> None:
        found = self._writer.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()[0]
        if found != self._epoch:
            raise BrokerStopped(
                f"{self._path} was taken over by another process\n"
                f"  epoch here: {self._epoch}, found: {found}\n  to fix: join the new owner"
            )

    def _put_book(self, draft: Book) -> None:
        db = self._writer
        for journal in filter(None, draft.journals.own.values()):
            self._put_journal(journal)
        below = draft.sequences.below
        for id_, states in draft.sequences.own.items():
            known = (below.get(id_) if below else None) or {}
            changed = [(p, s) for p, s in (states or {}).items() if known.get(p) != s]
            for producer, state in changed:
                begin, clock = (
                    (state.open.begin, state.open.highest) if state.open else (None, None)
                )
                row = (id_, producer, tables.signed(state.last_commit), begin)
                end = None if clock is None else tables.signed(clock)
                db.execute("REPLACE INTO sequences VALUES (?, ?, ?, ?, ?)", (*row, end))
        for id_, gone in draft.rolled_back.own.items():
            db.execute("DELETE FROM rolled_back WHERE journal = ?", (id_,))
            rows = [(id_, each.producer, each.begin, each.end) for each in gone or ()]
            db.executemany("INSERT INTO rolled_back VALUES (?, ?, ?, ?)", rows)
        groups = draft.groups.below
        for id_, offsets in draft.groups.own.items():
            before = (groups.get(id_) if groups else None) or {}
            new = [(id_, g, o) for g, o in (offsets or {}).items() if before.get(g) != o]
            db.executemany("REPLACE INTO group_offsets VALUES (?, ?, ?)", new)
        self._put_names(draft)

    def _put_names(self, draft: Book) -> None:
        db = self._writer
        for name, lease in draft.leases.own.items():
            assert lease is not None
            row: tuple[Any, ...] = (lease.epoch, lease.holder, lease.expires_at_ms, lease.lease_ms)
            db.execute("REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", (name, *row))
        for producer, state in draft.producers.own.items():
            assert state is not None
            answer = tables.answer_text(state.answer)
            row = (producer, state.name, tables.signed(state.clock), state.sequence, answer)
            db.execute("REPLACE INTO producers VALUES (?, ?, ?, ?, ?)", row)
        for name, value in draft.counters.own.items():
            db.execute("REPLACE INTO counters VALUES (?, ?)", (name, value))

    def _put_journal(self, journal: Journal) -> None:
        db = self._writer
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

    def _put_storing(self, storing: Storing) -> None:
        db = self._writer
        for old in storing.moved:
            assert isinstance(old.where, InLedger)
            db.execute("DELETE FROM bodies WHERE id = ?", (old.where.body,))
            key = (old.journal, old.first)
            db.execute("DELETE FROM ranges WHERE journal = ? AND first_offset = ?", key)
        for each in storing.ranges:
            if isinstance(each.where, InLedger):
                body = (each.where.body, each.journal, each.first, each.bytes, each.where.content)
                db.execute("INSERT INTO bodies VALUES (?, ?, ?, ?, ?)", body)
        db.executemany(_PUT_RANGE, map(tables.row_of, storing.ranges))
        for seg in storing.segments:
            row = (seg.id, seg.journal, seg.file, seg.bytes, seg.next, seg.is_open, seg.is_adopted)
            db.execute("REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        if storing.segments:
            highest = 1 + max(each.id for each in storing.segments)
            put = (
                "INSERT INTO meta VALUES ('next_segment', ?1) ON CONFLICT DO UPDATE SET value = ?1"
            )
            db.execute(put + " WHERE value < ?1", (highest,))
        for query, values in (
            ("DELETE FROM segments WHERE id = ?", storing.segments_gone),
            ("REPLACE INTO dirty VALUES (?)", storing.dirty),
            ("DELETE FROM dirty WHERE segment = ?", storing.clean),
            ("REPLACE INTO garbage VALUES (?)", storing.garbage),
            ("DELETE FROM garbage WHERE file = ?", storing.garbage_gone),
        ):
            db.executemany(query, [(value,) for value in values])

    def _take_away(self, draft: Book) -> None:
        db = self._writer
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

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    # Reading.
    def _read(self, query: str, values: tuple[Any, ...]) -> list[Range]:
        with self._reported("reading"), self._reader() as reader:
            rows = reader.execute(query, values).fetchall()
        return [tables.range_of(row) for row in rows]

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses, so that readers wait for nobody."""
        with self._closing:
            if self._is_closed:
                raise StorageError(
                    f"ledger {self._path} was closed\n  found: a call after close()\n"
                    "  to fix: open the workspace again"
                )
            reader = self._idle.pop() if self._idle else None
        if reader is None:
            reader = self._connect()
            reader.execute("PRAGMA query_only = ON")
        try:
            yield reader
        finally:
            with self._closing:
                is_kept = not self._is_closed
                if is_kept:
                    self._idle.append(reader)
            if not is_kept:
                reader.close()

    @contextlib.contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        try:
            yield
        except MillraceError:
            raise
        except sqlite3.Error as error:
            kind = (
                Corrupt if getattr(error, "sqlite_errorcode", 0) in _NOT_A_LEDGER else StorageError
            )
            raise kind(_words(doing, self._path, error)) from error


def _words(doing: str, path: str, error: BaseException) -> str:
    return (
        f"{doing} ledger {path} failed\n  found: {error}\n"
        "  to fix: see that the disk has room and may be written, then open the workspace again"
    )


def _no_ledger(path: str) -> str:
    return (
        f"{path} is no ledger of journals\n  found: an SQLite file of another program\n"
        "  to fix: open another folder as workspace, or move this file away"
    )
