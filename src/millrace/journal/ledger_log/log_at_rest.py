"""A log that is looked at without owning it: its tables as a file, and a check of its records.

Invariant: nothing is added to the log, and nothing is removed. Its owner is not disturbed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.errors import MillraceError
from millrace.journal.ledger_log import log_records, replica
from millrace.journal.ledger_log.decision_log import DecisionLog, LogSnapshot
from millrace.journal.ledger_log.replica import LogPosition

_LOOKS_MAX: Final = 5
"""How often the log is read again because its owner has trimmed it meanwhile."""


@dataclass(frozen=True, slots=True)
class LogEntryCheck:
    """A record or snapshot that was read, and what is wrong with it."""

    name: str
    bytes: int
    problem: MillraceError | None = None


def copy_tables(log: DecisionLog, path: str, known_end: int = 0) -> LogPosition:
    """Make a plain ledger at `path`, a new file, of the log as it is now.

    Raises `DataLost` if records are missing; `known_end` is one that is known to have been there.
    """
    position = _built(log, path)
    lost = replica.lost(log.name, position, known_end)
    if lost is not None:
        raise replica.data_lost(lost)
    return position


def check_entries(log: DecisionLog) -> Iterator[LogEntryCheck]:
    """Read every snapshot and every record, and compare it with its checksum.

    One that is trimmed meanwhile is left out; one that is missing is found by `copy_tables`.
    """
    for number in log.snapshots():
        name = f"snapshot {number} of {log.name}"
        yield from _checked(name, log.read_snapshot(number), log_records.decode_snapshot)
    for number, content in log.read_many(log.numbers(1)):
        yield from _checked(f"record {number} of {log.name}", content, log_records.decode_record)


def begin_from(log: DecisionLog, path: str) -> None:
    """Begin a log, in which there is nothing, with the state of a ledger's file.

    The file is brought to this version's tables.
    """
    log.prepare()
    tables = replica.open_tables(path, is_new=False)
    try:
        # Number 0 is that of a log with nothing in it.
        number = max(1, replica.last_number(tables))
        replica.mark_resumed(tables, number)
        tables.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        tables.close()
    with open(path, "rb") as file:
        log.put_snapshot(LogSnapshot(number, log_records.encode_snapshot(file.read())))


def _built(log: DecisionLog, path: str) -> LogPosition:
    looks = 0
    while True:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
        snapshots = log.snapshots()
        tables, position = replica.build(log, path)
        try:
            tables.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            tables.close()
        looks += 1
        if position.problem is None or looks == _LOOKS_MAX or log.snapshots() == snapshots:
            return position


def _checked(
    name: str, content: bytes | None, decode: Callable[..., object]
) -> Iterator[LogEntryCheck]:
    if content is None:
        return
    try:
        decode(content, where=name)
    except MillraceError as error:
        yield LogEntryCheck(name, len(content), error)
    else:
        yield LogEntryCheck(name, len(content))
