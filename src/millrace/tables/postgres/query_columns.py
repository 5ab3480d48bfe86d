"""The columns of a query's rows: how they are asked for, and the Arrow type that they get. Pure.

Invariant: a value is what the database has. What Arrow has no type for is read as text, and what
would be cut is refused with the name of its column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.errors import UnsupportedType, UserError
from millrace.tables.postgres.names_in_sql import identifier

_TYPE: Final = b"POSTGRESQL:type"
_TYPMOD: Final = b"POSTGRESQL:typmod"
_NO_TYPMOD: Final = -1
_TYPMOD_BEGIN: Final = 4
_DIGITS_MAX: Final = 38
_ANY_NUMERIC: Final = pa.decimal128(_DIGITS_MAX, 18)
"""Of a `numeric` without a precision, as Spark's JDBC source has it."""
_INFINITE_US: Final = 2**63 - 2 * 10**15
_INFINITE_DAYS: Final = 2_147_000_000


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of a query."""

    name: str
    sql: str
    """How it is asked for."""
    type: pa.DataType
    is_array: bool = False


def query_column(field: pa.Field, who: str) -> QueryColumn:
    """A column as the driver of the database describes it."""
    name, kind = identifier(field.name), field.type
    there = (field.metadata or {}).get(_TYPE, b"").decode()
    if there == "numeric":
        return QueryColumn(field.name, name, _decimal_of(field, who))
    if there == "oid":
        return QueryColumn(field.name, f"{name}::bigint", pa.int64())
    if there in ("json", "jsonb"):
        return QueryColumn(field.name, name, pa.string())
    if pt.is_list(kind) and not isinstance(kind.value_type, pa.BaseExtensionType):
        return QueryColumn(field.name, name, kind, is_array=True)
    if pt.is_list(kind):
        return QueryColumn(field.name, f"to_json({name})::text", pa.string())
    if isinstance(kind, pa.BaseExtensionType) or pt.is_interval(kind) or pt.is_nested(kind):
        return QueryColumn(field.name, f"{name}::text", pa.string())
    return QueryColumn(field.name, name, kind)


def _decimal_of(field: pa.Field, who: str) -> pa.DataType:
    typmod = int((field.metadata or {}).get(_TYPMOD, b"-1"))
    if typmod == _NO_TYPMOD:
        return _ANY_NUMERIC
    both = typmod - _TYPMOD_BEGIN
    precision, scale = (both >> 16) & 0xFFFF, both & 0x7FF
    if precision > _DIGITS_MAX or scale > precision:
        raise UnsupportedType(
            f"{who}: column {field.name!r} has more digits than a decimal of Spark\n"
            f"  found: {precision} digits, at most {_DIGITS_MAX} can be\n"
            f"  to fix: select CAST({field.name} AS numeric(38, 10)) or CAST(... AS text)"
        )
    return pa.decimal128(precision, scale)


def as_described(
    batches: Iterator[pa.RecordBatch], columns: tuple[QueryColumn, ...], who: str
) -> Iterator[pa.RecordBatch]:
    """The rows with the types of these columns."""
    schema = schema_of(columns)
    for batch in batches:
        arrays = [_as(array, column, who) for array, column in zip(batch, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def schema_of(columns: tuple[QueryColumn, ...]) -> pa.Schema:
    """The schema of rows with these columns."""
    return pa.schema([(column.name, column.type) for column in columns])


def _as(array: pa.Array, column: QueryColumn, who: str) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    _check_finite(array, column, who)
    try:
        if pt.is_decimal(column.type):
            _check_digits(array, column.type)
        return array.cast(column.type)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{who}: a value of column {column.name!r} is not one of {column.type}\n"
            f"  found: {error}\n  to fix: select CAST({column.name} AS numeric(38, 10)), with the "
            "digits that it has, or CAST(... AS text)"
        ) from error


def _check_digits(array: pa.Array, kind: pa.DataType) -> None:
    """Arrow's cast of a text with too many digits gives another number, and no error."""
    whole = pc.replace_substring_regex(array, r"^-|\..*$", "")
    longest = pc.max(pc.utf8_length(whole)).as_py()
    if longest is not None and longest > max(1, kind.precision - kind.scale):
        raise pa.ArrowInvalid(f"{longest} digits before the point")


def _check_finite(array: pa.Array, column: QueryColumn, who: str) -> None:
    """Dates and times of PostgreSQL can be infinite, those of Arrow cannot."""
    if pt.is_timestamp(array.type):
        numbers, limit = array.cast(pa.int64()), _INFINITE_US
    elif pt.is_date32(array.type):
        numbers, limit = array.cast(pa.int32()), _INFINITE_DAYS
    else:
        return
    ends = pc.min_max(numbers).as_py()
    if any(end is not None and abs(end) >= limit for end in ends.values()):
        raise UserError(
            f"{who}: column {column.name!r} has an infinite value\n  found: infinity in "
            f"{column.type}\n  to fix: leave such rows out, or select NULLIF(...), or CAST(... AS "
            "text)"
        )
