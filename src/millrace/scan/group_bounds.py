"""What the footer of a Parquet file says of the values in each of its row groups.

A table as in `file_bounds`, with a row for each row group. Invariant: bounds are at least as wide
as the values; where a writer is not known to say that rightly, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from millrace.scan.file_bounds import ROWS, high_of, low_of, nulls_of
from millrace.scan.parquet_footers import LOGICAL, WRITERS

GROUP: Final = "group"
"""The number of the row group."""
ChooseGroups = Callable[[pq.ParquetFile, Sequence[int]], Sequence[int]]
"""Which of these row groups of a file have to be read."""
_NANOSECONDS: Final = "ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCondition:
    """What holds for the bounds of a row group that can have a row that a filter keeps."""

    where: str
    """In the engine's SQL."""
    zone: str
    """The time zone in which it is meant."""
    bounds: pa.Schema
    """The columns that it may use."""


def bounds_schema(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """The bounds that a footer may have of these columns."""
    fields = [pa.field(GROUP, pa.int64()), pa.field(ROWS, pa.int64())]
    for name in sorted(columns):
        kind = schema.field(name).type
        if _has_bounds(kind) and "." not in name:
            fields += [pa.field(low_of(name), kind), pa.field(high_of(name), kind)]
            fields.append(pa.field(nulls_of(name), pa.int64()))
    return pa.schema(fields)


def group_bounds(file: pq.ParquetFile, numbers: Sequence[int], bounds: pa.Schema) -> pa.Table:
    """The bounds of row groups of a file; null where nothing is known."""
    meta = file.metadata
    groups = [meta.row_group(number) for number in numbers]
    columns: dict[str, pa.Array] = {
        GROUP: pa.array(numbers, pa.int64()),
        ROWS: pa.array([group.num_rows for group in groups], pa.int64()),
    }
    leaves = _leaves(file)
    for field in bounds:
        if field.name in columns:
            continue
        kind, _, name = field.name.partition(" ")
        leaf = leaves.get(name)
        values = [None if leaf is None else _said(group.column(leaf), kind) for group in groups]
        columns[field.name] = _array(values, field.type)
    return pa.table(columns, schema=bounds)


def _leaves(file: pq.ParquetFile) -> dict[str, int]:
    """Columns of which the footer says what can be relied on, and their positions."""
    meta = file.metadata
    if not WRITERS.match(meta.created_by or ""):
        return {}
    known: dict[str, int] = {}
    for number in range(meta.num_columns):
        column = meta.schema.column(number)
        position = file.schema_arrow.get_field_index(column.path)
        is_plain = column.logical_type.type in LOGICAL and column.physical_type != "INT96"
        if is_plain and position >= 0 and _has_bounds(file.schema_arrow.field(position).type):
            known[column.path] = number
    return known


def _has_bounds(kind: pa.DataType) -> bool:
    if pt.is_timestamp(kind):
        return bool(kind.unit != _NANOSECONDS)  # Python's times have no nanoseconds.
    tests = (pt.is_signed_integer, pt.is_date32, pt.is_string, pt.is_large_string, pt.is_decimal128)
    return any(test(kind) for test in tests)


def _said(chunk: Any, kind: str) -> Any:  # noqa: ANN401 - a value of the column
    statistics = chunk.statistics
    if statistics is None:
        return None
    if kind == "nulls":
        return statistics.null_count if statistics.has_null_count else None
    try:
        return getattr(statistics, {"low": "min", "high": "max"}[kind])
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.nulls(len(values), kind)
