"""A connection to a database: transactions that are tried again while it does not answer.

Invariant: what `transaction` returns was committed. A transaction whose answer was lost is looked
for before it is sent again: `is_done` asks the database for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType, TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from millrace.errors import MillraceError, PeerGone, StorageError, UserError
from millrace.extras import import_for
from millrace.tables.postgres.database_address import DatabaseAddress
from millrace.tables.postgres.names_in_sql import TableName, text

T = TypeVar("T")
_RETRY_MS: Final = 50
_RETRY_MS_MAX: Final = 2_000
_AGAIN: Final = ("40001", "40P01", "55P03", "57014")
"""Transactions that could not be put in order, deadlocks, and waits that were too long."""
_AWAY: Final = ("08", "57", "53")
"""Classes of a connection that broke, of a server that ends or starts, and of one that is full."""
_PROTOCOL: Final = "08P01"
_NO_SNAPSHOT: Final = ("22023", "42704")
"""An exported snapshot is not known any more; newer servers say so by the second one."""
_READ_ONLY: Final = "25006"
_DENIED: Final = ("42501", "28000", "28P01", "3D000")
_DATA: Final = ("22", "23", "42", "44", "0A", "P0")
_NO_ENTRY: Final = ("authentication failed", "no password supplied", "does not exist", "SSL")
"""Words of a server that will not let anybody in: it gives no code for that."""
_SETTINGS: Final = """
SELECT set_config('statement_timeout', $2, true), set_config('lock_timeout', $1, true),
  set_config('idle_in_transaction_session_timeout', $1, true),
  CASE current_setting('synchronous_commit') WHEN 'off'
    THEN set_config('synchronous_commit', 'on', true) END,
  current_setting('fsync')
"""


class Session:
    """One transaction of a connection."""

    def __init__(self, cursor: Any) -> None:  # noqa: ANN401 - ADBC's
        self._cursor = cursor

    def run(self, sql: str) -> None:
        """Carry a statement out."""
        self._cursor.execute(sql)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement, for few rows."""
        self._cursor.execute(sql, tuple(values) or None)
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows

    def reader(self, sql: str) -> pa.RecordBatchReader:
        """The rows of a query as Arrow; each batch is fetched when it is asked for."""
        self._cursor.execute(sql)
        return self._cursor.fetch_record_batch()

    def copy(self, table: TableName, rows: pa.RecordBatchReader) -> None:
        """Copy rows into a table, by the names of their columns."""
        failed: list[BaseException] = []
        watched = pa.RecordBatchReader.from_batches(rows.schema, _watched(rows, failed))
        try:
            self._cursor.adbc_ingest(
                table.name, watched, mode="append", db_schema_name=table.schema
            )
        except BaseException:
            if failed:
                raise failed[0] from None  # The driver knows its text alone.
            raise


def _watched(
    rows: Iterable[pa.RecordBatch], failed: list[BaseException]
) -> Iterator[pa.RecordBatch]:
    """The rows; the error that ends them is kept."""
    try:
        yield from rows
    except Exception as error:
        failed.append(error)
        raise


