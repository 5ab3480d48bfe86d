"""The ledger in one SQLite file: WAL, synchronous=FULL, one writing connection.

Invariant: `save` returned means that all of it is on disk, and that the mark says so. A commit that
failed is in doubt, so nothing is written after it; the next opening finds out what was saved. The
one exception is a full disk: SQLite met it before the end of the commit was written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.errors import BrokerStopped, StorageError
from millrace.faults import fault
from millrace.journal.core.book import Book
from millrace.journal.embedded.disk_reserve import Reserve
from millrace.journal.embedded.ledger import ledger_saving, ledger_tables
from millrace.journal.embedded.ledger.commit_marks import CommitMarks
from millrace.journal.embedded.ledger.ledger_connections import ReadingConnections, connect
from millrace.journal.embedded.ledger.ledger_errors import not_a_ledger, words
from millrace.journal.embedded.ledger.ledger_port import Storing
from millrace.journal.embedded.ledger.lost_commits import Loss
from millrace.journal.embedded.ledger.mark_files import CommitMark
from millrace.journal.embedded.ledger.table_reader import TableReader, check_tables, make_tables
from millrace.storage.local import sync_folder
from millrace.storage.store import storage_errors

_PAGE_BYTES: Final = 4096
_NO_ROOM: Final = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_CANTOPEN,
)
"""The error of opening a ledger on a full disk."""
_VACUUM_PAGES: Final = 128
"""Few enough to stay in SQLite's cache: pages that leave it take room in the log."""
_VACUUM_ROUNDS_MAX: Final = 128
_GIVE_BACK_ROUNDS_MAX: Final = 32
"""16 MiB at an idle moment: callers wait meanwhile."""
_FREE_PAGES_MIN: Final = 1024
"""Pages that are used again soon: less than 4 MiB is not given back."""
_MAY_FAIL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStart:
    """How a ledger is opened: what is known to be missing from it, and the room that is kept."""

    loss: Loss | None = None
    is_read_only: bool = False
    reserve: Reserve


class _DiskFull(StorageError):
    """Nothing was saved, as there was no room."""


