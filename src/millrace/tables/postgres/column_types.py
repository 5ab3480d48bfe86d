"""The PostgreSQL type of each Arrow type, and which other types a column may have. Pure.

Invariant: a value in the table is the value that the row had. A type that would round or cut it is
refused, with the name of the column, before any row is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import SchemaMismatch, UnsupportedType

_PLAIN: Final = MappingProxyType(
    {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.uint8(): "smallint",
        pa.int16(): "smallint",
        pa.uint16(): "integer",
        pa.int32(): "integer",
        pa.uint32(): "bigint",
        pa.int64(): "bigint",
        pa.float16(): "real",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.string(): "text",
        pa.large_string(): "text",
        pa.binary(): "bytea",
        pa.large_binary(): "bytea",
        pa.date32(): "date",
        pa.month_day_nano_interval(): "interval",
        pa.null(): "text",
    }
)
_TEXTS: Final = ("text", "character varying")
"""Of one form in a binary copy."""
_FROM_TEXT: Final = ("json", "jsonb", "uuid", "citext", "xml", "inet", "cidr", "macaddr")
_WIDER: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "smallint": ("integer", "bigint", "numeric"),
        "integer": ("bigint", "numeric", "double precision"),
        "bigint": ("numeric",),
        "real": ("double precision",),
        "text": _FROM_TEXT,
    }
)
"""Types that a column may have instead: the server turns each value into one of it, and refuses a
text that is none."""
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_SHORT_TIME: Final = re.compile(r"(?:timestamp|time|interval)\((\d)\)")
_MICROSECONDS: Final = 6
_MILLISECONDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of a table that is there."""

    name: str
    type: str
    """As the server writes it, with its precision."""
    is_enum: bool = False
    is_filled: bool = False
    """Whether a row need not name it: it has a default or may be null."""
    is_generated: bool = False
    """Whether its value cannot be given."""


def column_type(field: pa.Field, who: str) -> str:
    """The type of a column that is made for these values."""
    kind = field.type
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        if not pt.is_nested(kind.value_type):
            return f"{column_type(pa.field(field.name, kind.value_type), who)}[]"
    elif (plain := _PLAIN.get(kind)) is not None:
        return plain
    elif pt.is_fixed_size_binary(kind):
        return "bytea"
    elif pt.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    elif pt.is_temporal(kind) and (timed := _time_type(kind)) is not None:
        return timed
    raise UnsupportedType(
        f"{who}: column {field.name!r} has no type in PostgreSQL\n  found: {kind}\n"
        f"  to fix: select it as another type first: {_way_out(kind)}"
    )


def _time_type(kind: pa.DataType) -> str | None:
    if pt.is_date64(kind) or kind.unit == "ns":
        return None
    if pt.is_timestamp(kind):
        return "timestamp without time zone" if kind.tz is None else "timestamp with time zone"
    return "interval" if pt.is_duration(kind) else "time without time zone"


def _way_out(kind: pa.DataType) -> str:
    if pt.is_nested(kind):
        return "to_json(column) gives a text, which a column of type jsonb takes"
    if kind == pa.uint64():
        return "CAST(column AS DECIMAL(20, 0))"
    if pt.is_temporal(kind):
        return "CAST(column AS TIMESTAMP), which has microseconds as PostgreSQL has"
    return "CAST(column AS STRING)"


def is_converted(field: pa.Field, column: TableColumn, who: str) -> bool:
    """Whether the server has to turn values into the type of their column; refuses what loses."""
    own, there = column_type(field, who), column.type
    if column.is_generated:
        raise _misfit(who, field, column, "the table computes this column itself")
    if own == there or (own in _TEXTS and _bare(there) in _TEXTS):
        return False
    if pt.is_decimal(field.type):
        if there == "numeric" or _holds(there, field.type.precision, field.type.scale):
            return False
    elif (short := _SHORT_TIME.match(there)) is not None:
        needed = _MILLISECONDS if getattr(field.type, "unit", "us") == "ms" else _MICROSECONDS
        needed = 0 if getattr(field.type, "unit", "us") == "s" else needed
        if _bare(there) == own and int(short[1]) >= needed:
            return False
    elif there in _WIDER.get(own, ()) or (own == "text" and column.is_enum):
        return True
    raise _misfit(who, field, column, f"the table has {there}, the rows need {own}")


def _bare(there: str) -> str:
    return re.sub(r"\(\d+(,-?\d+)?\)", "", there)


def _holds(there: str, precision: int, scale: int) -> bool:
    found = _NUMERIC.fullmatch(there)
    if found is None:
        return False
    whole, after = int(found[1]) - int(found[2]), int(found[2])
    return after >= scale and whole >= precision - scale


def _misfit(who: str, field: pa.Field, column: TableColumn, why: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{who} does not fit its table: column {field.name!r}\n"
        f"  found: {why}; the rows have {field.type}\n"
        f"  to fix: select it as another type, or change the column {column.name!r} in the database"
    )
