"""Rows from Arrow and Spark, and to Spark, Parquet and the screen."""

from __future__ import annotations

import datetime as dt
import decimal
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, functions
from tests.spark.dataset_kit import CONFIGS, CUT_UP, random_table, rows_of

import millrace as mr
from millrace.dataset import Dataset
from millrace.errors import StorageError, UnsupportedType, UserError
from millrace.shuffle.handle import Shuffle
from millrace.spark import results
from millrace.spark.publish import Draft

pytestmark = pytest.mark.spark
NOON = dt.datetime(2024, 5, 1, 12, 30, 0, 250_000)  # noqa: DTZ001 - as Spark has them
TYPES = pa.table(
    {
        "i8": pa.array([1, None, -3], pa.int8()),
        "i32": pa.array([1, None, -3], pa.int32()),
        "i64": pa.array([2**62, None, -3]),
        "f": pa.array([1.5, None, float("nan")], pa.float32()),
        "d": pa.array([1e20, None, -0.0]),
        "b": pa.array([True, None, False]),
        "s": pa.array(["näme", None, ""]),
        "bytes": pa.array([b"\x00\xff", None, b""]),
        "dec": pa.array([decimal.Decimal("12.30"), None, decimal.Decimal("-0.01")]),
        "day": pa.array([NOON.date(), None, dt.date(1960, 1, 1)]),
        "at": pa.array([NOON.replace(tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "local": pa.array([NOON, None, None], pa.timestamp("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark)


@pytest.fixture
def cut_up(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, config=CUT_UP)


def ran(dataset: Dataset) -> list[tuple[int, int]]:
    return [(report.ran, report.reused) for report in dataset.run()]


def in_zone(spark: SparkSession, zone: str, act: Callable[[], object]) -> None:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        act()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


# From Arrow.


@pytest.mark.parametrize("config", ["one task", "cut up"])
def test_arrow_rows_are_a_source_like_files(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    left, right = random_table(1, 3000, keys=50), random_table(2, 300, keys=60)
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])

    joined = ws.from_arrow(left).join(ws.from_arrow(right.to_reader()), on="k")
    mine = joined.group_by("s").agg(n="count(*)", total="sum(v_right)")

    frames = [spark.createDataFrame(left), spark.createDataFrame(right)]
    both = frames[0].join(frames[1].toDF("k", "s2", "f2", "v2"), "k").groupBy("s")
    theirs = both.agg(functions.count("*").alias("n"), functions.sum("v2").alias("total"))
    assert rows_of(mine.collect()) == rows_of(theirs.toArrow())


def test_work_over_equal_arrow_rows_is_reused(ws: mr.Workspace) -> None:
    table = random_table(3, 500, keys=5)

    def total(rows: pa.Table) -> Dataset:
        return ws.from_arrow(rows).agg(total="sum(v)")

    assert ran(total(table)) == [(1, 0)]
    again = pa.concat_tables([table.slice(0, 100), table.slice(100)])
    assert ran(total(again)) == [(0, 1)]
    assert ran(total(table.slice(1))) == [(1, 0)]
    found = ws.from_arrow(TYPES).collect()
    assert found.schema == TYPES.schema
    assert rows_of(found) == rows_of(TYPES)


# From Spark.


@pytest.mark.parametrize("config", ["one task", "cut up"])
def test_a_frame_joins_files_and_itself_as_in_spark(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    table = random_table(4, 2000, keys=40)
    pq.write_table(table, tmp_path / "in.parquet")
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    frame = spark.createDataFrame(random_table(5, 400, keys=50)).repartition(3)
    taken = ws.from_spark(frame)

    files = ws.read_parquet(tmp_path / "in.parquet")
    small = taken.filter("v > 0").select("k", "v AS w")
    mine = files.join(small, on="k").join(taken.group_by("k").agg(n="count(*)"), on="k")

    narrow = frame.where("v > 0").selectExpr("k", "v AS w")
    theirs = spark.read.parquet(str(tmp_path / "in.parquet")).join(narrow, "k")
    theirs = theirs.join(frame.groupBy("k").agg(functions.count("*").alias("n")), "k")
    assert rows_of(mine.collect()) == rows_of(theirs.toArrow())
    # Taken in once, with the columns that are needed, although it is read twice.
    (taken_in,) = [run for run in ws.runs() if run.plan.startswith("take in")]
    assert ws.open_shuffle(taken_in.query_id).schema.names == ["k", "v"]


def test_a_small_frame_makes_a_query_of_one_task(spark: SparkSession, ws: mr.Workspace) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 AS k")

    query = ws.from_spark(frame).group_by("k").agg(n="count(*)").sort("k")

    assert ws.runs() == []  # Nothing runs before rows are asked for.
    assert "take in DataFrame, columns k" in query.explain()
    assert ws.runs() == []
    assert ran(query) == [(4, 0), (1, 0)]
    assert query.collect()["n"].to_pylist() == [143] * 6 + [142]


def test_a_frame_is_taken_in_each_run_unless_a_version_names_its_rows(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id * 2 AS twice")
    total = ws.from_spark(frame).agg(total="sum(twice)")
    assert ran(total)[0] == (2, 0)
    first, _ = total.run()
    assert (first.ran, first.reused) == (2, 0)
    assert "recognised by version= alone" in str(first)

    def named(version: str, rows: int = 100, path: Path = tmp_path / "mill") -> Dataset:
        frame = spark.range(0, rows, 1, 2).selectExpr("id", "id * 2 AS twice")
        return mr.open(path, spark).from_spark(frame, version=version)

    assert ran(named("a").agg(total="sum(twice)")) == [(2, 0), (1, 0)]
    assert ran(named("a").agg(total="sum(twice)")) == [(0, 2), (0, 1)]
    # Another query over the same rows, and rows that are said to be the same.
    assert ran(named("a", rows=7).agg(n="count(id)")) == [(0, 2), (1, 0)]
    assert named("a", rows=7).agg(n="count(id)").collect()["n"].to_pylist() == [100]
    assert named("b", rows=7).agg(n="count(id)").collect()["n"].to_pylist() == [7]
    twins = named("a").join(named("a", rows=7), on="id")
    with pytest.raises(UserError, match="two DataFrames with the same columns have version 'a'"):
        twins.collect()


def test_a_named_frame_of_which_something_was_lost_is_taken_in_again(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    def total() -> Dataset:
        frame = spark.range(0, 100, 1, 2)
        return ws.from_spark(frame, version="a").filter("id >= 0").agg(total="sum(id)")

    assert ran(total())[0] == (2, 0)
    for file in Path(ws.path, "shuffle", "1").rglob("part-0.ipc"):
        file.unlink()
    frame_report, query_report = total().run()
    assert (frame_report.ran, query_report.reused) == (2, 1)
    assert "not all of that is there any more" in str(frame_report)

    # Lost after it was found, so that only the task that reads it sees that.
    for file in Path(ws.path, "shuffle", "3").rglob("part-0.ipc"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    frame = ws.from_spark(spark.range(0, 100, 1, 2), version="a")
    assert frame.agg(top="max(id)").collect().to_pylist() == [{"top": 99}]


def test_rows_of_a_frame_are_its_values_in_every_type_and_zone(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    frame = spark.createDataFrame(
        TYPES,
        "i8 tinyint, i32 int, i64 long, f float, d double, "
        "b boolean, s string, bytes binary, dec decimal(4,2), day date, at timestamp, "
        "local timestamp_ntz, list array<long>, struct struct<x: long, y: string>, "
        "map map<string, long>",
    )

    def compare() -> None:
        found = ws.from_spark(frame).collect()
        assert found.schema == TYPES.schema
        assert rows_of(found) == rows_of(TYPES)

    compare()
    in_zone(spark, "America/New_York", compare)


def test_empty_frames_odd_names_and_wrong_sources(spark: SparkSession, ws: mr.Workspace) -> None:
    empty = ws.from_spark(spark.createDataFrame([], "a long, s string"))
    assert empty.agg(n="count(*)", total="sum(a)").collect().to_pylist() == [
        {"n": 0, "total": None}
    ]
    assert empty.collect().num_rows == 0
    odd = ws.from_spark(spark.range(3).selectExpr("id AS `a.b`", "id * 2 AS `c``d`", "1 AS x"))
    assert odd.columns == ["a.b", "c`d", "x"]
    assert odd.select("`c``d` + `a.b` AS sum").collect()["sum"].to_pylist() == [0, 3, 6]

    with pytest.raises(UserError, match=r"from_spark\(\) of a Table"):
        ws.from_spark(TYPES)
    with pytest.raises(UserError, match="several columns are named 'id'"):
        ws.from_spark(spark.range(3).selectExpr("id", "id AS id"))
    with pytest.raises(UserError, match="version is 7"):
        ws.from_spark(spark.range(3), version=7)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedType, match="cast that column in Spark"):
        ws.from_spark(spark.sql("SELECT INTERVAL '1' MONTH AS m"))


# To Spark.


def test_a_result_is_a_frame_of_many_partitions_in_order(
    spark: SparkSession, cut_up: mr.Workspace
) -> None:
    table = random_table(6, 4000, keys=300)
    query = cut_up.from_arrow(table).sort("k", "v", "s", "f")

    frame = query.to_spark()

    expected = spark.createDataFrame(table).orderBy("k", "v", "s", "f")
    assert frame.schema.simpleString() == expected.schema.simpleString()
    assert repr(frame.toArrow().to_pylist()) == repr(expected.toArrow().to_pylist())
    numbered = frame.select(functions.spark_partition_id().alias("p")).distinct()
    assert numbered.count() > 1
    count = cut_up.runs()
    assert frame.where("v > 0").count() == expected.where("v > 0").count()
    assert cut_up.runs() == count  # Read again, not run again.


def test_a_frame_has_the_values_in_every_type_and_zone(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    def compare() -> None:
        found = ws.from_arrow(TYPES).to_spark()
        assert rows_of(found.toArrow().cast(TYPES.schema)) == rows_of(TYPES)

    compare()
    in_zone(spark, "America/New_York", compare)
    assert ws.from_arrow(TYPES.slice(0, 0)).to_spark().count() == 0
    with pytest.raises(UnsupportedType, match="column 'u' has no type in Spark"):
        ws.from_arrow(pa.table({"u": pa.array([1], pa.uint64())})).to_spark()


# To Parquet.


def test_parquet_is_read_alike_by_spark_and_arrow(
    spark: SparkSession, cut_up: mr.Workspace, tmp_path: Path
) -> None:
    table = random_table(7, 4000, keys=300)
    query = cut_up.from_arrow(table).sort("v", "k", "s", "f")
    out = tmp_path / "deep" / "out"

    written = query.write_parquet(out)

    names = sorted(os.listdir(out))
    assert names == ["_SUCCESS", *(f"part-{n:05}.parquet" for n in range(written.files))]
    assert written.files > 1
    assert (written.rows, written.path) == (4000, str(out))
    assert written.bytes == sum(path.stat().st_size for path in out.glob("*.parquet"))
    assert os.listdir(out.parent) == ["out"]
    expected = query.collect()
    assert repr(pq.read_table(out).to_pylist()) == repr(expected.to_pylist())
    assert rows_of(spark.read.parquet(str(out)).toArrow()) == rows_of(expected)
    assert cut_up.read_parquet(out).count() == 4000


@pytest.mark.parametrize("compression", results.COMPRESSIONS)
def test_types_and_compressions(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path, compression: str
) -> None:
    ws.from_arrow(TYPES).write_parquet(tmp_path / "out", compression=compression)

    (file,) = (tmp_path / "out").glob("*.parquet")
    used = pq.ParquetFile(file).metadata.row_group(0).column(0).compression
    assert used == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert pq.read_table(tmp_path / "out").schema == TYPES.schema
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(TYPES)
    theirs = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert rows_of(theirs.cast(TYPES.schema)) == rows_of(TYPES)


def test_a_target_with_content_is_refused_before_work_and_replaced_if_asked(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first, second = (ws.from_arrow(pa.table({"a": [n]})) for n in (1, 2))
    first.write_parquet(out)
    (out / "more").write_text("")
    before = ws.runs()

    with pytest.raises(UserError, match="exists already"):
        second.write_parquet(out)
    with pytest.raises(UserError, match="mode is 'append'"):
        second.write_parquet(out, mode="append")
    with pytest.raises(UserError, match="compression is 'zip'"):
        second.write_parquet(out, "overwrite", compression="zip")
    assert ws.runs() == before
    assert pq.read_table(out / "part-00000.parquet")["a"].to_pylist() == [1]

    second.write_parquet(out, mode="overwrite")
    assert sorted(os.listdir(out)) == ["_SUCCESS", "part-00000.parquet"]
    assert pq.read_table(out)["a"].to_pylist() == [2]
    # A query may read what it replaces.
    ws.read_parquet(out).select("a + 1 AS a").write_parquet(out, mode="overwrite")
    assert pq.read_table(out)["a"].to_pylist() == [3]


def test_no_rows_still_have_columns(spark: SparkSession, ws: mr.Workspace, tmp_path: Path) -> None:
    written = ws.from_arrow(TYPES).filter("i32 > 100").write_parquet(tmp_path / "out")

    assert (written.files, written.rows) == (1, 0)
    assert pq.read_table(tmp_path / "out").schema == TYPES.schema
    assert spark.read.parquet(str(tmp_path / "out")).columns == TYPES.column_names


def test_row_groups_are_of_the_size_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    config = mr.Config().with_options(parquet_row_group_bytes=100_000, batch_bytes_target=20_000)
    ws = mr.open(tmp_path / "mill", spark, config=config)

    ws.from_arrow(pa.table({"a": np.arange(100_000)})).write_parquet(tmp_path / "out")

    groups = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet").metadata.num_row_groups
    assert 4 <= groups <= 8


def test_what_is_lost_while_it_is_written_is_made_again(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = ws.from_arrow(random_table(8, 1000, keys=9)).group_by("k").agg(n="count(*)")
    real = results.write_files
    tries = []

    def damaged(*args: object) -> object:
        answer = args[2]
        assert isinstance(answer, Shuffle)
        tries.append(answer)
        if len(tries) == 1:
            for file in Path(ws.path, "shuffle", str(answer.query_id)).rglob("part-0.ipc"):
                file.unlink()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(results, "write_files", damaged)
    written = query.write_parquet(tmp_path / "out")

    assert (len(tries), written.rows) == (2, 10)
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(query.collect())


def test_a_folder_that_tasks_cannot_write_to_is_a_clear_error(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = results.write_files

    def elsewhere(*args: object) -> object:
        draft = args[3]
        assert isinstance(draft, Draft)
        os.rmdir(draft.tasks)  # As on a host that does not share the disk.
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(results, "write_files", elsewhere)
    with pytest.raises(
        StorageError, match="is not there on host .*\n.*a disk that all hosts share"
    ):
        ws.from_arrow(TYPES).write_parquet(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["mill"]


# To the screen.


def test_show_prints_what_sparks_show_prints(
    spark: SparkSession, ws: mr.Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    def same(table: pa.Table, *args: int) -> None:
        mine = ws.from_arrow(table)
        frame = mine.to_spark()
        capsys.readouterr()
        mine.show(*args)
        found = capsys.readouterr().out
        frame.show(*args)  # type: ignore[arg-type]
        assert found == capsys.readouterr().out

    wide = pa.table({"n": range(25), "text": ["a long text of more than twenty letters"] * 25})
    same(wide)
    same(wide, 25, False)  # noqa: FBT003 - as Spark's own
    same(wide, 1, 7)
    same(TYPES)
    in_zone(spark, "America/New_York", lambda: same(TYPES))
    same(TYPES.slice(0, 0))
    with pytest.raises(UserError, match=r"show\(-1\)"):
        ws.from_arrow(TYPES).show(-1)
