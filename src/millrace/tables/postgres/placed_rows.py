"""Rows and their place, committed in one transaction of the database.

    millrace_places(application, unit, epoch, place, rows, changed_at)

A unit is a journal that rows are made of, its place the offset up to which their rows are in the
table. Each writer that takes a unit raises its epoch. Invariant: the place moves only in the
transaction that brings the rows, only from where its writer saw it, and only under its epoch: a
writer that was taken for dead changes no row any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import LeaseLost
from millrace.faults import fault
from millrace.tables.postgres.database import Database, Session
from millrace.tables.postgres.names_in_sql import TableName
from millrace.tables.postgres.row_copying import bring
from millrace.tables.postgres.target_table import TargetTable

PLACES: Final = "millrace_places"
_COLUMNS: Final = """(
  application text NOT NULL, unit bigint NOT NULL, epoch bigint NOT NULL, place bigint,
  rows bigint NOT NULL, changed_at timestamptz NOT NULL, PRIMARY KEY (application, unit))"""


@dataclass(frozen=True, slots=True)
class _Moved:
    """The place moved."""

    transaction: int | None
    """The number of the transaction; None if its answer was lost."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a unit is, and which of its writers this is."""

    epoch: int
    offset: int | None
    """None before the first rows."""


def prepare_places(session: Session, table: TableName) -> None:
    """Make the table of places beside a table, if it is missing."""
    places = table.beside(PLACES)
    if session.rows("SELECT to_regclass($1) IS NULL", [places])[0][0]:
        session.run(f"CREATE TABLE {places} {_COLUMNS}")


class PlacedRows:
    """Commits rows of one unit to a table, as one writer. For one thread at a time."""

    def __init__(self, database: Database, target: TargetTable, application: str) -> None:
        self._database, self._target, self._application = database, target, application
        self._places = target.name.beside(PLACES)
        self._converted: dict[str, str] = {}
        self._unit = 0
        self._place = Place(0, None)

    def take(self, unit: int) -> int | None:
        """Become the writer of a unit; the offset up to which rows are in the table."""

        def work(session: Session) -> Place:
            self._converted = self._target.converted(session)
            fault("postgres.take.before")
            own = [self._application, unit]
            ((epoch, offset),) = session.rows(
                f"INSERT INTO {self._places} AS p VALUES ($1, $2, 1, NULL, 0, now()) "
                "ON CONFLICT (application, unit) DO UPDATE SET epoch = p.epoch + 1 "
                "RETURNING epoch, place",
                own,
            )
            return Place(epoch, offset)

        self._unit, self._place = unit, self._database.transaction(work)
        fault("postgres.take.after")
        return self._place.offset

    def commit(self, rows: pa.Table, offset: int) -> int | None:
        """Bring rows into the table and move the place to `offset`; `LeaseLost` if overtaken.

        Returns the number of the transaction (`xmin` of its rows); None if the answer was lost.
        """

        def work(session: Session) -> _Moved:
            self._bring(session, rows)
            fault("postgres.commit.after_rows")
            moved = session.rows(
                f"UPDATE {self._places} SET place = $1, rows = rows + $2, changed_at = now() "
                "WHERE application = $3 AND unit = $4 AND epoch = $5 "
                "AND place IS NOT DISTINCT FROM $6 RETURNING txid_current()",
                [
                    offset,
                    rows.num_rows,
                    self._application,
                    self._unit,
                    self._place.epoch,
                    self._place.offset,
                ],
            )
            if not moved:
                raise self._overtaken()
            fault("postgres.commit.before")
            return _Moved(int(moved[0][0]))

        def is_done(session: Session) -> _Moved | None:
            found = session.rows(
                f"SELECT epoch, place FROM {self._places} WHERE application = $1 AND unit = $2",
                [self._application, self._unit],
            )
            there = Place(*found[0]) if found else None
            if there is None or there.epoch != self._place.epoch:
                raise self._overtaken()
            return _Moved(None) if there.offset == offset else None

        done = self._database.transaction(work, is_done)
        fault("postgres.commit.after")
        self._place = Place(self._place.epoch, offset)
        return done.transaction

    def _overtaken(self) -> LeaseLost:
        return LeaseLost(
            f"{self._target.who}: another writer has unit {self._unit} of {self._target.name}\n"
            f"  found: its place is no longer {self._place.offset} under epoch "
            f"{self._place.epoch}\n  to fix: nothing; the other writer goes on with it"
        )

    def _bring(self, session: Session, rows: pa.Table) -> None:
        bring(session, self._target, self._converted, rows.to_reader())
