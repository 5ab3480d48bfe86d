"""Looks through schemas that are written as text, as `from_json` takes them. Pure.

Invariant: a schema that is not understood, or has a type that is not listed, may have times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import sqlglot
from sqlglot import exp

_TIMELESS: Final = frozenset(
    {
        *(exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR, exp.DType.BINARY, exp.DType.BOOLEAN),
        *(exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT),
        *(exp.DType.FLOAT, exp.DType.DOUBLE, exp.DType.DECIMAL),
        *(exp.DType.STRUCT, exp.DType.ARRAY, exp.DType.MAP),
    }
)
_TIMELESS_IN_JSON: Final = frozenset(
    {
        *("string", "varchar", "char", "binary", "boolean", "byte", "short", "integer", "long"),
        *("float", "double", "decimal", "struct", "array", "map"),
    }
)
_KEYS_OF_TYPES: Final = ("type", "elementType", "keyType", "valueType")


def may_have_times(schema: str) -> bool:
    """Whether rows of a schema, as DDL or as JSON, may have timestamps or dates."""
    if schema.lstrip().startswith("{"):
        return _json_may_have_times(schema)
    for form in (schema, f"struct<{schema}>"):
        try:
            kind = sqlglot.parse_one(form, into=exp.DataType, dialect="spark")
        except (sqlglot.errors.SqlglotError, RecursionError):
            continue
        return any(part.this not in _TIMELESS for part in kind.find_all(exp.DataType))
    return True


def _json_may_have_times(schema: str) -> bool:
    try:
        names = list(_types_in_json(json.loads(schema)))
    except (ValueError, RecursionError):
        return True
    return not names or any(name.partition("(")[0] not in _TIMELESS_IN_JSON for name in names)


def _types_in_json(part: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """The names of all types of a schema."""
    for key in _KEYS_OF_TYPES:
        kind = part.get(key, "struct")
        if isinstance(kind, str):
            yield kind
        else:
            yield from _types_in_json(kind) if isinstance(kind, dict) else ("unknown",)
    for column in part.get("fields", ()):
        yield from _types_in_json(column) if isinstance(column, dict) else ("unknown",)
