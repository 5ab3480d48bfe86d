"""Copies rows into a table within a transaction: directly, or by way of a temporary table.

Rows whose keys replace others, and values that the server turns into other types, go through the
temporary table. Of rows with equal keys the last one counts; it may say that the row goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.errors import UserError
from millrace.tables.postgres.column_types import column_type
from millrace.tables.postgres.database import Session
from millrace.tables.postgres.names_in_sql import TableName, identifier, identifiers
from millrace.tables.postgres.target_table import TargetTable

_STAGE: Final = TableName("pg_temp", "millrace_rows")
_LOCKED: Final = TableName("pg_temp", "millrace_locked")
_ORDER: Final = "millrace_order"


def bring(
    session: Session,
    target: TargetTable,
    converted: Mapping[str, str],
    rows: pa.RecordBatchReader,
) -> None:
    """Bring rows into a table; `converted` has the types that the server gives to columns."""
    if not target.keys and not converted:
        session.copy(target.name, rows)
        return
    columns = [f"{identifier(f.name)} {column_type(f, target.who)}" for f in rows.schema]
    columns.append(f"{identifier(_ORDER)} bigint")
    session.run(f"CREATE TEMP TABLE {_STAGE.name} ({', '.join(columns)}) ON COMMIT DROP")
    numbered = pa.schema([*rows.schema, pa.field(_ORDER, pa.int64())])
    session.copy(
        _STAGE, pa.RecordBatchReader.from_batches(numbered, _numbered(rows, target, numbered))
    )
    for statement in _from_stage(target, converted):
        session.run(statement)


def _numbered(
    rows: pa.RecordBatchReader, target: TargetTable, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    begin = 0
    for batch in rows:
        _check_keys(batch, target)
        order = pa.array(np.arange(begin, begin + batch.num_rows, dtype=np.int64))
        begin += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, order], schema=schema)


def _check_keys(batch: pa.RecordBatch, target: TargetTable) -> None:
    for key in target.keys:
        nulls = batch.column(key).null_count
        if nulls:
            raise UserError(
                f"{target.who}: {nulls} rows have no key {key!r}\n  found: null\n"
                f"  to fix: filter such rows: filter('{key} IS NOT NULL')"
            )


def _from_stage(target: TargetTable, converted: Mapping[str, str]) -> Iterator[str]:
    """The statements that move staged rows."""
    names = target.schema.names
    values = ", ".join(
        f"{identifier(name)}::{converted[name]}" if name in converted else identifier(name)
        for name in names
    )
    into = f"INSERT INTO {target.name.sql} ({identifiers(names)})"
    if not target.keys:
        yield f"{into} SELECT {values} FROM {_STAGE.sql} ORDER BY {identifier(_ORDER)}"
        return
    keys = identifiers(target.keys)
    given = [name for name in names if name not in target.keys]
    changes = ", ".join(f"{identifier(name)} = EXCLUDED.{identifier(name)}" for name in given)
    # Rows come in the order of their keys: transactions that meet do not wait in a circle.
    last = (
        f"SELECT DISTINCT ON ({keys}) * FROM {_STAGE.sql} "
        f"ORDER BY {keys}, {identifier(_ORDER)} DESC"
    )
    stays = ""
    if target.delete_column is not None:
        marker = identifier(target.delete_column)
        same = " AND ".join(
            f"t.{identifier(key)} = s.{identifier(key)}"
            + (f"::{converted[key]}" if key in converted else "")
            for key in target.keys
        )
        ordered = ", ".join(f"t.{identifier(key)}" for key in target.keys)
        there = f"{target.name.sql} AS t"
        yield (
            f"CREATE TEMP TABLE {_LOCKED.name} ON COMMIT DROP AS SELECT 1 FROM {there} "
            f"JOIN ({last}) AS s ON {same} ORDER BY {ordered} FOR UPDATE OF t"
        )
        yield f"DELETE FROM {there} USING ({last}) AS s WHERE s.{marker} AND {same}"
        stays = f"WHERE {marker} IS NOT TRUE "
    yield (
        f"{into} SELECT {values} FROM ({last}) AS last_rows {stays}ORDER BY {keys} "
        f"ON CONFLICT ({keys}) " + (f"DO UPDATE SET {changes}" if changes else "DO NOTHING")
    )
