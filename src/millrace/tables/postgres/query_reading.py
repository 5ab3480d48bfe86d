"""Reads the rows of a query as Arrow, over several connections that see one snapshot.

Invariant: all parts together are the rows that the database had at one moment, each in one part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.identity.schemas import check_names
from millrace.names import existing
from millrace.tables.postgres.database import Database, Session
from millrace.tables.postgres.database_address import DatabaseAddress
from millrace.tables.postgres.names_in_sql import identifier, table_name, text
from millrace.tables.postgres.query_columns import (
    QueryColumn,
    as_described,
    query_column,
    schema_of,
)

_QUERY: Final = re.compile(r"\s*(?:SELECT|WITH|VALUES|TABLE)\s", re.IGNORECASE)
Keep = Callable[[pa.RecordBatchReader], str]
"""Saves the rows of a part; returns where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseQuery:
    """What is read."""

    address: DatabaseAddress
    asked: str
    """A table's name, or a query."""
    by: str | None = None
    """The column whose ranges are the parts."""
    parts: int = 1
    who: str = ""
    """The user's call, in errors."""

    @property
    def sql(self) -> str:
        """The rows as SQL that stands behind FROM."""
        if _QUERY.match(self.asked):
            return f"({self.asked.strip().rstrip(';')}) AS millrace_rows"
        return table_name(self.who, self.asked).sql


def read_parts(query: DatabaseQuery, wait_ms: int, keep: Keep) -> list[str]:
    """Read all rows, each part over a connection of its own; where `keep` saved the parts."""

    def lead(session: Session) -> list[str]:
        columns = _columns(session, query)
        _check_arrays(session, query, columns)
        if query.parts == 1:
            return [_read(session, query, columns, "", keep)]
        ranges = _ranges(session, query, columns)
        ((snapshot,),) = session.rows("SELECT pg_export_snapshot()")

        def part(where: str) -> str:
            with Database(query.address, 1, what=query.who, snapshot=snapshot) as database:
                return database.transaction(lambda s: _read(s, query, columns, where, keep))

        # The session stays open meanwhile: the snapshot is its transaction's.
        with ThreadPoolExecutor(len(ranges), thread_name_prefix="millrace-database") as threads:
            return list(threads.map(part, ranges))

    with Database(query.address, wait_ms, what=query.who, snapshot="") as database:
        return database.transaction(lead)


def _columns(session: Session, query: DatabaseQuery) -> tuple[QueryColumn, ...]:
    reader = session.reader(f"SELECT * FROM {query.sql} LIMIT 0")
    check_names(reader.schema)
    columns = tuple(query_column(field, query.who) for field in reader.schema)
    for _ in reader:
        pass
    return columns


def _read(
    session: Session,
    query: DatabaseQuery,
    columns: tuple[QueryColumn, ...],
    where: str,
    keep: Keep,
) -> str:
    asked = ", ".join(f"{column.sql} AS {identifier(column.name)}" for column in columns)
    reader = session.reader(f"SELECT {asked} FROM {query.sql}{where}")
    rows = as_described(iter(reader), columns, query.who)
    return keep(pa.RecordBatchReader.from_batches(schema_of(columns), rows))


def _check_arrays(session: Session, query: DatabaseQuery, columns: tuple[QueryColumn, ...]) -> None:
    """Arrays of several dimensions would come as flat ones."""
    arrays = [column.name for column in columns if column.is_array]
    if not arrays:
        return
    deep = ", ".join(f"bool_or(array_ndims({identifier(name)}) > 1)" for name in arrays)
    found = session.rows(f"SELECT {deep} FROM {query.sql}")[0]
    for name, is_deep in zip(arrays, found, strict=True):
        if is_deep:
            raise UserError(
                f"{query.who}: column {name!r} has arrays of several dimensions\n"
                "  found: PostgreSQL gives them as flat lists\n"
                f"  to fix: select to_json({name})::text instead"
            )


def _ranges(
    session: Session, query: DatabaseQuery, columns: tuple[QueryColumn, ...]
) -> Sequence[str]:
    """The conditions of the parts: every row fulfils exactly one of them."""
    assert query.by is not None, "checked with the call"
    names = [column.name for column in columns]
    if query.by not in names:
        raise UserError(
            f"{query.who}: there is no column {query.by!r} to cut the rows by\n"
            f"  found: {existing(query.by, names)}\n  to fix: give one of these as partition_on="
        )
    by = identifier(query.by)
    ((low, high),) = session.rows(f"SELECT min({by}), max({by}) FROM {query.sql}")
    if low is None:
        return [""]
    cuts = _cuts(low, high, query)
    if not cuts:
        return [""]
    first = f" WHERE {by} < {cuts[0]} OR {by} IS NULL"
    middle = [f" WHERE {by} >= {begin} AND {by} < {end}" for begin, end in pairwise(cuts)]
    return [first, *middle, f" WHERE {by} >= {cuts[-1]}"]


def _cuts(low: Any, high: Any, query: DatabaseQuery) -> list[str]:  # noqa: ANN401 - of a database
    """Where the parts begin, but for the first, as SQL."""
    numbers = range(1, query.parts)
    if isinstance(low, int) and not isinstance(low, bool):
        cuts: list[Any] = [low + (high - low + 1) * number // query.parts for number in numbers]
        return [str(cut) for cut in sorted(set(cuts))]
    if isinstance(low, datetime | date):
        kind = "timestamp" if isinstance(low, datetime) else "date"
        kind = "timestamptz" if isinstance(low, datetime) and low.tzinfo else kind
        cuts = [low + (high - low) * number / query.parts for number in numbers]
        return [f"{text(cut.isoformat())}::{kind}" for cut in sorted(set(cuts))]
    raise UserError(
        f"{query.who}: rows cannot be cut by column {query.by!r}\n"
        f"  found: {type(low).__name__}\n"
        "  to fix: give a column of whole numbers, dates or timestamps, or leave partitions= out"
    )
