"""Rows that are sorted by keys, cut into groups."""

from __future__ import annotations

import decimal
from datetime import date

import pyarrow as pa
import pytest

from millrace.plan.nodes.user_code.key_groups import key_groups

NAN = float("nan")


def cut(table: pa.Table, keys: list[str], rows_max: int) -> list[list[int]]:
    """The numbers of the rows of each group, with batches of so many rows."""
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    batches = numbered.to_batches(max_chunksize=rows_max)
    groups = key_groups(iter(batches), keys)
    return [[n for part in group for n in part["row"].to_pylist()] for group in groups]


@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, None, 1, 1, 2, 3, 3]),
        pa.array([None, None, "", "", "a", "b", "b"]),
        pa.array([None, None, 0.0, -0.0, 1.5, NAN, NAN]),
        pa.array([None, None, 0.0, -0.0, 1.5, NAN, NAN], pa.float32()),
        pa.array([None, None, b"", b"", b"a", b"\xff", b"\xff"]),
        pa.array([None, None, *(date(2020, 1, day) for day in (1, 1, 2, 3, 3))]),
        pa.array([None, None, *map(decimal.Decimal, ("1.0", "1.0", "2.5", "3.5", "3.5"))]),
    ],
    ids=lambda values: str(values.type),
)
def test_equal_keys_are_one_group_whatever_the_batches(values: pa.Array, rows_max: int) -> None:
    table = pa.table({"k": values})

    assert cut(table, ["k"], rows_max) == [[0, 1], [2, 3], [4], [5, 6]]


@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_a_group_ends_where_any_key_changes(rows_max: int) -> None:
    table = pa.table({"a": [1, 1, 1, 2, 2], "b": ["x", "x", "y", "y", "y"]})

    assert cut(table, ["a", "b"], rows_max) == [[0, 1], [2], [3, 4]]


def test_without_keys_all_rows_are_one_group_and_no_rows_are_none() -> None:
    assert cut(pa.table({"a": [1, 2, 3]}), [], 2) == [[0, 1, 2]]
    assert cut(pa.table({"a": pa.array([], pa.int64())}), ["a"], 2) == []
