"""The types that expressions have: Spark's, with their Arrow and DuckDB forms.

Invariant: a column keeps one Spark type through a whole plan, and its Arrow type is the one Spark
itself would hand out, so that results equal Spark's to the type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UnsupportedType

PRECISION_MAX: Final = 38
SCALE_KEPT: Final = 6


@dataclass(frozen=True, slots=True)
class SqlType:
    """A Spark type. Precision and scale are for decimals, `arrow` for what is only passed on."""

    name: str
    precision: int = 0
    scale: int = 0
    arrow: pa.DataType | None = None

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.is_decimal else self.name

    @property
    def is_decimal(self) -> bool:
        """Whether this is a decimal."""
        return self.name == "decimal"

    @property
    def is_integer(self) -> bool:
        """Whether this is one of the whole numbers."""
        return self.name in _INTEGER_DIGITS

    @property
    def is_floating(self) -> bool:
        """Whether this is float or double."""
        return self.name in ("float", "double")

    @property
    def is_numeric(self) -> bool:
        """Whether one can calculate with it."""
        return self.is_integer or self.is_floating or self.is_decimal


BOOLEAN: Final = SqlType("boolean")
BYTE: Final = SqlType("tinyint")
SHORT: Final = SqlType("smallint")
INT: Final = SqlType("int")
LONG: Final = SqlType("bigint")
FLOAT: Final = SqlType("float")
DOUBLE: Final = SqlType("double")
STRING: Final = SqlType("string")
BINARY: Final = SqlType("binary")
DATE: Final = SqlType("date")
TIMESTAMP: Final = SqlType("timestamp")
TIMESTAMP_NTZ: Final = SqlType("timestamp_ntz")
VOID: Final = SqlType("void")

_INTEGER_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_WIDTHS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_ARROW: Final = {
    BOOLEAN: pa.bool_(),
    BYTE: pa.int8(),
    SHORT: pa.int16(),
    INT: pa.int32(),
    LONG: pa.int64(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TIMESTAMP_NTZ: pa.timestamp("us"),
    VOID: pa.null(),
}
_DUCKDB: Final = {
    BOOLEAN: "BOOLEAN",
    BYTE: "TINYINT",
    SHORT: "SMALLINT",
    INT: "INTEGER",
    LONG: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    STRING: "VARCHAR",
    BINARY: "BLOB",
    DATE: "DATE",
    TIMESTAMP: "TIMESTAMPTZ",
    TIMESTAMP_NTZ: "TIMESTAMP",
    VOID: "INTEGER",
}


def decimal(precision: int, scale: int) -> SqlType:
    """A decimal of at most 38 digits."""
    return SqlType("decimal", precision, scale)


def from_arrow(kind: pa.DataType) -> SqlType:
    """The Spark type of an Arrow column; types Spark does not have are passed on as they are."""
    for known, arrow in _ARROW.items():
        if kind == arrow:
            return known
    if pt.is_decimal(kind) and kind.precision <= PRECISION_MAX:
        return decimal(kind.precision, kind.scale)
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return STRING
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return BINARY
    if pt.is_timestamp(kind):
        return TIMESTAMP_NTZ if kind.tz is None else TIMESTAMP
    if pt.is_date64(kind):
        return DATE
    return SqlType("passed on", arrow=kind)


def to_arrow(kind: SqlType) -> pa.DataType:
    """The Arrow type of a Spark type."""
    if kind.is_decimal:
        return pa.decimal128(kind.precision, kind.scale)
    return kind.arrow if kind.arrow is not None else _ARROW[kind]


def to_duckdb(kind: SqlType) -> str:
    """The name of the type in DuckDB's SQL."""
    if kind.is_decimal:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if kind.arrow is not None:
        raise UnsupportedType(
            f"a column of type {kind.arrow} can be passed on and not calculated with\n"
            "  to fix: turn it into another type with map_batches"
        )
    return _DUCKDB[kind]


def as_decimal(kind: SqlType) -> SqlType:
    """The decimal that holds every value of a whole-number type."""
    if kind.is_decimal:
        return kind
    return decimal(_INTEGER_DIGITS[kind.name], 0)


def adjusted(precision: int, scale: int) -> SqlType:
    """A decimal as Spark bounds it: digits before the point are kept, then six behind it."""
    if precision <= PRECISION_MAX:
        return decimal(precision, scale)
    whole = precision - scale
    kept = min(scale, SCALE_KEPT)
    return decimal(PRECISION_MAX, max(PRECISION_MAX - whole, kept))


def common(left: SqlType, right: SqlType) -> SqlType | None:
    """The type both sides are brought to before they are compared or put together; None if none."""
    if left == right:
        return left
    if VOID in (left, right):
        return right if left == VOID else left
    if left.is_numeric and right.is_numeric:
        return _common_number(left, right)
    if {left, right} <= {DATE, TIMESTAMP, TIMESTAMP_NTZ}:
        return TIMESTAMP if TIMESTAMP in (left, right) else TIMESTAMP_NTZ
    return None


def common_with_text(left: SqlType, right: SqlType) -> SqlType | None:
    """As `common`, where text beside another type is read as a value of that type."""
    if STRING not in (left, right):
        return common(left, right)
    other = right if left == STRING else left
    if other == VOID:
        return STRING
    if other.is_integer:
        return LONG
    if other.is_numeric:
        return DOUBLE
    return other if other.arrow is None else None


def _common_number(left: SqlType, right: SqlType) -> SqlType:
    if left.is_decimal or right.is_decimal:
        if left.is_floating or right.is_floating:
            return DOUBLE
        first, second = as_decimal(left), as_decimal(right)
        scale = max(first.scale, second.scale)
        whole = max(first.precision - first.scale, second.precision - second.scale)
        if whole + scale > PRECISION_MAX:
            return decimal(PRECISION_MAX, max(0, PRECISION_MAX - whole))
        return decimal(whole + scale, scale)
    if left.is_floating != right.is_floating:
        return DOUBLE
    return left if _WIDTHS.index(left.name) > _WIDTHS.index(right.name) else right
