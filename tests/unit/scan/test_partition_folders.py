"""Columns in the names of folders: inferred as Spark 4.3 infers them, and read by every format."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.config import Config
from millrace.engine.native_sql import native_query
from millrace.errors import UserError
from millrace.scan.engine_parquet import native_rows
from millrace.scan.partition_folders import partition_columns
from millrace.scan.sample import sample
from millrace.scan.source import FileSource, Listing, open_source
from millrace.scan.splits import cut

LISTING = Listing(now_ms=0, recent_ms=0)
NULL = "__HIVE_DEFAULT_PARTITION__"

AS_SPARK_INFERS = [
    (["1", "2"], pa.int32(), [1, 2]),
    (["01", "2"], pa.int32(), [1, 2]),
    (["+1", "-0"], pa.int32(), [1, 0]),
    (["٣"], pa.int32(), [3]),
    (["1", "3000000000"], pa.int64(), [1, 3_000_000_000]),
    (["-2147483649"], pa.int64(), [-2_147_483_649]),
    (["9223372036854775808"], pa.decimal128(19, 0), [Decimal(1 << 63)]),
    (["1", "30000000000000000000"], pa.decimal128(20, 0), [Decimal(1), Decimal(3 * 10**19)]),
    (["1e3", "2"], pa.decimal128(10, 0), [Decimal(1000), Decimal(2)]),
    (["1e3", "3000000000"], pa.decimal128(20, 0), [Decimal(1000), Decimal(3_000_000_000)]),
    (["1E37"], pa.decimal128(38, 0), [Decimal(10**37)]),
    (["1E38"], pa.float64(), [1e38]),
    (["1."], pa.decimal128(1, 0), [Decimal(1)]),
    (["1.0E1"], pa.decimal128(2, 0), [Decimal(10)]),
    (["1.0"], pa.float64(), [1.0]),
    (["1", "1.5"], pa.float64(), [1.0, 1.5]),
    ([" 1", "1f", "0x1p3", ".5"], pa.float64(), [1.0, 1.0, 8.0, 0.5]),
    (["Infinity", "1"], pa.float64(), [float("inf"), 1.0]),
    (["infinity", "-Infinity"], pa.string(), ["infinity", "-Infinity"]),
    (["nan"], pa.string(), ["nan"]),
    (["1e3", "1.5"], pa.string(), ["1e3", "1.5"]),
    (["30000000000000000000", "1.5"], pa.string(), ["30000000000000000000", "1.5"]),
    (["1.50", "x"], pa.string(), ["1.50", "x"]),
    (["01", "x"], pa.string(), ["01", "x"]),
    (["1_0"], pa.string(), ["1_0"]),
    (["1L"], pa.string(), ["1L"]),
    (["%31"], pa.string(), ["1"]),
    (["true", "false"], pa.string(), ["true", "false"]),
    (["2020-01-01", "1500-01-01"], pa.date32(), [date(2020, 1, 1), date(1500, 1, 1)]),
    (["2020-01-01", "1"], pa.string(), ["2020-01-01", "1"]),
    (["2020-1-1"], pa.string(), ["2020-1-1"]),
    (["2020-02-30"], pa.string(), ["2020-02-30"]),
    (["2020-01-01T10:00:00"], pa.string(), ["2020-01-01T10:00:00"]),
    (["2020-01-01 10%3A00%3A00.12"], pa.string(), ["2020-01-01 10:00:00.12"]),
    (["24:00:00"], pa.string(), ["24:00:00"]),
    ([NULL, "1"], pa.int32(), [None, 1]),
    ([NULL, "a"], pa.string(), [None, "a"]),
    ([NULL], pa.null(), [None]),
    (["a%20b", "c%2Fd", "a%", "a%zz", "%E9"], pa.string(), ["a b", "c/d", "a%", "a%zz", "é"]),
    (["a=b"], pa.string(), ["a=b"]),
]


@pytest.mark.parametrize(("raw", "kind", "values"), AS_SPARK_INFERS)
def test_values_have_the_type_that_spark_infers(
    raw: list[str], kind: pa.DataType, values: list[object]
) -> None:
    files = [f"/t/k={value}/f.parquet" for value in raw]

    columns = partition_columns(files, frozenset({"/t"}))

    assert columns.schema == pa.schema({"k": kind})
    assert [columns.values[file] for file in files] == [(value,) for value in values]


def test_timestamps_are_text_until_the_session_s_time_zone_is_known() -> None:
    files = ["/t/k=2020-01-01 10%3A00%3A00.5/f.parquet", "/t/k=2020-01-02/f.parquet"]

    columns = partition_columns(files, frozenset({"/t"}))

    assert columns.as_text == {"k"}
    assert columns.values[files[0]] == ("2020-01-01 10:00:00.5",)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (["k=1/j=a/f", "k=2/i=b/f"], "do not name the same columns"),
        (["k=1/f", "k=2/j=b/f"], "do not name the same columns"),
        (["a/k=1/f", "b/k=2/f"], "in several folders"),
        (["k=1/a/j=1/f", "k=2/b/j=1/f"], "in several folders"),
        (["k=1/k=2/f"], "name a column twice"),
        (["k=/f"], "has no value"),
        (["=x/f"], "has no name of a column"),
        (["k=10:00:00/f"], "times of day"),
    ],
)
def test_folders_that_spark_refuses_are_refused(files: list[str], what: str) -> None:
    with pytest.raises(UserError, match=what):
        partition_columns([f"/t/{file}" for file in files], frozenset({"/t"}))


def test_columns_begin_below_the_folder_that_was_named() -> None:
    files = ["/a=0/t/k=1/j=x/f"]

    assert partition_columns(files, frozenset({"/a=0/t"})).schema.names == ["k", "j"]
    assert partition_columns(files, frozenset({"/a=0/t/k=1"})).schema.names == ["j"]
    assert partition_columns(files, frozenset({"/a=0/t/k=1/j=x"})).schema.names == []
    assert partition_columns(["/t/r/k=1/sub/f"], frozenset({"/t"})).schema.names == ["k"]


def written(folder: Path, name: str, table: pa.Table) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


def both_ways(source: FileSource, columns: list[str] | None = None) -> tuple[pa.Table, pa.Table]:
    """The rows through Arrow, and as the engine reads them by itself."""
    reader = source.reader(columns)
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=99)
    batches = [batch for part in inputs for batch in reader.batches(part, 1 << 20)]
    rows = native_rows(reader, inputs)
    assert rows is not None
    with duckdb.connect() as engine:
        native = engine.sql(native_query(rows)).to_arrow_table()
    return pa.Table.from_batches(batches, reader.schema), native.cast(reader.schema)


def test_rows_have_the_columns_of_their_folders_behind_their_own(tmp_path: Path) -> None:
    written(tmp_path, "d=2020-01-01/k=1/a.parquet", pa.table({"v": [1, 2, 3]}))
    written(tmp_path, f"d={NULL}/k=x%3Ay/b.parquet", pa.table({"v": [4]}))
    written(tmp_path, "beside.parquet", pa.table({"other": [1]}))

    source = open_source(str(tmp_path), LISTING)

    arrow, native = both_ways(source)
    assert source.schema == pa.schema({"v": pa.int64(), "d": pa.date32(), "k": pa.string()})
    assert arrow.equals(native)
    assert arrow.to_pylist()[2:] == [
        {"v": 3, "d": date(2020, 1, 1), "k": "1"},
        {"v": 4, "d": None, "k": "x:y"},
    ]
    for columns in (["k"], ["d", "v"], ["k", "d"]):
        arrow, native = both_ways(source, columns)
        assert arrow.equals(native)
        assert arrow.num_rows == 4
    assert sample(source, ["k"], Config()).num_rows == 4


def test_a_folder_s_column_stands_in_place_of_a_file_s_own(tmp_path: Path) -> None:
    written(tmp_path, "k=x/a.parquet", pa.table({"K": [7, 7], "v": [8, 9]}))

    arrow, native = both_ways(open_source(str(tmp_path), LISTING))

    assert arrow.equals(native)
    assert arrow.to_pylist() == [{"k": "x", "v": 8}, {"k": "x", "v": 9}]


def test_text_files_have_the_columns_of_their_folders_too(tmp_path: Path) -> None:
    for key in (1, 2):
        folder = tmp_path / f"k={key}"
        folder.mkdir()
        (folder / "a.csv").write_text(f"v\n{key}0\n")
    source = open_source(str(tmp_path), LISTING)
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=9)

    batches = [batch for part in inputs for batch in source.reader().batches(part, 1 << 20)]

    assert pa.Table.from_batches(batches).to_pylist() == [{"v": 10, "k": 1}, {"v": 20, "k": 2}]


def test_many_whole_files_are_one_scan(tmp_path: Path) -> None:
    for key in range(30):
        written(tmp_path, f"k={key}/a.parquet", pa.table({"v": [key]}))
    source = open_source(str(tmp_path), LISTING)
    rows = native_rows(
        source.reader(), cut(source.shapes, split_bytes_target=1 << 30, map_tasks_max=99)
    )
    assert rows is not None

    with duckdb.connect() as engine:
        read = engine.sql(f"SELECT v, k FROM ({native_query(rows)})").fetchall()

    assert native_query(rows).count("read_parquet") == 1
    assert all(value == key for value, key in read)
    assert len(read) == 30
