"""Looks at a ledger before it is opened for writing, and at the segments beside it.

Invariant: looking changes nothing. SQLite would shorten a log that breaks off at the first write,
and delete it when it is closed; a connection that only reads does neither.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import xxhash

from millrace.errors import Corrupt, DataLost
from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger import mark_files as marks
from millrace.journal.embedded.ledger.ledger_connections import read_only_mode
from millrace.journal.embedded.ledger.lost_commits import (
    AcceptLoss,
    FoundLedger,
    LedgerOpening,
    Loss,
    NoMark,
    judge,
)
from millrace.journal.embedded.ledger.mark_files import CommitMark, DamagedMark
from millrace.storage.store import storage_errors

_READ_BYTES: Final = 1 << 20
_SUFFIX: Final = ".ipc"


def check(root: str, path: str, segments: str, *, accept_loss: AcceptLoss) -> Loss | None:
    """What the ledger at `path` lacks, if that is accepted; None if it is whole, or not there yet.

    `segments` is the folder of segment files. Raises `DataLost` if commits are missing or the
    ledger is gone, and `Corrupt` if it is damaged.
    """
    with storage_errors(f"looking at {root}"):
        mark = _mark(root)
        _refuse_lost_ledger(path, segments, mark)
        if not os.path.exists(path) or not os.path.getsize(path):
            return None
        try:
            loss = _judged(path, segments, mark)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if ledger_tables.is_damage(error):
                raise Corrupt(
                    f"reading ledger {path} failed: {error}\n"
                    "  to fix: bring ledger.sqlite and ledger.sqlite-wal back from a copy"
                ) from error
            raise OSError(str(error)) from error
    if loss is not None and not accept_loss:
        raise loss.error()
    return loss


def _judged(path: str, segments: str, mark: CommitMark | NoMark) -> Loss | None:
    """What is missing. Folders of segments that did not change since the mark are not listed."""
    marked_at_ms = mark.committed_at_ms if isinstance(mark, CommitMark) else 0
    ledger = _look(path, segments, mark, marked_at_ms)
    if ledger is None or judge(ledger, mark) is None:
        return None
    # Numbers of segments must not be given out again: look at all of them.
    ledger = _look(path, segments, mark, 0)
    return None if ledger is None else judge(ledger, mark)


def checksum_of_file(path: str) -> int:
    """XXH3-64 of a whole file, read in chunks. No SQLite connection may be open on it."""
    digest = xxhash.xxh3_64()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.intdigest()


def _mark(root: str) -> CommitMark | NoMark:
    try:
        return marks.read(root) or NoMark(is_damaged=False)
    except DamagedMark:
        return NoMark(is_damaged=True)


def _refuse_lost_ledger(path: str, segments: str, mark: CommitMark | NoMark) -> None:
    """Rows without a ledger are lost data, not an empty workspace."""
    if os.path.exists(path) and os.path.getsize(path):
        return
    if any(_folders(segments)):
        raise DataLost(
            f"ledger {path} is gone, and there are segments in {segments}\n"
            "  to fix: bring the ledger back, or remove the segments to begin anew"
        )
    if isinstance(mark, CommitMark) and mark.commit:
        raise DataLost(
            f"ledger {path} is gone, and {mark.commit:,} of its commits were acknowledged\n"
            f"  to fix: bring the ledger back, or remove {' and '.join(marks.PLACES)} to begin anew"
        )


@contextlib.contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that only reads, and leaves the log of a ledger as it is."""
    address = f"file:{quote(path)}?mode={read_only_mode(path)}"
    db = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        yield db
    finally:
        db.close()


def _look(
    path: str, segments: str, mark: CommitMark | NoMark, changed_ms: int
) -> FoundLedger | None:
    is_summed = _is_summed(path, mark)
    checksum = checksum_of_file(path) if is_summed else None
    with reading(path) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        if (
            application != ledger_tables.APPLICATION_ID
            or version not in ledger_tables.VERSIONS_READ
        ):
            return None  # Opening says so.
        commit, at_ms, expected = _last_commit(db)
        # After a power cut the mark may be that of an earlier closing.
        is_summed = is_summed and isinstance(mark, CommitMark) and mark.commit == commit
        newer, newest = _newer(db, path, segments, changed_ms)
        return FoundLedger(
            path=path,
            version=version,
            commit=commit,
            committed_at_ms=at_ms,
            openings=_openings(db, version),
            file_commit=_file_commit(db, path),
            file_commit_expected=expected,
            is_checksum_wrong=is_summed and checksum != _checksum(mark),
            contradictions=[] if is_summed else contradictions(db),
            newer_segments=newer,
            newest_segment=newest,
        )


