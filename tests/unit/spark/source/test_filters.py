"""Filters that Arrow keeps: three-valued logic as in SQL, anything doubtful left to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from millrace.spark.source import filters

TYPES = StructType().add("n", "long").add("s", "string").add("f", "double").add("t", "timestamp")
ROWS = pa.record_batch({"n": pa.array([1, 2, None, 4]), "s": ["ab", None, "b", "ba"]})
N, S = ("n",), ("s",)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (EqualTo(N, 2), [1]),
        (Not(EqualTo(N, 2)), [0, 3]),
        (EqualNullSafe(N, None), [2]),
        (Not(EqualNullSafe(N, 2)), [0, 2, 3]),
        (GreaterThan(N, 1), [1, 3]),
        (LessThanOrEqual(N, 1), [0]),
        (In(N, (1, 9)), [0]),
        (Not(In(N, (1, 9))), [1, 3]),
        (IsNull(N), [2]),
        (Not(IsNull(N)), [0, 1, 3]),
        (StringStartsWith(S, "b"), [2, 3]),
        (StringEndsWith(S, "b"), [0, 2]),
        (Not(StringContains(S, "a")), [2]),
    ],
)
def test_a_filter_keeps_what_sql_keeps(asked: Filter, kept: list[int]) -> None:
    assert filters.is_taken(asked, TYPES)
    condition = filters.condition([asked], ROWS.schema)
    numbered = ROWS.append_column("at", pa.array(range(4)))
    assert numbered.filter(condition)["at"].to_pylist() == kept


@pytest.mark.parametrize(
    "asked",
    [
        EqualTo(("f",), 1.0),
        EqualTo(("t",), 1),
        EqualTo(("n", "x"), 1),
        EqualTo(N, None),
        In(N, (1, None)),
        Not(In(N, (1, None))),
        StringContains(N, "1"),
    ],
)
def test_what_may_differ_is_left_to_spark(asked: Filter) -> None:
    assert not filters.is_taken(asked, TYPES)
