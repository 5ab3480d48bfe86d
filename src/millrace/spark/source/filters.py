"""Filters that Spark hands over, kept by Arrow before rows leave Python.

Invariant: a filter that is taken keeps exactly the rows that Spark would keep. Where the two might
differ (floating point with its NaN, times, decimals, nested columns), it is left to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

_KINDS: Final = (BooleanType, ByteType, DateType, IntegerType, LongType, ShortType)
_COMPARED: Final = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_TEXTS: Final = (StringContains, StringEndsWith, StringStartsWith)


def is_taken(asked: Filter, schema: StructType) -> bool:
    """Whether Arrow keeps exactly the rows that Spark would."""
    if isinstance(asked, Not):
        return not isinstance(asked.child, Not) and is_taken(asked.child, schema)
    path: tuple[str, ...] = getattr(asked, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return False
    if isinstance(asked, IsNull | IsNotNull):
        return True
    kind = schema[path[0]].dataType
    # Texts with a collation are a type of their own, and compare in other ways.
    if type(kind) not in _KINDS and kind != StringType():
        return False
    if isinstance(asked, In):
        return all(value is not None for value in asked.value)
    if isinstance(asked, _TEXTS):
        return kind == StringType() and asked.value is not None
    return isinstance(asked, EqualNullSafe) or (
        isinstance(asked, _COMPARED) and asked.value is not None
    )


def condition(taken: Sequence[Filter], schema: pa.Schema) -> pc.Expression | None:
    """All of these at once; None if there is none."""
    found: pc.Expression | None = None
    for asked in taken:
        one = _condition(asked, schema)
        found = one if found is None else found & one
    return found


def _condition(asked: Filter, schema: pa.Schema) -> pc.Expression:
    if isinstance(asked, Not):
        inner = _condition(asked.child, schema)
        if isinstance(asked.child, EqualNullSafe | IsNull | IsNotNull):
            return ~inner
        return ~inner & pc.field(_column_of(asked.child)).is_valid()
    name = _column_of(asked)
    column = pc.field(name)
    if isinstance(asked, IsNull):
        return column.is_null()
    if isinstance(asked, IsNotNull):
        return column.is_valid()
    given: Any = asked.value  # type: ignore[attr-defined]
    kind = schema.field(name).type
    if isinstance(asked, In):
        return column.isin(pa.array(given, kind))
    if isinstance(asked, StringContains):
        return pc.match_substring(column, given)
    if isinstance(asked, StringStartsWith):
        return pc.starts_with(column, given)
    if isinstance(asked, StringEndsWith):
        return pc.ends_with(column, given)
    return _compared(asked, column, given, kind)


def _column_of(asked: Filter) -> str:
    path: tuple[str, ...] = asked.attribute  # type: ignore[attr-defined]
    return path[0]


def _compared(
    asked: Filter, column: pc.Expression, given: object, kind: pa.DataType
) -> pc.Expression:
    if given is None:
        return column.is_null()
    value = pc.scalar(pa.scalar(given, kind))
    if isinstance(asked, EqualNullSafe):
        return column.is_valid() & (column == value)
    if isinstance(asked, EqualTo):
        return column == value
    if isinstance(asked, GreaterThan):
        return column > value
    if isinstance(asked, GreaterThanOrEqual):
        return column >= value
    if isinstance(asked, LessThan):
        return column < value
    assert isinstance(asked, LessThanOrEqual), asked
    return column <= value
