"""The tables of a ledger, built from a snapshot of a log and the records behind it.

The file is never synced, and of no use once its process ends: the log is the truth.

Invariant: after record n is applied, the tables are what the SQLite ledger would hold.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.errors import Corrupt, DataLost
from millrace.journal.embedded.ledger import ledger_saving, ledger_tables
from millrace.journal.embedded.ledger.ledger_connections import connect
from millrace.journal.embedded.ledger.ledger_saving import Change
from millrace.journal.embedded.ledger.table_reader import check_tables, make_tables
from millrace.journal.ledger_log import log_records
from millrace.journal.ledger_log.decision_log import DecisionLog, LogSnapshot
from millrace.journal.ledger_log.log_records import LogRecord

_PUT_OPENING: Final = "REPLACE INTO openings VALUES (?, ?, ?)"
_SET_EPOCH: Final = "UPDATE meta SET value = ? WHERE name = 'epoch'"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far a replica is, and what of the log could not be applied."""

    number: int
    """The last record that was applied; 0 for none."""
    epoch: int
    highest: int
    """The highest number that the log has: above `number` if records are missing between."""
    snapshot: int
    bytes: int
    """Of the records since that snapshot."""
    problem: str | None = None
    """Which records are missing or damaged."""


def build(log: DecisionLog, path: str) -> tuple[sqlite3.Connection, LogPosition]:
    """Make the tables of a log in a new file at `path`, as of the log's end."""
    newest, problem = 0, None
    for number in reversed(log.snapshots()):
        content = log.read_snapshot(number)
        if content is None:
            continue
        try:
            tables = log_records.decode_snapshot(content, where=f"snapshot {number} of {log.name}")
        except Corrupt as error:
            problem = str(error)
            continue
        with open(path, "wb") as file:
            file.write(tables)
        newest, problem = number, None
        break
    db = open_tables(path, is_new=not newest)
    position = LogPosition(
        number=newest, epoch=_epoch(db), highest=newest, snapshot=newest, bytes=0, problem=problem
    )
    if newest and last_number(db) != newest:
        problem = f"snapshot {newest} of {log.name} holds the state of record {last_number(db)}"
        db.close()
        raise Corrupt(f"{problem}\n  to fix: bring the journals back from a copy")
    return db, catch_up(log, db, position)


def catch_up(
    log: DecisionLog,
    db: sqlite3.Connection,
    position: LogPosition,
    seen: Callable[[LogRecord], object] = lambda _: None,
) -> LogPosition:
    """Apply the records behind a position; `seen` gets each of them."""
    numbers = log.numbers(position.number + 1)
    highest = max([position.highest, *numbers[-1:]])
    at, epoch, size, problem = position.number, position.epoch, position.bytes, position.problem
    if not numbers:
        return position
    for number, content in log.read_many(numbers):
        if number != at + 1 or content is None:
            missing = at + 1 if number != at + 1 else number
            problem = problem or f"record {missing} of {log.name} is missing"
            break
        try:
            record = log_records.decode_record(content, where=f"record {number} of {log.name}")
        except Corrupt as error:
            problem = str(error).splitlines()[0]
            break
        if record.number != number or record.epoch < epoch:
            problem = f"record {number} of {log.name} is not of this place in the log"
            break
        apply(db, record, log_records.changes_of(record))
        seen(record)
        at, epoch, size = number, record.epoch, size + len(content)
    return LogPosition(
        number=at,
        epoch=epoch,
        highest=highest,
        snapshot=position.snapshot,
        bytes=size,
        problem=problem,
    )


def apply(db: sqlite3.Connection, record: LogRecord, changes: Sequence[Change]) -> None:
    """Apply a record to the tables."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if record.opening is not None:
            db.execute(_SET_EPOCH, (record.epoch,))
            opening = (record.epoch, record.opening.id, record.number)
            db.execute(_PUT_OPENING, opening)
            if record.opening.loss is not None:
                loss = (record.at_ms, record.opening.loss)
                db.execute("INSERT INTO losses VALUES (?, ?)", loss)
        ledger_saving.carry_out(db, changes)
        db.execute(ledger_tables.PUT_LAST_COMMIT, (record.number, record.at_ms, 0))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def snapshot_of(path: str, scratch: str) -> LogSnapshot:
    """The state of the tables at `path`, while others write them; `scratch` is a file to use."""
    db = connect(path, is_read_only=False)
    try:
        db.execute("VACUUM INTO ?", (scratch,))
    finally:
        db.close()
    try:
        copy = connect(scratch, is_read_only=True)
        try:
            number = last_number(copy)
        finally:
            copy.close()
        with open(scratch, "rb") as file:
            return LogSnapshot(number, log_records.encode_snapshot(file.read()))
    finally:
        os.unlink(scratch)


def open_tables(path: str, *, is_new: bool) -> sqlite3.Connection:
    """Open the file of a replica."""
    db = connect(path, is_read_only=False)
    try:
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = OFF")
        if is_new:
            make_tables(db)
        check_tables(db, path)
    except BaseException:
        db.close()
        raise
    return db


def mark_resumed(db: sqlite3.Connection, number: int) -> None:
    """Count the records up to here as applied: they are lost, and that was accepted."""
    db.execute(ledger_tables.PUT_LAST_COMMIT, (number, 0, 0))


def epoch_records(db: sqlite3.Connection) -> set[int]:
    """The numbers of all records that begin an epoch."""
    return {row[0] for row in db.execute("SELECT first_commit FROM openings")}


def last_number(db: sqlite3.Connection) -> int:
    """The last record that was applied to these tables."""
    return int(db.execute("SELECT number FROM last_commit").fetchone()[0])


def lost(name: str, position: LogPosition, known_end: int) -> str | None:
    """What a log lacks, in words; None if it is whole as far as that can be known."""
    if position.problem is not None:
        last = max(position.highest, known_end)
        return (
            f"commits of the journals in {name} are missing\n  found: {position.problem}; the "
            f"state is known up to record {position.number} of {last}"
        )
    if position.number < known_end:
        count = known_end - position.number
        return (
            f"{count} commits of the journals in {name} are missing\n"
            f"  found: the log ends with record {position.number}, and its last owner had saved "
            f"record {known_end}"
        )
    return None


def data_lost(message: str) -> DataLost:
    """The error for a log that lacks records."""
    return DataLost(
        f"{message}\n  to fix: bring the log back from a copy; or read what is left with "
        'accept_loss="read_only"; or go on without what is missing: '
        "`millrace journal accept-loss WORKSPACE`, or accept_loss=True"
    )


def _epoch(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()[0])
