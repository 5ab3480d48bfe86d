"""A decision log in PostgreSQL: each record a row that is inserted once.

    millrace_records(workspace, number, content)      primary key (workspace, number)
    millrace_snapshots(workspace, number, content)

Invariant: a record is inserted only behind the one before it, so a server that lost records, as a
standby that lagged does, takes no more of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from millrace.config import Config
from millrace.errors import BrokerStopped, PeerGone, StorageError, UserError
from millrace.faults import fault
from millrace.journal.ledger_log.decision_log import Added, LogSnapshot, Taken

if TYPE_CHECKING:
    import psycopg

SCHEME: Final = "postgresql://"
_LOCK: Final = 0x4D524A31
"""Of the transaction that makes the tables: two at once would meet."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS millrace_records (
  workspace text NOT NULL, number bigint NOT NULL, content bytea NOT NULL,
  PRIMARY KEY (workspace, number));
CREATE TABLE IF NOT EXISTS millrace_snapshots (
  workspace text NOT NULL, number bigint NOT NULL, content bytea NOT NULL,
  PRIMARY KEY (workspace, number));
"""
_ADD: Final = """
INSERT INTO millrace_records SELECT %(workspace)s, %(number)s, %(content)s
WHERE %(number)s = 1
  OR EXISTS (SELECT 1 FROM millrace_records
    WHERE workspace = %(workspace)s AND number = %(number)s - 1)
  OR EXISTS (SELECT 1 FROM millrace_snapshots
    WHERE workspace = %(workspace)s AND number = %(number)s - 1)
