"""Types of Spark by their text, as "array<int>" or "a int, b string", without a session."""

from __future__ import annotations

from typing import Final

import sqlglot.errors
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sqlglot import exp

from millrace.errors import UserError
from millrace.sql.spark_dialect import PlainSpark

_TYPES: Final[dict[exp.DType, DataType]] = {
    exp.DType.BOOLEAN: BooleanType(),
    exp.DType.TINYINT: ByteType(),
    exp.DType.SMALLINT: ShortType(),
    exp.DType.INT: IntegerType(),
    exp.DType.BIGINT: LongType(),
    exp.DType.FLOAT: FloatType(),
    exp.DType.DOUBLE: DoubleType(),
    exp.DType.TEXT: StringType(),
    exp.DType.VARCHAR: StringType(),
    exp.DType.BINARY: BinaryType(),
    exp.DType.DATE: DateType(),
    exp.DType.TIMESTAMP: TimestampType(),
    exp.DType.TIMESTAMPTZ: TimestampType(),
    exp.DType.TIMESTAMPLTZ: TimestampType(),
    exp.DType.TIMESTAMPNTZ: TimestampNTZType(),
    exp.DType.NULL: NullType(),
}
_DIALECT: Final = PlainSpark()


def type_of_ddl(text: str) -> DataType:
    """The type that a text names; a list of columns is a struct."""
    for form in (text, f"STRUCT<{text}>"):
        node = _parsed(form)
        if node is not None:
            return _type_of(node, text)
    raise _unknown(text)


def _parsed(text: str) -> exp.DataType | None:
    try:
        (tree,) = _DIALECT.parse(f"SELECT CAST(NULL AS {text})")
    except sqlglot.errors.SqlglotError:
        return None
    cast = tree.find(exp.Cast) if tree is not None else None
    return cast.to if cast is not None and isinstance(cast.to, exp.DataType) else None


def _type_of(node: exp.Expression, text: str) -> DataType:
    if not isinstance(node, exp.DataType):
        raise _unknown(text)
    inner = node.expressions
    match node.this:
        case exp.DType.DECIMAL:
            digits = [int(size.name) for size in inner]
            precision, scale = [*digits, *(10, 0)[len(digits) :]]
            return DecimalType(precision, scale)
        case exp.DType.ARRAY | exp.DType.LIST if inner:
            return ArrayType(_type_of(inner[0], text))
        case exp.DType.MAP if inner:
            return MapType(_type_of(inner[0], text), _type_of(inner[1], text))
        case exp.DType.STRUCT if inner:
            return StructType([_field(field, text) for field in inner])
        case kind if kind in _TYPES:
            return _TYPES[kind]
        case _:
            raise _unknown(text)


def _field(field: exp.Expression, text: str) -> StructField:
    kind = field.args.get("kind")
    if not isinstance(field, exp.ColumnDef) or kind is None:
        raise _unknown(text)
    required = field.find(exp.NotNullColumnConstraint) is not None
    return StructField(field.name, _type_of(kind, text), nullable=not required)


def _unknown(text: str) -> UserError:
    return UserError(
        f"{text!r} names no type of Spark\n"
        "  to fix: write it as in 'int', 'array<string>' or 'a int, b string', or give a DataType"
    )
