"""The types that expressions have: Spark's, with their Arrow and DuckDB forms.

Invariant: a column keeps one Spark type through a whole plan, and its Arrow type is the one Spark
itself would hand out, so that results equal Spark's to the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UnsupportedType
from millrace.sql.sql_mode import in_ansi_mode

PRECISION_MAX: Final = 38
SCALE_KEPT: Final = 6


@dataclass(frozen=True, slots=True)
class TypePart:
    """A part of a nested type: a field of a struct, the element of an array, a map's key or value.

    `nullable` is what Spark's schema shows. It is true wherever a null cannot be ruled out.
    """

    name: str
    type: SqlType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class SqlType:
    """A Spark type. Precision and scale are for decimals, `arrow` for what is only passed on.

    `parts` are those of an array (its element), a map (key and value) or a struct (its fields).
    """

    name: str
    precision: int = 0
    scale: int = 0
    arrow: pa.DataType | None = None
    parts: tuple[TypePart, ...] = ()

    def __str__(self) -> str:
        if self.is_decimal:
            return f"decimal({self.precision},{self.scale})"
        if self.is_struct:
            return f"struct<{','.join(f'{part.name}:{part.type}' for part in self.parts)}>"
        if self.is_nested:
            return f"{self.name}<{','.join(str(part.type) for part in self.parts)}>"
        return self.name

    @property
    def is_array(self) -> bool:
        """Whether this is an array."""
        return self.name == "array"

    @property
    def is_map(self) -> bool:
        """Whether this is a map."""
        return self.name == "map"

    @property
    def is_struct(self) -> bool:
        """Whether this is a struct."""
        return self.name == "struct"

    @property
    def is_nested(self) -> bool:
        """Whether this is an array, a map or a struct."""
        return self.name in ("array", "map", "struct")

    @property
    def is_plain(self) -> bool:
        """Whether its values are neither nested nor only passed on."""
        return self.arrow is None and not self.is_nested

    @property
    def element(self) -> SqlType:
        """The type of an array's elements."""
        assert self.is_array
        return self.parts[0].type

    @property
    def has_nulls(self) -> bool:
        """Whether an array's elements, or a map's values, can be null."""
        return self.parts[-1].nullable

    @property
    def key(self) -> SqlType:
        """The type of a map's keys."""
        assert self.is_map
        return self.parts[0].type

    @property
    def value(self) -> SqlType:
        """The type of a map's values."""
        assert self.is_map
        return self.parts[1].type

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
    VOID: '"NULL"',
}
# A mark before a field's name tells it from the name of a column, which can change.
FIELD_MARK: Final = "/*field*/"


def decimal(precision: int, scale: int) -> SqlType:
    """A decimal of at most 38 digits."""
    return SqlType("decimal", precision, scale)


def array_of(element: SqlType, *, nulls: bool = True) -> SqlType:
    """An array; `nulls` says that its elements can be null."""
    return SqlType("array", parts=(TypePart("element", element, nulls),))


def map_of(key: SqlType, value: SqlType, *, nulls: bool = True) -> SqlType:
    """A map; `nulls` says that its values can be null, which its keys never are."""
    return SqlType(
        "map", parts=(TypePart("key", key, nullable=False), TypePart("value", value, nulls))
    )


def struct_of(fields: Iterable[TypePart]) -> SqlType:
    """A struct of these fields."""
    return SqlType("struct", parts=tuple(fields))


def with_nulls(kind: SqlType) -> SqlType:
    """The type with nulls allowed in all its parts, so that only the shape counts."""
    if not kind.is_nested:
        return kind
    parts = (
        TypePart(
            part.name, with_nulls(part.type), nullable=not (kind.is_map and part.name == "key")
        )
        for part in kind.parts
    )
    return SqlType(kind.name, parts=tuple(parts))


def same_shape(left: SqlType, right: SqlType) -> bool:
    """Whether two nested types differ in names of fields and in nulls alone."""
    if not left.is_nested or left.name != right.name or len(left.parts) != len(right.parts):
        return False
    pairs = zip(left.parts, right.parts, strict=True)
    return all(a.type == b.type or same_shape(a.type, b.type) for a, b in pairs)


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
    return _nested_from_arrow(kind) or SqlType("passed on", arrow=kind)


