"""A filter leaves out files by their bounds, and never one that has a row for which it is true."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.engine.function_install import install_functions
from millrace.engine.partition_matches import matching_files
from millrace.engine.run_values import RunMoment
from millrace.scan.file_bounds import PATH, ROWS, high_of, low_of, nulls_of
from millrace.scan.input_files import InputFile
from millrace.scan.source import FileSource
from millrace.scan.splits import FileShape
from millrace.sql.engine_functions import versions_in
from millrace.sql.expressions import parse

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("c", pa.decimal128(9, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("unknown", pa.int64()),
    ]
)
COLUMNS = SCHEMA.names[:-1]


def source_of(files: list[pa.Table]) -> FileSource:
    """Files with these rows, of which only the bounds are there."""
    rows: dict[str, list[Any]] = {PATH: [], ROWS: []}
    kinds = [(PATH, pa.string()), (ROWS, pa.int64())]
    for name in COLUMNS:
        kind = SCHEMA.field(name).type
        kinds += [(low_of(name), kind), (high_of(name), kind), (nulls_of(name), pa.int64())]
    for number, table in enumerate(files):
        rows[PATH].append(f"{number}")
        rows[ROWS].append(table.num_rows)
        for name in COLUMNS:
            column = table[name].drop_null()
            values = [value for value in column.to_pylist() if value == value]  # noqa: PLR0124 - NaN
            rows.setdefault(low_of(name), []).append(min(values, default=None))
            rows.setdefault(high_of(name), []).append(max(values, default=None))
            rows.setdefault(nulls_of(name), []).append(table[name].null_count)
    shapes = tuple(
        FileShape(
            file=InputFile(path=f"{number}", size=1, mtime_ns=1, ctime_ns=1), row_group_bytes=None
        )
        for number in range(len(files))
    )
    bounds = pa.Table.from_pydict(rows, schema=pa.schema(kinds))
    return FileSource(format="parquet", schema=SCHEMA, shapes=shapes, bounds=bounds)


def kept(files: list[pa.Table], condition: str) -> set[int]:
    expression = parse(condition, SCHEMA, call="filter()")
    left = matching_files("Asia/Tokyo", RunMoment(micros=0), source_of(files), expression)
    return {int(shape.file.path) for shape in left.shapes}


def with_rows(files: list[pa.Table], condition: str) -> set[int]:
    expression = parse(condition, SCHEMA, call="filter()")
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        install_functions(connection, versions_in(expression.sql))
        found = set()
        for number, table in enumerate(files):
            connection.register("rows", table)
            if connection.sql(f"SELECT 1 FROM rows WHERE {expression.sql} LIMIT 1").fetchall():
                found.add(number)
        return found


def table(**columns: list[Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    return pa.Table.from_pydict(
        {name: columns.get(name, [None] * count) for name in SCHEMA.names}, schema=SCHEMA
    )


NUMBERS = [table(n=[1, 5]), table(n=[7, None]), table(n=[None, None])]
TEXTS = [table(s=["apple", "axe"]), table(s=["bee", "cat"]), table(s=[None])]
DAYS = [
    table(d=[date(2024, 5, day)], t=[1714521600_000_000 + day * 86_400_000_000]) for day in (1, 9)
]
FLOATS = [table(f=[1.0, float("nan")]), table(f=[2.0])]


@pytest.mark.parametrize(
    ("files", "condition", "expected"),
    [
        (NUMBERS, "n = 5", {0}),
        (NUMBERS, "5 < n", {1}),
        (NUMBERS, "n BETWEEN 6 AND 9", {1}),
        (NUMBERS, "n IN (0, 7)", {1}),
        (NUMBERS, "n IN (0, 5) AND n > 4", {0}),
        (NUMBERS, "n = 5 OR n = 100", {0}),
        (NUMBERS, "n = 5 OR unknown = 1", {0, 1, 2}),
        (NUMBERS, "n = 5 AND unknown = 1", {0}),
        (NUMBERS, "n IS NULL", {1, 2}),
        (NUMBERS, "n IS NOT NULL", {0, 1}),
        (NUMBERS, "n < 1.5", {0}),
        (NUMBERS, "n = -1", set()),
        (NUMBERS, "n + 1 = 2", {0, 1, 2}),
        (TEXTS, "s = 'b'", set()),
        (TEXTS, "s LIKE 'b%'", {1, 2}),
        (TEXTS, "s LIKE '%b'", {0, 1, 2}),
        (TEXTS, "s > 5", {0, 1, 2}),
        (DAYS, "d = DATE '2024-05-09'", {1}),
        (DAYS, "d > '2024-05-01'", {1}),
        (DAYS, "t < TIMESTAMP '2024-05-05 00:00:00'", {0}),
        (FLOATS, "f < 2.0D", {0}),
        (FLOATS, "f > 2.0D", {0, 1}),
    ],
)
def test_files_are_left_out_by_their_bounds(
    files: list[pa.Table], condition: str, expected: set[int]
) -> None:
    assert kept(files, condition) == expected


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-4, 4),
    "f": st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("inf"), float("-inf")]),
    "s": st.text("ab%ä😀", max_size=3),
    "d": st.dates(date(2024, 1, 1), date(2024, 1, 9)),
    "c": st.integers(-300, 300).map(lambda cents: Decimal(cents) / 100),
}
ROW = st.fixed_dictionaries(
    {name: st.none() | kind for name, kind in VALUES.items()}
    | {"f": st.none() | VALUES["f"] | st.just(float("nan"))}
)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        sides = [draw(conditions(depth - 1)), draw(conditions(depth - 1))]
        return f"({sides[0]} {draw(st.sampled_from(['AND', 'OR']))} {sides[1]})"
    name = draw(st.sampled_from(list(VALUES)))
    kind = VALUES[name]

    def value() -> str:
        drawn = draw(kind)
        if isinstance(drawn, float):
            return f"CAST('{drawn}' AS DOUBLE)" if abs(drawn) == float("inf") else f"{drawn}D"
        return {str: f"'{drawn}'", date: f"DATE '{drawn}'"}.get(type(drawn), str(drawn))

    form = draw(st.sampled_from(["is", "between", "in", *["<", "<=", "=", ">=", ">", "<>"]]))
    match form:
        case "is":
            return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case "between":
            return f"{name} BETWEEN {value()} AND {value()}"
        case "in":
            return f"{name} IN ({value()}, {value()})"
        case _:
            return f"{name} {form} {value()}"


@settings(max_examples=examples(60))
@given(files=st.lists(st.lists(ROW, max_size=3), min_size=1, max_size=4), condition=conditions())
def test_a_file_with_a_row_that_passes_is_never_left_out(
    files: list[list[dict[str, Any]]], condition: str
) -> None:
    tables = [pa.Table.from_pylist(rows, schema=SCHEMA) for rows in files]

    assert with_rows(tables, condition) <= kept(tables, condition)
