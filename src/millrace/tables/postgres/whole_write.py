"""Writes all rows of a result to a table in one transaction, under a name: once for each name.

The name is a row of `millrace_places`, which comes with the rows. Invariant: a table has all rows
of a write or none of them, and those of a name at most once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from millrace.errors import UserError
from millrace.faults import fault
from millrace.identity.schemas import conform
from millrace.names import check_text, shown
from millrace.tables.postgres.database import Database, Session
from millrace.tables.postgres.names_in_sql import table_name
from millrace.tables.postgres.placed_rows import PLACES, prepare_places
from millrace.tables.postgres.row_copying import bring
from millrace.tables.postgres.target_table import TargetTable

WriteMode = Literal["append", "overwrite"]
_PREFIX: Final = "write_postgres/"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeWrite:
    """A write of a result."""

    target: TargetTable
    mode: WriteMode
    create: bool
    once: str | None
    """The user's name of it; None: every write is another one."""

    def prepare(self, database: Database) -> int | None:
        """Refuse a table that cannot hold the rows, or make it; the rows of an earlier write."""
        self.target.check_values()

        def work(session: Session) -> int | None:
            self.target.prepare(session, make=self.create)
            prepare_places(session, self.target.name)
            return None if self.once is None else self._written(session, self._name(self.once))

        return database.transaction(work)

    def write(self, database: Database, rows: Callable[[], Iterator[pa.RecordBatch]]) -> int:
        """Write all rows; how many the table got from the write of this name."""
        name = self._name(secrets.token_hex(16) if self.once is None else self.once)
        places = self.target.name.beside(PLACES)
        counted = _Counted(rows, self.target.schema, self.target.who)

        def work(session: Session) -> int:
            begun = session.rows(
                f"INSERT INTO {places} VALUES ($1, 0, 1, 1, 0, now()) ON CONFLICT DO NOTHING "
                "RETURNING place",
                [name],
            )
            if not begun:
                return self._written(session, name) or 0
            converted = self.target.converted(session)
            if self.mode == "overwrite":
                session.run(f"TRUNCATE {self.target.name.sql}")
            bring(session, self.target, converted, counted.reader())
            fault("postgres.write.after_rows")
            session.rows(
                f"UPDATE {places} SET rows = $1 WHERE application = $2 RETURNING rows",
                [counted.rows, name],
            )
            fault("postgres.write.before")
            return counted.rows

        written = database.transaction(work, lambda session: self._written(session, name))
        fault("postgres.write.after")
        if self.once is None:
            database.transaction(
                lambda s: s.rows(f"DELETE FROM {places} WHERE application = $1 RETURNING 1", [name])
            )
        return written

    def _name(self, once: str) -> str:
        return f"{_PREFIX}{self.target.name.name}/{once}"

    def _written(self, session: Session, name: str) -> int | None:
        """How many rows a write has brought; None if it was not committed."""
        places = self.target.name.beside(PLACES)
        found = session.rows(f"SELECT rows FROM {places} WHERE application = $1", [name])
        return int(found[0][0]) if found else None


def whole_write(
    who: str,
    table: str,
    schema: pa.Schema,
    mode: str,
    keys: str | Sequence[str],
    *,
    create: bool,
    once: str | None,
) -> WholeWrite:
    """The write that a user asked for; refuses wrong arguments."""
    chosen = (keys,) if isinstance(keys, str) else tuple(keys)
    if mode not in ("append", "overwrite"):
        raise UserError(
            f"{who}: mode is {shown(mode)}\n  to fix: give 'append' or 'overwrite'; with keys="
            "[...] rows replace those with equal keys"
        )
    if once is not None:
        check_text(once, f"{who}: a write")
    name = table_name(who, table)
    target = TargetTable(name=name, schema=schema, keys=chosen, who=who)
    target.check_values()
    kind: WriteMode = "append" if mode == "append" else "overwrite"
    return WholeWrite(target=target, mode=kind, create=create, once=once)


class _Counted:
    """Rows that are counted while they are sent; each try sends them from the beginning."""

    def __init__(
        self, rows: Callable[[], Iterator[pa.RecordBatch]], schema: pa.Schema, where: str
    ) -> None:
        self._rows, self._schema, self._where = rows, schema, where
        self.rows = 0

    def reader(self) -> pa.RecordBatchReader:
        """The rows, once more."""
        return pa.RecordBatchReader.from_batches(self._schema, self._count())

    def _count(self) -> Iterator[pa.RecordBatch]:
        self.rows = 0
        for batch in self._rows():
            self.rows += batch.num_rows
            yield conform(batch, self._schema, where=self._where)
