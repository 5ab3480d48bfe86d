"""Nested types: their names, their forms in Arrow and DuckDB, and what they have in common."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.sql.types import (
    DOUBLE,
    INT,
    LONG,
    STRING,
    VOID,
    SqlType,
    TypePart,
    array_of,
    common,
    from_arrow,
    map_of,
    same_shape,
    struct_of,
    to_arrow,
    to_duckdb,
    with_nulls,
)

PAIR = struct_of([TypePart("k", INT), TypePart("v", array_of(STRING), nullable=False)])


@pytest.mark.parametrize(
    ("kind", "name", "duckdb"),
    [
        (array_of(INT), "array<int>", "INTEGER[]"),
        (array_of(array_of(DOUBLE)), "array<array<double>>", "DOUBLE[][]"),
        (map_of(STRING, array_of(LONG)), "map<string,array<bigint>>", "MAP(VARCHAR, BIGINT[])"),
        (
            PAIR,
            "struct<k:int,v:array<string>>",
            'STRUCT(/*field*/"k" INTEGER, /*field*/"v" VARCHAR[])',
        ),
    ],
)
def test_a_nested_type_has_sparks_name_and_duckdbs(kind: SqlType, name: str, duckdb: str) -> None:
    assert (str(kind), to_duckdb(kind)) == (name, duckdb)
    assert from_arrow(to_arrow(kind)) == with_nulls(kind)


def test_rows_at_rest_are_nullable_and_expressions_have_sparks_nullability() -> None:
    kind = array_of(INT, nulls=False)
    element = pa.field("element", pa.int32(), nullable=False)

    assert to_arrow(kind) == pa.list_(pa.int32())
    assert to_arrow(kind, exact=True) == pa.list_(element)
    assert from_arrow(pa.list_(element)) == array_of(INT)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.uint8()),
        pa.list_(pa.timestamp("ns")),
        pa.struct({"a": pa.int32(), "b": pa.time64("us")}),
        pa.struct([pa.field("a", pa.int32()), pa.field("A", pa.int32())]),
        pa.map_(pa.string(), pa.list_(pa.uint64())),
        pa.list_(pa.int32(), 3),
    ],
)
def test_a_type_with_a_part_that_spark_does_not_have_is_passed_on_whole(kind: pa.DataType) -> None:
    assert from_arrow(kind).arrow == kind
    assert to_arrow(from_arrow(kind)) == kind


def test_large_lists_and_texts_inside_are_arrays_and_strings() -> None:
    assert from_arrow(pa.large_list(pa.large_string())) == array_of(STRING)


def test_nested_types_meet_part_by_part() -> None:
    assert common(array_of(INT), array_of(LONG)) == array_of(LONG)
    assert common(array_of(INT, nulls=False), array_of(INT)) == array_of(INT)
    assert common(array_of(VOID), array_of(STRING)) == array_of(STRING)
    assert common(map_of(STRING, INT), map_of(STRING, DOUBLE)) == map_of(STRING, DOUBLE)
    assert common(VOID, PAIR) == PAIR
    assert common(array_of(INT), array_of(STRING)) is None
    assert common(array_of(INT), INT) is None


def test_structs_meet_if_their_fields_have_the_same_names() -> None:
    upper = struct_of([TypePart("K", LONG), TypePart("V", array_of(STRING))])
    other = struct_of([TypePart("x", INT), TypePart("y", array_of(STRING))])

    assert str(common(PAIR, upper)) == "struct<k:bigint,v:array<string>>"
    assert common(PAIR, other) is None
    assert same_shape(PAIR, other)
    assert not same_shape(PAIR, upper)
