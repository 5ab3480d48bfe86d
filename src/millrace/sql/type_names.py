"""The types that a cast can name."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from millrace.sql.typed_sql import NotNative
from millrace.sql.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    SqlType,
    TypePart,
    array_of,
    decimal,
    map_of,
    struct_of,
)

_TYPES: Final = {
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.TINYINT: BYTE,
    exp.DType.SMALLINT: SHORT,
    exp.DType.INT: INT,
    exp.DType.BIGINT: LONG,
    exp.DType.FLOAT: FLOAT,
    exp.DType.DOUBLE: DOUBLE,
    exp.DType.TEXT: STRING,
    exp.DType.BINARY: BINARY,
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMP: TIMESTAMP,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
    exp.DType.NULL: VOID,
}
_NESTED: Final = (exp.DType.ARRAY, exp.DType.MAP, exp.DType.STRUCT)
CAST_NAMES: Final = {
    kind.name: kind for kind in _TYPES.values() if kind not in (TIMESTAMP_NTZ, VOID)
}


def type_of(node: exp.DataType) -> SqlType:
    """The type that a cast names."""
    if node.this == exp.DType.DECIMAL:
        given = [int(digits.name) for digits in node.expressions]
        precision, scale = [*given, *(10, 0)[len(given) :]]
        if not 0 <= scale <= precision <= 38:  # noqa: PLR2004
            raise NotNative(
                "a decimal has up to 38 digits",
                found=node.sql(dialect="spark"),
                fix="write decimal(38, s) at most, with s from 0 to its digits",
            )
        return decimal(precision, scale)
    if node.this in _NESTED:
        return _nested_type(node)
    if node.this not in _TYPES or node.expressions:
        raise NotNative(
            "a cast takes plain types only",
            found=node.sql(dialect="spark"),
            fix=f"use one of {', '.join(CAST_NAMES)} or decimal(p, s)",
        )
    return _TYPES[node.this]


def _nested_type(node: exp.DataType) -> SqlType:
    parts = list(node.expressions)
    if node.this == exp.DType.STRUCT:
        if not parts or any(not isinstance(part, exp.ColumnDef) for part in parts):
            raise _left_to_spark(node)
        if any(part.args.get("constraints") for part in parts):
            raise _left_to_spark(node)
        names = {part.name.lower() for part in parts}
        if len(names) < len(parts):
            raise _left_to_spark(node)
        return struct_of(TypePart(part.name, type_of(part.args["kind"])) for part in parts)
    kinds = [type_of(part) for part in parts if isinstance(part, exp.DataType)]
    if len(kinds) != len(parts) or len(kinds) != (1 if node.this == exp.DType.ARRAY else 2):
        raise _left_to_spark(node)
    return array_of(kinds[0]) if node.this == exp.DType.ARRAY else map_of(kinds[0], kinds[1])


def _left_to_spark(node: exp.DataType) -> NotNative:
    return NotNative(
        "a cast to this type is left to Spark", found=node.sql(dialect="spark"), fix="cast parts"
    )