class SqliteLedger(TableReader):
    """One writer, and as many reading connections as there were readers at once."""

    def __init__(self, path: str, config: Config, start: LedgerStart) -> None:
        """Open the ledger at `path`, under the next epoch; make it if it is missing."""
        self._path = path
        self._config = config
        self._start = start
        self._readers = ReadingConnections(path, is_read_only=start.is_read_only)
        self._marks: CommitMarks | None = None
        if start.is_read_only:
            with self._reported("opening"):
                self._writer = self._connect()
                self._epoch = self._epoch_there()
            return
        with storage_errors(f"opening the marks of {path}"):
            self._marks = CommitMarks(path)
        try:
            self._open()
        except StorageError as error:
            if getattr(error.__cause__, "sqlite_errorcode", 0) not in _NO_ROOM:
                raise
            start.reserve.release()
            self._open()
        self._begin(self._marks)

    @property
    def epoch(self) -> int:
        """See `Ledger.epoch`."""
        return self._epoch

    def save(self, draft: Book, storing: Storing) -> None:
        """See `Ledger.save`."""
        if self._start.is_read_only:
            assert self._start.loss is not None
            raise self._start.loss.error()
        is_freeing = ledger_saving.is_freeing(draft, storing)
        if not is_freeing and not self._start.reserve.hold():
            raise StorageError(
                f"{words('writing to', self._path, 'no room is left on the disk')}\n"
                "  to fix: free space, by truncating or deleting journals say; then writing goes on"
            )
        try:
            self._save(draft, storing)
        except _DiskFull as error:
            if not is_freeing:
                raise StorageError(str(error)) from error.__cause__
            self._make_room()
            try:
                self._save(draft, storing)
            except _DiskFull as still:
                raise StorageError(str(still)) from still.__cause__
        if is_freeing and not self._start.reserve.is_held:
            # It is saved: what fails from here on must not be told as if it were not.
            with contextlib.suppress(StorageError, OSError):
                self._shrink()

    def _save(self, draft: Book, storing: Storing) -> None:
        db = self._writer
        at_ms = time.time_ns() // 1_000_000
        try:
            db.execute("BEGIN IMMEDIATE")
            self._check_epoch()
            ledger_saving.carry_out(db, ledger_saving.changes(draft, storing))
            assert self._marks is not None
            mark = self._marks.mark
            db.execute(ledger_tables.PUT_LAST_COMMIT, (mark.commit + 1, at_ms, mark.file_commit))
        except sqlite3.Error as error:
            self._roll_back()
            raise self._refused("writing to", error) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            fault("journal.ledger.before_commit")
            db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._roll_back()
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                raise self._refused("writing to", error) from error
            raise BrokerStopped(
                f"{words('committing to', self._path, error)}\n  whether the last requests were "
                "saved is not known\n  to fix: mend the disk, open the broker again and ask"
            ) from error
        fault("journal.ledger.after_commit")
        self._put_mark(at_ms)
        fault("journal.ledger.after_mark")

    def write_back(self) -> None:
        """See `Ledger.write_back`: put the log into the file."""
        if self._start.is_read_only:
            return
        self._give_back()
        with self._reported("writing back"):
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._start.reserve.hold()

    def close(self) -> None:
        """See `Ledger.close`."""
        is_first = self._readers.close()
        self._writer.close()
        if is_first and self._marks is not None:
            self._marks.close()
            self._start.reserve.hold_rest()

    # Opening.
    def _connect(self) -> sqlite3.Connection:
        return connect(self._path, is_read_only=self._start.is_read_only)

    def _open(self) -> None:
        with self._reported("opening"):
            self._writer = self._connect()
            self._prepare()

    def _prepare(self) -> None:
        db = self._writer
        if not db.execute("PRAGMA user_version").fetchone()[0]:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise not_a_ledger(self._path)
            self._make()
        check_tables(db, self._path, is_read_only=self._start.is_read_only)
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
        # So that a ledger whose journals were deleted can give room back.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        make_tables(db)
        with storage_errors(f"syncing {self._path}"):
            sync_folder(os.path.dirname(self._path))

    def _begin(self, marking: CommitMarks) -> None:
        """Take the ledger over, under a higher epoch than any before, and note what was lost."""
        db, loss = self._writer, self._start.loss or Loss(message="")
        at_ms, opening_id = time.time_ns() // 1_000_000, secrets.randbits(63)
        file_commit = 0 if loss.message else marking.mark.file_commit
        with self._reported("writing to"):
            db.execute("BEGIN IMMEDIATE")
            self._epoch = max(self._epoch_there(), loss.epoch_min) + 1
            commit = max(
                db.execute("SELECT number FROM last_commit").fetchone()[0], loss.commit_min
            )
            db.execute("UPDATE meta SET value = ? WHERE name = 'epoch'", (self._epoch,))
            db.execute(ledger_tables.PUT_LAST_COMMIT, (commit + 1, at_ms, file_commit))
            db.execute(
                "INSERT INTO openings VALUES (?, ?, ?)", (self._epoch, opening_id, commit + 1)
            )
            oldest = self._epoch - ledger_tables.OPENINGS_KEPT
            db.execute("DELETE FROM openings WHERE epoch <= ?", (oldest,))
            if loss.message:
                db.execute("INSERT INTO losses VALUES (?, ?)", (at_ms, loss.message))
            if loss.segment_min:
                db.execute(ledger_tables.RAISE_NEXT_SEGMENT, (loss.segment_min + 1,))
            db.execute("COMMIT")
        with storage_errors(f"reading the log of {self._path}"):
            marking.begin(
                CommitMark(
                    commit=commit, epoch=self._epoch, opening_id=opening_id, file_commit=file_commit
                )
            )
        self._put_mark(at_ms)

    # Writing.
    def _check_epoch(self) -> None:
        epoch = self._epoch_there()
        if epoch != self._epoch:
            raise BrokerStopped(
                f"{self._path} was taken over by another process\n"
                f"  epoch here: {self._epoch}, found: {epoch}\n  to fix: join the new owner"
            )

    def _put_mark(self, at_ms: int) -> None:
        """Note outside the ledger that a commit is durable."""
        assert self._marks is not None
        try:
            self._marks.put(at_ms)
        except OSError as error:
            raise BrokerStopped(
                f"marking a commit of ledger {self._path} failed: {error}\n"
                "  the last requests were saved\n  to fix: mend the disk and open the broker again"
            ) from error

    # Room.
    def _make_room(self) -> None:
        """Give the reserve away, and let the log begin again where it is long enough already."""
        self._start.reserve.release()
        self._write_back_if_it_fits("PASSIVE")

    def _give_back(self) -> None:
        """Give some pages of deleted rows back, where most of the ledger is made of such."""
        for _ in range(_GIVE_BACK_ROUNDS_MAX):
            free = self._pragma("freelist_count")
            if free < _FREE_PAGES_MIN or 2 * free < self._pragma("page_count"):
                return
            self._tried(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    def _shrink(self) -> None:
        """On a full disk: give back what deleted rows took in the ledger, and then its log."""
        for _ in range(_VACUUM_ROUNDS_MAX):
            before = self._pragma("freelist_count")
            self._tried(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            if self._pragma("freelist_count") >= before:
                break
        self._write_back_if_it_fits("TRUNCATE")
        self._start.reserve.hold()

    def _write_back_if_it_fits(self, mode: str) -> None:
        """Put the log into the file. Half of it would take the room and give none back."""
        growth = self._pragma("page_count") * _PAGE_BYTES - os.path.getsize(self._path)
        if growth <= self._start.reserve.room():
            self._tried(f"PRAGMA wal_checkpoint({mode})")

    def _pragma(self, name: str) -> int:
        with self._reported("reading"):
            return int(self._writer.execute(f"PRAGMA {name}").fetchone()[0])

    def _tried(self, statement: str) -> None:
        """What needs room itself, and is left if there is none."""
        try:
            # Steps to the end, as vacuuming takes one step for each page.
            self._writer.executescript(f"{statement};")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) not in _MAY_FAIL:
                raise BrokerStopped(
                    f"{words('shrinking', self._path, error)}\n  no request is lost\n"
                    "  to fix: mend the disk and open the broker again"
                ) from error

    def _refused(self, doing: str, error: BaseException) -> StorageError:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return _DiskFull(
                f"{words(doing, self._path, error)}\n"
                "  to fix: free space, by truncating or deleting journals say; then writing goes on"
            )
        return StorageError(words(doing, self._path, error))

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
