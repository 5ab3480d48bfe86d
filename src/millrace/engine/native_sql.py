"""The query with which the engine reads Parquet files by itself.

Invariant: rows come in the order of the pieces, and a column that stands in the names of folders
has the value of its file in every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from millrace.scan.engine_parquet import FileRows, NativeRows
from millrace.sql.typed_sql import quoted, text_literal
from millrace.sql.types import from_arrow, to_duckdb


def native_query(rows: NativeRows) -> str:
    """The query that reads files. Row numbers choose row groups; others are not read."""
    if all(piece.rows is None for piece in rows.pieces):
        return _scan(rows, rows.pieces)
    return " UNION ALL ".join(_scan(rows, [piece]) for piece in rows.pieces)


def _scan(rows: NativeRows, pieces: Sequence[FileRows]) -> str:
    """One scan of whole files, or of a part of one."""
    options, where = "hive_partitioning = false", ""
    if rows.nan_possible:
        # Bounds of floats then end at NaN, so the highest value must not be answered from them:
        # this is not done if rows are chosen, even if all of them are.
        options += ", can_have_nan = true"
        where = " WHERE file_row_number >= 0"
    if pieces[0].rows is not None:
        where = " WHERE file_row_number BETWEEN {} AND {}".format(*pieces[0].rows)
    paths = ", ".join(text_literal(piece.file.path) for piece in pieces)
    columns = ", ".join(_columns(rows, pieces))
    return f"SELECT {columns} FROM read_parquet([{paths}], {options}){where}"


def _columns(rows: NativeRows, pieces: Sequence[FileRows]) -> Iterator[str]:
    positions = {column.name: number for number, column in enumerate(rows.partitions)}
    for name in rows.columns:
        if name not in positions:
            yield quoted(name)
            continue
        column = rows.partitions[positions[name]]
        values = [literal(piece.partition[positions[name]], column.type) for piece in pieces]
        value = values[0]
        if len(set(values)) > 1:
            value = f"[{', '.join(values)}][CAST(file_index AS BIGINT) + 1]"
        yield f"{value} AS {quoted(name)}"


def literal(value: object, kind: pa.DataType) -> str:
    """A value of a partition folder in the engine's SQL."""
    name = to_duckdb(from_arrow(kind))
    if value is None:
        return f"CAST(NULL AS {name})"
    text = str(value) if not pt.is_floating(kind) else repr(value)
    return f"CAST({text_literal(text)} AS {name})"
