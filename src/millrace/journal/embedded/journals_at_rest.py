"""Journals that are read where they lie, beside an owner or without one.

Invariant: looking changes nothing. No lock is taken, nothing is cut back, and no file appears. The
list of journals is of one moment; rows that were truncated since are not taken for lost.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.errors import Corrupt, DataLost, MillraceError, StorageError, UserError
from millrace.journal.book_broker import Times
from millrace.journal.core.book import Book, Journal
from millrace.journal.core.journal_names import JournalChoice, JournalId, Offset
from millrace.journal.core.values import SegmentFile
from millrace.journal.embedded.disk_reserve import Reserve
from millrace.journal.embedded.ledger import ledger_check, ledger_tables, mark_files
from millrace.journal.embedded.ledger.ledger_errors import not_a_ledger, reported
from millrace.journal.embedded.ledger.ledger_port import AppendRange, InSegment, Ledger
from millrace.journal.embedded.ledger.mark_files import CommitMark
from millrace.journal.embedded.ledger.sqlite_ledger import LedgerStart, SqliteLedger
from millrace.journal.embedded.row_storage import SEGMENTS
from millrace.journal.embedded.segment_disk import LocalDisk, SegmentDisk
from millrace.journal.embedded.segment_reader import LEDGER, SegmentReader

_PAGE_RANGES: Final = 256
_NULL_IN: Final = "NULL value in "
_COMPLAINTS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCheck:
    """A range whose bytes were read, and what is wrong with it."""

    journal: str
    id: JournalId
    first: Offset
    path: str
    bytes: int
    problem: MillraceError | None = None


@dataclass(frozen=True, slots=True)
class RestingPlace:
    """Where the files of journals are: a folder, or a disk to which their names are known."""

    root: str
    disk: SegmentDisk | None = None


class RestingJournals(SegmentReader):
    """Reads journals without opening them. Made by `resting_journals`."""

    def __init__(self, place: RestingPlace, ledger: Ledger, book: Book, config: Config) -> None:
        super().__init__(place.root, ledger, place.disk or LocalDisk(), book, config, Times())
        self._is_folder = place.disk is None

    def check(self) -> Iterator[RangeCheck]:
        """Read every row of every journal, and compare it with its checksum."""
        for _, journal in sorted(self._book.journals.all()):
            yield from self._check_from(journal, journal.start)

    def knows(self, name: str) -> bool:
        """Whether there is a journal of this name, among those that were chosen."""
        return self._book.journals.peek(name) is not None

    def groups_of(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The groups that have committed in these journals, each with the journal."""
        return [
            (group, name)
            for name in names
            for group in sorted(self._book.groups.get(self._book.journal(name).id) or {})
        ]

    def is_wrong(self, found: RangeCheck) -> bool:
        """Whether a range that another look found wrong is still there, and wrong."""
        journals = {journal.id: journal for _, journal in self._book.journals.all()}
        journal = journals.get(found.id)
        if journal is None or found.first >= journal.end:
            return False
        first = max(found.first, journal.start)
        checked = next(self._check_from(journal, first), None)
        return checked is not None and checked.problem is not None

    def _check_from(self, journal: Journal, at: Offset) -> Iterator[RangeCheck]:
        while at < journal.end:
            ranges = self._ledger.ranges(journal.id, at, _PAGE_RANGES)
            for range_ in ranges:
                if not range_.first <= at < range_.next:
                    break
                yield self._check_range(journal, range_)
                at = range_.next
            else:
                if ranges:
                    continue
            yield RangeCheck(
                journal=journal.name,
                id=journal.id,
                first=at,
                path=os.path.join(self._root, LEDGER),
                bytes=0,
                problem=self._missing(journal, at),
            )
            return

    def _check_range(self, journal: Journal, range_: AppendRange) -> RangeCheck:
        problem: MillraceError | None = None
        try:
            self._checked(journal, range_)
        except (DataLost, StorageError, UserError) as error:
            problem = error
        file = range_.where.file if isinstance(range_.where, InSegment) else LEDGER
        return RangeCheck(
            journal=journal.name,
            id=journal.id,
            first=range_.first,
            path=os.path.join(self._root, file),
            bytes=range_.bytes,
            problem=problem,
        )

    def _path(self, file: str) -> str:
        return super()._path(file) if self._is_folder else file

    def adoption_folder(self) -> str:
        """Nothing is adopted here."""
        raise self._refused()

    def direct_folder(self) -> str | None:
        """Nothing is written here."""
        return None

    def tidy(self) -> None:
        """Nothing is tidied here."""

    def close(self) -> None:
        """See `Broker.close`."""
        self._ledger.close()

    def _save(self, draft: Book) -> None:  # noqa: ARG002 - the broker's
        raise self._refused()

    def _check_file(self, file: SegmentFile) -> SegmentFile:  # noqa: ARG002 - the broker's
        raise self._refused()

    def _refused(self) -> UserError:
        return UserError(
            f"the journals in {self._root} were opened to be read\n  found: a call that writes\n"
            "  to fix: open the workspace"
        )


