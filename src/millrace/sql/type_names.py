"""The types that a cast can name."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from millrace.sql.typed_sql import ExpressionRefused
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
    SqlType,
    decimal,
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
}
CAST_NAMES: Final = {kind.name: kind for kind in _TYPES.values() if kind != TIMESTAMP_NTZ}


def type_of(node: exp.DataType) -> SqlType:
    """The type that a cast names."""
    if node.this == exp.DType.DECIMAL:
        given = [int(digits.name) for digits in node.expressions]
        precision, scale = [*given, *(10, 0)[len(given) :]]
        if not 0 <= scale <= precision <= 38:  # noqa: PLR2004
            raise ExpressionRefused(
                "a decimal has up to 38 digits",
                found=node.sql(dialect="spark"),
                fix="write decimal(38, s) at most, with s from 0 to its digits",
            )
        return decimal(precision, scale)
    if node.this not in _TYPES or node.expressions:
        raise ExpressionRefused(
            "a cast takes plain types only",
            found=node.sql(dialect="spark"),
            fix=f"use one of {', '.join(CAST_NAMES)} or decimal(p, s)",
        )
    return _TYPES[node.this]
