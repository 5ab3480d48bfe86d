"""What SQLite says of the ledger, in words for the user."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.errors import Corrupt, FormatError, MillraceError, StorageError
from millrace.journal.embedded.ledger import ledger_tables
from millrace.storage import documents


@contextmanager
def reported(path: str, doing: str) -> Iterator[None]:
    """Errors inside name the ledger, and tell damage from a disk that says no."""
    to_fix = "restore the folder of the journals from a copy"
    try:
        with documents.decoding(path, "a ledger of journals", to_fix):
            yield
    except MillraceError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:
        kind = Corrupt if ledger_tables.is_damage(error) else StorageError
        raise kind(words(doing, path, error)) from error


def words(doing: str, path: str, error: BaseException | str) -> str:
    """What could not be done with a ledger, and why."""
    return (
        f"{doing} ledger {path} failed\n  found: {error}\n"
        "  to fix: see that the disk has room and may be written, then open the workspace again"
    )


def not_a_ledger(path: str) -> FormatError:
    """The error for a file of SQLite's that is not ours."""
    return FormatError(
        f"{path} is no ledger of journals\n  found: an SQLite file of another program\n"
        "  to fix: open another folder as workspace, or move this file away"
    )
