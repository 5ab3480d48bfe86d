"""A filter leaves out row groups of a Parquet file, and never one that has a row for it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.engine.test_file_bounds import ROW, SCHEMA, conditions, table, with_rows

from millrace.engine.partition_matches import groups_to_read, matching_files
from millrace.engine.run_values import RunMoment
from millrace.scan.input_files import InputFile
from millrace.scan.source import FileSource
from millrace.scan.splits import FileShape
from millrace.sql.expressions import parse


def source(path: str) -> FileSource:
    listed = InputFile(path=path, size=1, mtime_ns=1, ctime_ns=1)
    return FileSource(
        format="parquet", schema=SCHEMA, shapes=(FileShape(file=listed, row_group_bytes=None),)
    )


def kept(groups: list[pa.Table], condition: str, *, with_statistics: bool = True) -> set[int]:
    """The numbers of row groups of a file in a bucket that a task reads."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, write_statistics=with_statistics) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
    expression = parse(condition, SCHEMA, call="filter()")
    moment = RunMoment(micros=0)
    left = matching_files("Asia/Tokyo", moment, source("s3://bucket/a.parquet"), expression)
    with pq.ParquetFile(pa.BufferReader(sink.getvalue())) as file:
        assert file.num_row_groups == len(groups)
        return set(groups_to_read(left.possible, file, range(len(groups))))


NUMBERS = [table(n=[1, 5]), table(n=[7, None]), table(n=[None, None])]
TEXTS = [table(s=["apple", "axe"]), table(s=["bee", "cat"])]
DAYS = [table(d=[date(2024, 5, day)], t=[datetime(2024, 5, day, 12, tzinfo=UTC)]) for day in (1, 9)]
MONEY = [table(c=[Decimal("1.50")]), table(c=[Decimal("-3.00")])]


@pytest.mark.parametrize(
    ("groups", "condition", "expected"),
    [
        (NUMBERS, "n = 5", {0}),
        (NUMBERS, "n > 5 AND n < 100", {1}),
        (NUMBERS, "n IS NULL", {1, 2}),
        (NUMBERS, "n = -1", set()),
        (NUMBERS, "n + 1 = 2", {0, 1, 2}),
        (NUMBERS, "n = 5 OR f > 1.0D", {0, 1, 2}),  # Nothing is known of floats.
        (TEXTS, "s LIKE 'b%'", {1}),
        (DAYS, "d = DATE '2024-05-09'", {1}),
        (DAYS, "t < TIMESTAMP '2024-05-05 00:00:00'", {0}),
        (MONEY, "c > 0", {0}),
    ],
)
def test_row_groups_are_left_out_by_the_footer(
    groups: list[pa.Table], condition: str, expected: set[int]
) -> None:
    assert kept(groups, condition) == expected


def test_without_statistics_all_row_groups_are_read() -> None:
    assert kept(NUMBERS, "n = 5", with_statistics=False) == {0, 1, 2}


def test_files_that_the_engine_reads_itself_need_no_conditions() -> None:
    expression = parse("n = 5", SCHEMA, call="filter()")
    there = matching_files("UTC", RunMoment(micros=0), source("/data/a.parquet"), expression)
    assert there.possible == ()


@settings(max_examples=examples(40))
@given(
    groups=st.lists(st.lists(ROW, min_size=1, max_size=3), min_size=1, max_size=4),
    condition=conditions(),
)
def test_a_row_group_with_a_row_that_passes_is_never_left_out(
    groups: list[list[dict[str, Any]]], condition: str
) -> None:
    tables = [pa.Table.from_pylist(rows, schema=SCHEMA) for rows in groups]

    assert with_rows(tables, condition) <= kept(tables, condition)
