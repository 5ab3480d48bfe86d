"""Long arrays are made distinct by sorting, short ones by looking; both give the same."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest

from millrace.sql.expressions import parse
from millrace.sql.functions.nested import array_sets

INTS = pa.list_(pa.int32())
SCHEMA = pa.schema({"a": INTS, "b": INTS})


def some_arrays(count: int) -> pa.Array:
    source = random.Random(count)  # noqa: S311 - for tests
    rows = [
        [source.choice([None, 1, 2, 3, 4]) for _ in range(source.randrange(9))]
        for _ in range(count)
    ]
    return pa.array([*rows, None, [], [None]], INTS)


@pytest.mark.parametrize(
    "text",
    [
        "array_distinct(a)",
        "array_union(a, b)",
        "array_intersect(a, b)",
        "array_except(a, b)",
        "array_distinct(transform(a, x -> array(x, null)))",
        "array_intersect(transform(a, x -> struct(x)), transform(b, x -> struct(x)))",
    ],
)
def test_sorted_and_searched_arrays_have_the_same_elements(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    connection = duckdb.connect()
    connection.register("t", pa.table({"a": some_arrays(300), "b": some_arrays(300)[::-1]}))

    answers = []
    for most in (array_sets.SHORT_ARRAY, -1):
        monkeypatch.setattr(array_sets, "SHORT_ARRAY", most)
        sql = parse(text, SCHEMA, call="select").sql
        answers.append(connection.execute(f"SELECT {sql} FROM t").fetchall())

    assert answers[0] == answers[1]
    assert len({str(row) for row in answers[0]}) > 10


def test_an_array_of_many_elements_is_made_distinct_without_comparing_all_pairs() -> None:
    connection = duckdb.connect()
    many = pa.array([[number % 100_000 for number in range(200_000)]], INTS)
    connection.register("t", pa.table({"a": many, "b": many}))
    sql = parse("size(array_distinct(a)) + size(array_except(a, b))", SCHEMA, call="select").sql

    assert connection.execute(f"SELECT {sql} FROM t").fetchall() == [(100_000,)]
