"""Values of every type, as other readers of a Delta table see them, also when they skip files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.unit.tables.delta.delta_kit import (
    ALL_TYPES,
    CONFIG,
    EMOJI,
    PARTITIONS,
    READERS,
    WHO,
    append,
    by_deltalake,
    target_of,
    values,
    written,
)

from millrace.errors import UnsupportedType, UserError


@pytest.mark.parametrize("reader", READERS)
def test_values_of_all_types_are_read_as_they_were(tmp_path: Path, reader: str) -> None:
    append(tmp_path / "t", ALL_TYPES)
    names = ALL_TYPES.schema.names
    assert values(READERS[reader](tmp_path / "t"), names) == values(ALL_TYPES, names)


@pytest.mark.parametrize("reader", READERS)
def test_partition_values_of_all_types_are_read_as_they_were(tmp_path: Path, reader: str) -> None:
    rows = PARTITIONS.append_column("x", pa.array([1, 2, 3]))
    append(tmp_path / "t", rows, 1, *PARTITIONS.schema.names)
    names = rows.schema.names
    assert values(READERS[reader](tmp_path / "t"), names) == values(rows, names)


def test_an_empty_text_of_a_partition_is_a_null_as_in_spark(tmp_path: Path) -> None:
    append(tmp_path / "t", pa.table({"p": ["", "a"], "x": [1, 2]}), 1, "p")
    read = by_deltalake(tmp_path / "t")
    assert values(read, ["p", "x"]) == ["['a', 2]", "[None, 1]"]


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        (f"s = '{EMOJI}'", 1),
        ("s > 'b'", 1),
        (f"s = '{'a' * 40}'", 1),
        ("dec < 0", 1),
        ("dec = 1.23", 1),
        ("big > 1", 1),
        ("f64 = 1.5", 1),
        ("i64 = 9223372036854775807", 1),
        ("i8 IS NULL", 1),
        ("d > date '2000-01-01'", 1),
        ("ts >= timestamp '2020-01-01T01:02:03.456789Z'", 1),
        ("ts > timestamp '2020-01-01T01:02:03.456788Z'", 1),
        ("ntz >= timestamp '2020-01-01T01:02:03.456789'", 1),
        ("b", 1),
    ],
)
def test_readers_that_skip_files_miss_no_row(tmp_path: Path, condition: str, count: int) -> None:
    for number in range(3):  # A file for each row: statistics say it all.
        append(tmp_path / "t", ALL_TYPES.slice(number, 1), number + 1)
    assert by_deltalake(tmp_path / "t", condition).num_rows == count


def stats_of(rows: pa.Table, path: Path) -> dict[str, Any]:
    target_of(path).check(rows.schema, CONFIG, who=WHO)
    (file,) = written(path, rows)
    stats = json.loads(json.loads(file.about)["add"]["stats"])
    assert isinstance(stats, dict)
    return stats


def test_bounds_that_are_not_sure_are_left_out(tmp_path: Path) -> None:
    stats = stats_of(ALL_TYPES, tmp_path / "t")
    assert stats["numRecords"] == 3
    unsure = {"f64", "f32", "b", "bin", "big", "st", "l", "m"}
    assert set(stats["minValues"]) == set(stats["maxValues"]) == {*ALL_TYPES.schema.names} - unsure
    assert set(stats["nullCount"]) == {*ALL_TYPES.schema.names} - {"st", "l", "m"}
    assert (stats["minValues"]["i64"], stats["maxValues"]["i64"]) == (-(2**63), 2**63 - 1)
    assert stats["minValues"]["dec"] == -99999999.99
    assert stats["maxValues"]["ts"] == "2020-01-01T01:02:03.456789Z"


def test_long_texts_are_cut_so_that_they_are_still_bounds(tmp_path: Path) -> None:
    longest = "z" * 32 + "\U0010ffff" + "z"
    stats = stats_of(pa.table({"s": ["b" * 40], "t": [longest]}), tmp_path / "t")
    assert stats["minValues"] == {"s": "b" * 32}
    assert stats["maxValues"] == {"s": "b" * 32 + "\U0010ffff"}


def test_only_as_many_columns_are_indexed_as_the_table_says(tmp_path: Path) -> None:
    wide = pa.table({f"c{n}": [n] for n in range(40)})
    assert len(stats_of(wide, tmp_path / "t")["minValues"]) == 32


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.uint64(), "uint64"),
        (pa.time64("us"), "time64"),
        (pa.timestamp("ns"), r"timestamp\[ns\]"),
        (pa.duration("s"), "duration"),
        (pa.decimal256(50, 2), "decimal256"),
        (pa.struct([("a", pa.uint8())]), "uint8"),
    ],
)
def test_types_that_tables_do_not_have_are_refused(
    tmp_path: Path, kind: pa.DataType, told: str
) -> None:
    with pytest.raises(UnsupportedType, match=f"cannot be written to a Delta table\n.*{told}"):
        target_of(tmp_path / "t").check(pa.schema([("x", kind)]), CONFIG, who=WHO)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("columns", "by", "told"),
    [
        ({"a b": pa.int64()}, (), "cannot be named 'a b'"),
        ({"a": pa.int64()}, ("b",), "partition column 'b' is not there"),
        ({"a": pa.float64(), "b": pa.int64()}, ("a",), "cannot be partitioned by 'a'"),
        ({"a": pa.binary(), "b": pa.int64()}, ("a",), "cannot be partitioned by 'a'"),
        ({"a": pa.list_(pa.int64()), "b": pa.int64()}, ("a",), "cannot be partitioned by 'a'"),
        ({"a": pa.int64()}, ("a",), "all columns are partition columns"),
    ],
)
def test_columns_that_tables_cannot_have_are_refused(
    tmp_path: Path, columns: dict[str, pa.DataType], by: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        target_of(tmp_path / "t", *by).check(pa.schema(list(columns.items())), CONFIG, who=WHO)
    assert not (tmp_path / "t").exists()


def test_a_partition_value_without_a_folder_name_is_refused(tmp_path: Path) -> None:
    rows = pa.table({"p": ["é" * 100], "x": [1]})
    target_of(tmp_path / "t", "p").check(rows.schema, CONFIG, who=WHO)
    with pytest.raises(UserError, match="has a value too long for a folder"):
        written(tmp_path / "t", rows)


def test_many_partitions_and_row_groups_hold_each_row_once(tmp_path: Path) -> None:
    rows = pa.table({"p": [n % 150 for n in range(3000)], "x": list(range(3000))})
    target_of(tmp_path / "t", "p").check(rows.schema, CONFIG, who=WHO)
    writer = target_of(tmp_path / "t").writer(rows.schema, CONFIG, who=WHO)
    files = writer.write([rows.slice(0, 1000), rows.slice(1000)], "f")
    target_of(tmp_path / "t").commits("a", CONFIG).commit(files, before=None, place=1)
    read = pl.scan_delta(str(tmp_path / "t")).collect()
    assert sorted(read["x"].to_list()) == list(range(3000))
    assert (read["p"] == read["x"] % 150).all()
    assert sum(file.rows for file in files) == 3000


def test_a_part_of_a_column_lends_no_bounds_to_one_named_like_its_path(tmp_path: Path) -> None:
    part = pa.array([{"b": 1}, {"b": None}], pa.struct([("b", pa.int64())]))
    stats = stats_of(pa.table({"a.b": [7, 9], "a": part}), tmp_path / "t")
    assert (stats["minValues"], stats["maxValues"]) == ({"a.b": 7}, {"a.b": 9})
    assert stats["nullCount"] == {"a.b": 0}