def _nested_from_arrow(kind: pa.DataType) -> SqlType | None:
    """The nested type, or None if a part has a type that Spark or DuckDB has in another form."""
    if pt.is_list(kind) or pt.is_large_list(kind):
        fields = [kind.value_field.with_name("element")]
    elif pt.is_map(kind):
        key, value = kind.key_field, kind.item_field
        fields = [key.with_name("key"), value.with_name("value")]
    elif pt.is_struct(kind):
        fields = list(kind)
        names = {field.name.lower() for field in fields}
        if len(names) < len(fields) or not names or "" in names:
            return None
    else:
        return None
    is_map = pt.is_map(kind)
    parts = tuple(
        TypePart(field.name, from_arrow(field.type), nullable=not (is_map and field is fields[0]))
        for field in fields
    )
    if any(
        part.type.arrow is not None or in_other_form(field.type)
        for part, field in zip(parts, fields, strict=True)
    ):
        return None
    name = "struct" if pt.is_struct(kind) else "map" if is_map else "array"
    return SqlType(name, parts=parts)


def in_other_form(kind: pa.DataType) -> bool:
    """Whether DuckDB reads the column in another type than expressions use."""
    return bool(pt.is_date64(kind) or (pt.is_timestamp(kind) and kind.unit != "us"))


def to_arrow(kind: SqlType, *, exact: bool = False) -> pa.DataType:
    """The Arrow type of a Spark type.

    Its parts are nullable, as all rows at rest are. `exact` gives the nullability that Spark hands
    out for the expression.
    """
    if kind.is_decimal:
        return pa.decimal128(kind.precision, kind.scale)
    if kind.is_nested:
        fields = [
            pa.field(part.name, to_arrow(part.type, exact=exact), part.nullable or not exact)
            for part in kind.parts
        ]
        if kind.is_struct:
            return pa.struct(fields)
        if kind.is_map:
            return pa.map_(fields[0].with_nullable(nullable=False), fields[1])
        return pa.list_(*fields)
    return kind.arrow if kind.arrow is not None else _ARROW[kind]


def to_duckdb(kind: SqlType) -> str:
    """The name of the type in DuckDB's SQL."""
    if kind.is_decimal:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if kind.is_array:
        return f"{to_duckdb(kind.element)}[]"
    if kind.is_map:
        return f"MAP({to_duckdb(kind.key)}, {to_duckdb(kind.value)})"
    if kind.is_struct:
        return f"STRUCT({', '.join(_duckdb_field(part) for part in kind.parts)})"
    if kind.arrow is not None:
        raise UnsupportedType(
            f"a column of type {kind.arrow} can be passed on and not calculated with\n"
            "  to fix: turn it into another type with map_batches"
        )
    return _DUCKDB[kind]


def _duckdb_field(part: TypePart) -> str:
    name = part.name.replace('"', '""')
    return f'{FIELD_MARK}"{name}" {to_duckdb(part.type)}'


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
    return _common_nested(left, right, common)


def _common_nested(
    left: SqlType, right: SqlType, widen: Callable[[SqlType, SqlType], SqlType | None]
) -> SqlType | None:
    """Nested types meet part by part; fields of structs must have the same names."""
    if not left.is_nested or left.name != right.name or len(left.parts) != len(right.parts):
        return None
    parts = []
    for ours, theirs in zip(left.parts, right.parts, strict=True):
        kind = widen(ours.type, theirs.type)
        if kind is None or ours.name.lower() != theirs.name.lower():
            return None
        parts.append(TypePart(ours.name, kind, ours.nullable or theirs.nullable))
    return SqlType(left.name, parts=tuple(parts))


def common_with_text(left: SqlType, right: SqlType) -> SqlType | None:
    """As `common`, where text beside another type is read as a value of that type."""
    if STRING not in (left, right):
        nested = _common_nested(left, right, common_with_text)
        return nested or common(left, right)
    other = right if left == STRING else left
    if other in (VOID, STRING):
        return STRING
    if not in_ansi_mode():  # By other rules, which differ from operator to operator.
        return None
    if other.is_integer:
        return LONG
    if other.is_numeric:
        return DOUBLE
    return other if other.is_plain else None


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
    if left.is_floating != right.is_floating and (in_ansi_mode() or DOUBLE in (left, right)):
        return DOUBLE
    if left.is_floating != right.is_floating:
        return FLOAT
    return left if _WIDTHS.index(left.name) > _WIDTHS.index(right.name) else right