@contextmanager
def resting_journals(
    place: RestingPlace,
    config: Config,
    path: str | None = None,
    choice: JournalChoice | None = None,
) -> Iterator[RestingJournals]:
    """The journals of a folder as they are now.

    `path` is the ledger, if it is elsewhere. With a choice, no other journals are known.
    """
    path = path or os.path.join(place.root, LEDGER)
    check_version(path)
    reserve = Reserve(os.path.dirname(path), config.journal_reserve_bytes)
    ledger = SqliteLedger(path, config, LedgerStart(is_read_only=True, reserve=reserve))
    try:
        book = ledger.load().book if choice is None else ledger.load_some(choice)
        journals = RestingJournals(place, ledger, book, config)
    except BaseException:
        ledger.close()
        raise
    try:
        yield journals
    finally:
        journals.close()


def check_ledger(root: str) -> None:
    """Raise if commits are missing, or if the ledger's own file is damaged."""
    path = os.path.join(root, LEDGER)
    check_version(path)
    ledger_check.check(root, path, os.path.join(root, SEGMENTS), accept_loss=False)
    check_integrity(path)


def check_integrity(path: str) -> None:
    """Raise if the file of a ledger is damaged, or its tables contradict each other."""
    with reported(path, "reading"), ledger_check.reading(path) as db:
        complaints = _integrity(db)
        if not complaints:
            complaints = ledger_check.contradictions(db)
    if complaints:
        raise Corrupt(
            f"ledger {path} is damaged\n  found: {'; '.join(complaints[:3])}\n"
            "  to fix: restore it from a backup"
        )


def _integrity(db: sqlite3.Connection) -> list[str]:
    """What SQLite complains about.

    SQLite 3.40 takes columns of some tables without row ids for NULL that are not, so it is asked
    for them once more.
    """
    rows = db.execute(f"PRAGMA integrity_check({_COMPLAINTS_MAX})")
    complaints = dict.fromkeys(row[0] for row in rows if row[0] != "ok")
    return [complaint for complaint in complaints if not _is_mistaken(db, complaint)]


def _is_mistaken(db: sqlite3.Connection, complaint: str) -> bool:
    table, _, column = complaint.removeprefix(_NULL_IN).partition(".")
    if not complaint.startswith(_NULL_IN):
        return False
    # A plain comparison is not made for a column that cannot be NULL.
    null = f'SELECT 1 FROM "{table}" WHERE typeof("{column}") = \'null\''  # noqa: S608 - of a ledger
    return db.execute(f"{null} LIMIT 1").fetchone() is None


def check_version(path: str) -> None:
    """Raise unless a file is a ledger of a version that this code reads."""
    if not os.path.exists(path):
        raise DataLost(f"ledger {path} is gone\n  to fix: restore it from a backup")
    with reported(path, "reading"), ledger_check.reading(path) as db:
        version, application = _header(db)
    if application != ledger_tables.APPLICATION_ID:
        raise not_a_ledger(path)
    if version not in ledger_tables.VERSIONS_READ:
        raise ledger_tables.unknown_version(path, version)


def _header(db: sqlite3.Connection) -> tuple[int, int]:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    return int(version), int(db.execute("PRAGMA application_id").fetchone()[0])


def copy_ledger(root: str, to: str) -> None:
    """Copy the ledger as of one moment, into a file of its own without a log."""
    path = os.path.join(root, LEDGER)
    check_version(path)
    with reported(path, "copying"), ledger_check.reading(path) as db:
        copy = sqlite3.connect(to, isolation_level=None)
        try:
            db.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            copy.close()


def files_named(ledger: str) -> dict[str, int]:
    """The files that a ledger names, relative to the journals' folder, with lengths."""
    with reported(ledger, "reading"), ledger_check.reading(ledger) as db:
        rows = db.execute("SELECT file, bytes FROM segments WHERE bytes > 0").fetchall()
        return {ledger_tables.file_of(file): int(size) for file, size in rows}


def mark_copy(ledger: str) -> None:
    """Give a copied ledger the marks that say that it is whole."""
    with reported(ledger, "reading"), ledger_check.reading(ledger) as db:
        version, _ = _header(db)
        if version == 1:
            return  # It knows no marks yet.
        commit, at_ms = db.execute("SELECT number, at_ms FROM last_commit").fetchone()
        opening = db.execute("SELECT epoch, id FROM openings ORDER BY epoch DESC").fetchone()
    epoch, opening_id = opening or (0, 0)
    mark = CommitMark(
        commit=commit,
        committed_at_ms=at_ms,
        epoch=epoch,
        opening_id=opening_id,
        file_commit=commit,
        file_checksum=ledger_check.checksum_of_file(ledger),
    )
    mark_files.create(os.path.dirname(ledger), mark)