ON CONFLICT DO NOTHING RETURNING number
"""
_PUT_SNAPSHOT: Final = """
INSERT INTO millrace_snapshots VALUES (%s, %s, %s)
ON CONFLICT (workspace, number) DO UPDATE SET content = excluded.content
"""
_PAGE: Final = 256
_AGAIN: Final = ("40001", "40P01")
"""Transactions that could not be put in order, and deadlocks: nothing was saved."""
_AWAY: Final = ("08", "57")
"""Classes of a connection that broke, and of a server that is ending or starting."""
_READ_ONLY: Final = "25006"


class PostgresLog:
    """The log of a workspace's journals in a database. Used by any thread, one at a time."""

    def __init__(self, address: str, workspace_id: str, config: Config) -> None:
        self._address = address
        self._workspace = workspace_id
        self._config = config
        self._lock = threading.Lock()
        self._db: psycopg.Connection[Any] | None = None

    @property
    def name(self) -> str:
        """See `DecisionLog.name`."""
        return shown_address(self._address)

    def prepare(self) -> None:
        """See `DecisionLog.prepare`: a server that may forget commits is refused."""
        with self._used() as db:
            if db.execute("SHOW fsync").fetchone() == ("off",):
                raise UserError(
                    f"{self.name} does not sync what it saves\n  found: fsync = off\n"
                    "  to fix: set fsync = on in postgresql.conf, and restart the server"
                )
            row = db.execute("SELECT to_regclass('millrace_snapshots')").fetchone()
            if row is None or row[0] is None:
                with db.transaction():
                    db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                    db.execute(_TABLES)

    def add(self, number: int, content: bytes) -> Added | Taken:
        """See `DecisionLog.add`. A connection that breaks is made anew, and the record looked up.

        The server decides whether the first try counts: an insert waits for an earlier one of the
        same number to end.
        """
        values = {"workspace": self._workspace, "number": number, "content": content}
        pg = _psycopg()
        until = time.monotonic() + self._config.ledger_retry_ms_max / 1000
        pause_s = self._config.ledger_retry_ms / 1000
        is_sent = False
        fault("ledger.log.before_add")
        while True:
            try:
                with self._connected() as db:
                    added = db.execute(_ADD, values).fetchone() is not None
                    is_sent = is_sent or added
                    there = None if added else self._there(db, number)
            except pg.Error as error:
                is_over = time.monotonic() >= until
                if not _is_passing(error):
                    raise self._refused(number, error, is_sent=is_sent) from error
                if (error.sqlstate or "") not in _AGAIN:
                    is_sent = True
                if is_over:
                    raise self._refused(number, error, is_sent=is_sent) from error
                time.sleep(pause_s)
                pause_s *= 2
            else:
                fault("ledger.log.after_add")
                return Added() if added or there == content else Taken(there)

    def read(self, number: int) -> bytes | None:
        """See `DecisionLog.read`."""
        with self._used() as db:
            return self._row(db, "millrace_records", number)

    def numbers(self, first: int) -> Sequence[int]:
        """See `DecisionLog.numbers`."""
        query = (
            "SELECT number FROM millrace_records WHERE workspace = %s AND number >= %s "
            "ORDER BY number"
        )
        with self._used() as db:
            return [row[0] for row in db.execute(query, (self._workspace, first))]

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
        """See `DecisionLog.read_many`."""
        query = (
            "SELECT number, content FROM millrace_records WHERE workspace = %s AND number = ANY(%s)"
        )
        for begin in range(0, len(numbers), _PAGE):
            some = list(numbers[begin : begin + _PAGE])
            with self._used() as db:
                rows = {row[0]: bytes(row[1]) for row in db.execute(query, (self._workspace, some))}
            yield from ((number, rows.get(number)) for number in some)

    def put_snapshot(self, snapshot: LogSnapshot) -> None:
        """See `DecisionLog.put_snapshot`."""
        with self._used() as db:
            db.execute(_PUT_SNAPSHOT, (self._workspace, snapshot.number, snapshot.content))

    def snapshots(self) -> Sequence[int]:
        """See `DecisionLog.snapshots`."""
        query = "SELECT number FROM millrace_snapshots WHERE workspace = %s ORDER BY number"
        with self._used() as db:
            return [row[0] for row in db.execute(query, (self._workspace,))]

    def read_snapshot(self, number: int) -> bytes | None:
        """See `DecisionLog.read_snapshot`."""
        with self._used() as db:
            return self._row(db, "millrace_snapshots", number)

    def trim(self, before: int, *, keep: Collection[int]) -> None:
        """See `DecisionLog.trim`."""
        values = (self._workspace, before, list(keep))
        with self._used() as db:
            db.execute(
                "DELETE FROM millrace_records WHERE workspace = %s AND number < %s "
                "AND NOT number = ANY(%s)",
                values,
            )
            db.execute(
                "DELETE FROM millrace_snapshots WHERE workspace = %s AND number < %s", values[:2]
            )

    def close(self) -> None:
        """See `DecisionLog.close`."""
        with self._lock:
            self._drop()

    # Inside.
    def _there(self, db: psycopg.Connection[Any], number: int) -> bytes | None:
        """The record of a number that could not be added."""
        there = self._row(db, "millrace_records", number)
        if there is None and self._newest(db) < number - 1:
            raise BrokerStopped(
                f"records before {number} are gone from {self.name}\n"
                f"  found: {self._newest(db)} as the last one; the server is another one now, or "
                "was restored\n  to fix: bring the server with all records back; opening the "
                "journals says what is missing"
            )
        return there

    def _newest(self, db: psycopg.Connection[Any]) -> int:
        query = "SELECT coalesce(max(number), 0) FROM millrace_records WHERE workspace = %s"
        row = db.execute(query, (self._workspace,)).fetchone()
        return 0 if row is None else int(row[0])

    def _row(self, db: psycopg.Connection[Any], table: str, number: int) -> bytes | None:
        query = f"SELECT content FROM {table} WHERE workspace = %s AND number = %s"  # noqa: S608 - names above
        row = db.execute(query, (self._workspace, number)).fetchone()
        return None if row is None else bytes(row[0])

    @contextlib.contextmanager
    def _used(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for calls that may be repeated by the caller; errors are of ours."""
        pg = _psycopg()
        try:
            with self._connected() as db:
                yield db
        except pg.Error as error:
            if _is_passing(error):
                raise PeerGone(
                    f"{self.name} does not answer\n  found: {_words(error)}\n"
                    "  to fix: see that the server runs and can be reached, and ask again"
                ) from error
            raise self._refused(0, error, is_sent=False) from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        pg = _psycopg()
        with self._lock:
            try:
                if self._db is None:
                    self._db = self._connect()
                yield self._db
            except pg.Error as error:
                if self._db is not None and (self._db.closed or _is_passing(error)):
                    self._drop()
                raise

    def _connect(self) -> psycopg.Connection[Any]:
        pg = _psycopg()
        timeout_ms = self._config.ledger_retry_ms_max
        db: psycopg.Connection[Any] = pg.connect(
            self._address,
            autocommit=True,
            connect_timeout=max(2, timeout_ms // 2000),
            application_name="millrace",
        )
        try:
            if db.execute("SHOW synchronous_commit").fetchone() == ("off",):
                db.execute("SET synchronous_commit = on")
            db.execute(f"SET statement_timeout = {timeout_ms}")
        except BaseException:
            db.close()
            raise
        return db

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(_psycopg().Error):
                db.close()

    def _refused(self, number: int, error: Any, *, is_sent: bool) -> StorageError | BrokerStopped:  # noqa: ANN401 - psycopg's
        if is_sent:
            return BrokerStopped(
                f"adding record {number} to {self.name} failed\n  found: {_words(error)}\n"
                "  whether the last requests were saved is not known\n"
                "  to fix: see that the server can be reached, open the journals again and look"
            )
        if error.sqlstate == _READ_ONLY:
            return StorageError(
                f"{self.name} is read-only, and nothing was saved\n  found: {_words(error)}\n"
                "  to fix: give the address of the primary server, or make this one writable"
            )
        return StorageError(
            f"{self.name} refused what was to be saved\n  found: {_words(error)}\n"
            "  to fix: look at the server's log"
        )


def shown_address(address: str) -> str:
    """An address without its password and options."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{user.partition(':')[0]}{at}{host}", parts.path, "", ""))


def _is_passing(error: Any) -> bool:  # noqa: ANN401 - psycopg's
    """Whether trying again may help."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, _psycopg().OperationalError | _psycopg().InterfaceError)
    return state in _AGAIN or state[:2] in _AWAY


def _words(error: Any) -> str:  # noqa: ANN401 - psycopg's
    return " ".join(str(error).split()) or type(error).__name__


def _psycopg() -> ModuleType:
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UserError(
            "a ledger in PostgreSQL needs psycopg, which is not installed\n"
            "  to fix: pip install 'millrace[postgres]'"
        ) from error
    module: ModuleType = psycopg
    return module
