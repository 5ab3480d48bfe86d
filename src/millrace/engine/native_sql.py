"""The query with which the engine reads Parquet files by itself.

Invariant: rows come in the order of the pieces, and a column that stands in the names of folders
has the value of its file in every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt

from millrace.scan.engine_parquet import FileRows, NativeRows
from millrace.scan.file_mapping import ColumnSource, Filled, FromFile
from millrace.sql.typed_sql import quoted, text_literal
from millrace.sql.types import from_arrow, to_duckdb


def native_query(rows: NativeRows) -> str:
    """The query that reads files. Row numbers choose row groups; others are not read."""
    scans: list[list[FileRows]] = []
    for piece in rows.pieces:
        last = scans[-1][-1] if scans else None
        if last is not None and last.rows is None and _can_follow(last, piece):
            scans[-1].append(piece)
        else:
            scans.append([piece])
    return " UNION ALL ".join(_scan(rows, pieces) for pieces in scans)


def _can_follow(last: FileRows, piece: FileRows) -> bool:
    """Whether one scan reads both files: all rows of them, in the same columns."""
    return piece.rows is None and piece.sources == last.sources


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
    own = [name for name in rows.columns if name not in positions]
    sources = dict(zip(own, pieces[0].sources or (), strict=False))
    for name in rows.columns:
        if name not in positions:
            yield _own_column(name, sources.get(name))
            continue
        column = rows.partitions[positions[name]]
        values = [literal(piece.partition[positions[name]], column.type) for piece in pieces]
        value = values[0]
        if len(set(values)) > 1:
            value = f"[{', '.join(values)}][CAST(file_index AS BIGINT) + 1]"
        yield f"{value} AS {quoted(name)}"


def _own_column(name: str, source: ColumnSource | None) -> str:
    """A column of a file, or what its table says stands for it there."""
    match source:
        case None:
            return quoted(name)
        case Filled(value, kind):
            return f"{literal(value, kind)} AS {quoted(name)}"
        case FromFile(there, kind):
            known = from_arrow(kind)
            if known.arrow is not None or pt.is_nested(kind) or pt.is_timestamp(kind):
                return f"{quoted(there)} AS {quoted(name)}"
            return f"CAST({quoted(there)} AS {to_duckdb(known)}) AS {quoted(name)}"


def literal(value: object, kind: pa.DataType) -> str:
    """A value of a partition folder in the engine's SQL."""
    name = to_duckdb(from_arrow(kind))
    if value is None:
        return f"CAST(NULL AS {name})"
    text = str(value) if not pt.is_floating(kind) else repr(value)
    return f"CAST({text_literal(text)} AS {name})"