class Database:
    """A database, for one thread at a time. The connection is made when it is needed."""

    def __init__(
        self,
        address: DatabaseAddress,
        wait_ms: int,
        *,
        what: str,
        snapshot: str | None = None,
        statement_ms_max: int | None = None,
    ) -> None:
        """`what` names the user's call in errors; a statement may take `wait_ms` by default.

        With a `snapshot` transactions only read: that one, or, if it is empty, one of their own.
        """
        self._address, self._wait_ms, self._what = address, wait_ms, what
        self._snapshot = snapshot
        self._statement_ms = wait_ms if statement_ms_max is None else statement_ms_max
        self._connection: Any = None
        self._adbc = _adbc(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def transaction(
        self, work: Callable[[Session], T], is_done: Callable[[Session], T | None] | None = None
    ) -> T:
        """Do work in one transaction, and commit it.

        While the database does not answer the work is done again, for a limited time. `is_done`
        says what an earlier try returned, if it was committed; without it repeating does no harm.
        """
        until = time.monotonic() + self._wait_ms / 1000
        pause_ms, may_be_done = _RETRY_MS, False
        while True:
            try:
                if may_be_done and is_done is not None:
                    done = self._once(is_done)
                    if done is not None:
                        return done
                return self._once(work)
            except self._adbc.Error as error:
                if not _is_passing(error):
                    raise self._refusal(error) from error
                if time.monotonic() + pause_ms / 1000 > until:
                    raise self._gone(error) from error
                may_be_done = True
            time.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, _RETRY_MS_MAX)

    def close(self) -> None:
        """Close the connection; what was not committed does not count."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._adbc.Error):
                connection.close()

    def _once(self, work: Callable[[Session], T]) -> T:
        try:
            if self._connection is None:
                target = self._address.for_libpq(quiet_ms_max=self._wait_ms)
                self._connection = self._adbc.connect(target)
            with self._connection.cursor() as cursor:
                session = Session(cursor)
                self._begin(session)
                done = work(session)
            self._connection.commit()
        except self._adbc.Error as error:
            # A connection whose transaction ended in order goes on; any other is made anew.
            if (error.sqlstate or "")[:2] in ("", "08", "57"):
                self.close()
            self._undo()
            raise
        except BaseException:
            self._undo()
            raise
        return done

    def _begin(self, session: Session) -> None:
        if self._snapshot is not None:
            session.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if self._snapshot:
                self._take_snapshot(session, self._snapshot)
            return
        *_, fsync = session.rows(_SETTINGS, [str(self._wait_ms), str(self._statement_ms)])[0]
        if fsync == "off":
            raise UserError(
                f"{self._what}: {self._address} does not sync what it saves\n"
                "  found: fsync = off\n"
                "  to fix: set fsync = on in postgresql.conf, and restart the server"
            )

    def _take_snapshot(self, session: Session, snapshot: str) -> None:
        try:
            session.run(f"SET TRANSACTION SNAPSHOT {text(snapshot)}")
        except self._adbc.Error as error:
            if error.sqlstate not in _NO_SNAPSHOT:
                raise
            # It ended with the connection that had made it, so that one was lost.
            raise self._gone(error) from error

    def _undo(self) -> None:
        if self._connection is not None:
            try:
                self._connection.rollback()
            except self._adbc.Error:
                self.close()

    def _gone(self, error: Exception) -> PeerGone:
        return PeerGone(
            f"{self._what}: {self._address} does not answer\n  found: {self._words(error)}\n"
            "  to fix: see that the server runs and can be reached, and run it again; what was "
            "committed stays"
        )

    def _refusal(self, error: Any) -> MillraceError:  # noqa: ANN401 - ADBC's
        state, words = error.sqlstate or "", self._words(error)
        if state == _READ_ONLY:
            return StorageError(
                f"{self._what}: {self._address} is read-only, and nothing was saved\n"
                f"  found: {words}\n  to fix: give the address of the primary server, or make this "
                "one writable"
            )
        if state in _DENIED or state == "":
            return UserError(
                f"{self._what}: {self._address} did not let this user do that\n  found: {words}\n"
                "  to fix: check user, database and password (PGPASSWORD, ~/.pgpass or password=) "
                "and what the user may do"
            )
        if state[:2] in _DATA or state == _PROTOCOL:
            return UserError(
                f"{self._what}: {self._address} refused what was sent\n  found: {words}\n"
                "  to fix: filter or change such rows, or change the table"
            )
        return StorageError(
            f"{self._what}: {self._address} failed\n  found: {words}\n"
            "  to fix: look at the server's log"
        )

    def _words(self, error: Exception) -> str:
        words = str(error).partition("\n\nQuery was:")[0]
        words = " ".join(words.split()).replace("[libpq] ", "")
        return self._address.without_secrets(words) or type(error).__name__


def _is_passing(error: Any) -> bool:  # noqa: ANN401 - ADBC's
    """Whether trying again may help."""
    state = error.sqlstate or ""
    if not state:
        words = str(error)
        return words.startswith("IO:") and not any(word in words for word in _NO_ENTRY)
    return state in _AGAIN or (state[:2] in _AWAY and state != _PROTOCOL)


def _adbc(what: str) -> ModuleType:
    import_for("adbc_driver_postgresql.dbapi", "postgres", what)
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - an extra

    module: ModuleType = dbapi
    return module