def _is_summed(path: str, mark: CommitMark | NoMark) -> bool:
    """Whether the ledger was closed, its log is still gone, and its checksum is known."""
    log = f"{path}-wal"
    is_log_gone = not os.path.exists(log) or not os.path.getsize(log)
    return is_log_gone and _checksum(mark) is not None


def _checksum(mark: CommitMark | NoMark) -> int | None:
    return mark.file_checksum if isinstance(mark, CommitMark) else None


def _last_commit(db: sqlite3.Connection) -> tuple[int, int, int]:
    """The last commit's number and time, and which commit the file is to hold without the log.

    None of it in a ledger that knows no numbers yet.
    """
    there = "SELECT 1 FROM sqlite_master WHERE name = 'last_commit'"
    if db.execute(there).fetchone() is None:
        return 0, 0, 0
    row = db.execute("SELECT number, at_ms, file_commit FROM last_commit").fetchone()
    return row or (0, 0, 0)


def _file_commit(db: sqlite3.Connection, path: str) -> int:
    """The last commit that the ledger's file holds without its log; 0 if it holds none.

    SQLite cannot answer this: it cannot read a file that got back only half of a log.
    """
    there = "SELECT rootpage FROM sqlite_master WHERE name = 'last_commit'"
    row, size = db.execute(there).fetchone(), db.execute("PRAGMA page_size").fetchone()[0]
    if row is None:
        return 0
    with open(path, "rb") as file:
        file.seek((row[0] - 1) * size)
        return ledger_tables.first_integer(file.read(size)) or 0


def _openings(db: sqlite3.Connection, version: int) -> dict[int, LedgerOpening]:
    if version == 1:
        return {}
    rows = db.execute("SELECT epoch, id, first_commit FROM openings")
    return {epoch: LedgerOpening(id=id_, first_commit=first) for epoch, id_, first in rows}


def contradictions(db: sqlite3.Connection) -> list[str]:
    """Journals whose ranges do not end where they do, in words."""
    return [
        f"journal {name!r} ends at {end} with {rows} rows, its ranges at {last} with {counted}"
        for name, end, rows, last, counted in db.execute(ledger_tables.CONTRADICTIONS)
    ]


def _newer(
    db: sqlite3.Connection, path: str, segments: str, changed_ms: int
) -> tuple[list[str], int]:
    """Segment files that are newer than the ledger, and the highest number of any.

    Files are listed first: an owner that is writing names a file in the ledger before it makes it.
    """
    listed = list(_segment_files(segments, changed_ms))
    open_files = [file for file, _ in db.execute(ledger_tables.CLEAN_OPEN_SEGMENTS)]
    lengths = {}
    for file in open_files:
        with contextlib.suppress(FileNotFoundError):
            lengths[file] = os.path.getsize(os.path.join(os.path.dirname(path), file))
    row = db.execute("SELECT value FROM meta WHERE name = 'next_segment'").fetchone()
    next_segment = 1 if row is None else row[0]
    newer = [
        f"{os.path.basename(segments)}/{folder}/{number}{_SUFFIX}"
        for folder, number in listed
        if number >= next_segment
    ]
    newer += [
        file
        for file, size in db.execute(ledger_tables.CLEAN_OPEN_SEGMENTS)
        if lengths.get(file, 0) > size
    ]
    return newer, max((number for _, number in listed), default=0)


def _segment_files(segments: str, changed_ms: int) -> Iterator[tuple[str, int]]:
    """Folder and number of each segment file, in folders that changed since then."""
    for folder in _folders(segments, changed_ms):
        for name in os.listdir(os.path.join(segments, folder)):
            number, suffix = os.path.splitext(name)
            if suffix == _SUFFIX and number.isdecimal():
                yield folder, int(number)


def _folders(segments: str, changed_ms: int = 0) -> list[str]:
    """The folders of journals that have segments, and changed since then."""
    if not os.path.isdir(segments):
        return []
    with os.scandir(segments) as entries:
        named = [entry for entry in entries if entry.name.isdecimal()]
        return [entry.name for entry in named if entry.stat().st_mtime_ns >= changed_ms * 1_000_000]
