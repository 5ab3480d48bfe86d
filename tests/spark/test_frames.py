"""Rows from Spark's DataFrames, and to them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, functions
from tests.spark.dataset_kit import CONFIGS, CUT_UP, random_table, rows_of
from tests.spark.types_kit import TYPES, in_zone

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import UnsupportedType, UserError

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, create=True)


@pytest.fixture
def cut_up(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, config=CUT_UP)


def ran(dataset: Dataset) -> list[tuple[int, int]]:
    return [(report.ran, report.reused) for report in dataset.run().stages]


@pytest.mark.classic_only  # The plan of a Connect DataFrame is read.
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
    assert rows_of(mine.to_arrow()) == rows_of(theirs.toArrow())
    # Taken in once, with the columns that are needed, although it is read twice.
    (taken_in,) = [run for run in ws.runs() if run.plan.startswith("take in")]
    assert ws.open_shuffle(taken_in.query_id).schema.names == ["k", "v"]


@pytest.mark.classic_only  # The plan of a Connect DataFrame is read.
def test_a_small_frame_makes_a_query_of_one_task(spark: SparkSession, ws: mr.Workspace) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 AS k")

    query = ws.from_spark(frame).group_by("k").agg(n="count(*)").sort("k")

    assert ws.runs() == []  # Nothing runs before rows are asked for.
    assert "take in DataFrame, columns k" in query.explain()
    assert ws.runs() == []
    assert ran(query) == [(4, 0), (1, 0)]
    assert query.to_arrow()["n"].to_pylist() == [143] * 6 + [142]


@pytest.mark.classic_only  # The plan of a Connect DataFrame is read.
def test_a_frame_is_taken_in_each_run_unless_a_version_names_its_rows(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id * 2 AS twice")
    total = ws.from_spark(frame).agg(total="sum(twice)")
    assert ran(total)[0] == (2, 0)
    first, _ = total.run().stages
    assert (first.ran, first.reused) == (2, 0)
    assert "recognised by version= alone" in str(first)

    def named(version: str, rows: int = 100, path: Path = tmp_path / "mill") -> Dataset:
        frame = spark.range(0, rows, 1, 2).selectExpr("id", "id * 2 AS twice")
        return mr.open(path, spark).from_spark(frame, version=version)

    fresh = named("a").agg(total="sum(twice)")
    assert "depends on a DataFrame that is saved when it runs" in fresh.explain()
    assert ran(fresh) == [(2, 0), (1, 0)]
    assert "all of 1 task reused" in fresh.explain()
    assert ran(named("a").agg(total="sum(twice)")) == [(0, 2), (0, 1)]
    # Another query over the same rows, and rows that are said to be the same.
    assert ran(named("a", rows=7).agg(n="count(id)")) == [(0, 2), (1, 0)]
    assert named("a", rows=7).agg(n="count(id)").to_arrow()["n"].to_pylist() == [100]
    assert named("b", rows=7).agg(n="count(id)").to_arrow()["n"].to_pylist() == [7]
    twins = named("a").join(named("a", rows=7), on="id")
    with pytest.raises(UserError, match="two DataFrames with the same columns have version 'a'"):
        twins.to_arrow()


def test_a_named_frame_of_which_something_was_lost_is_taken_in_again(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    def total() -> Dataset:
        frame = spark.range(0, 100, 1, 2)
        return ws.from_spark(frame, version="a").filter("id >= 0").agg(total="sum(id)")

    assert ran(total())[0] == (2, 0)
    for file in Path(ws.path, "shuffle", "1").rglob("data.ipc"):
        file.unlink()
    frame_report, query_report = total().run().stages
    assert (frame_report.ran, query_report.reused) == (2, 1)
    assert "not all of that is there any more" in str(frame_report)

    # Lost after it was found, so that only the task that reads it sees that.
    for file in Path(ws.path, "shuffle", "3").rglob("data.ipc"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    top = ws.from_spark(spark.range(0, 100, 1, 2), version="a").agg(top="max(id)")
    assert "map outputs were lost" in str(top.run().stages[0])
    assert top.to_arrow().to_pylist() == [{"top": 99}]


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
        found = ws.from_spark(frame).to_arrow()
        assert found.schema == TYPES.schema
        assert rows_of(found) == rows_of(TYPES)

    compare()
    in_zone(spark, "America/New_York", compare)


@pytest.mark.classic_only  # The plan of a Connect DataFrame is read.
def test_empty_frames_odd_names_and_wrong_sources(spark: SparkSession, ws: mr.Workspace) -> None:
    empty = ws.from_spark(spark.createDataFrame([], "a long, s string"))
    assert empty.agg(n="count(*)", total="sum(a)").to_arrow().to_pylist() == [
        {"n": 0, "total": None}
    ]
    assert empty.to_arrow().num_rows == 0
    odd = ws.from_spark(spark.range(3).selectExpr("id AS `a.b`", "id * 2 AS `c``d`", "1 AS x"))
    assert odd.columns == ["a.b", "c`d", "x"]
    assert odd.select("`c``d` + `a.b` AS sum").to_arrow()["sum"].to_pylist() == [0, 3, 6]

    with pytest.raises(UserError, match=r"from_spark\(\) of a Table"):
        ws.from_spark(TYPES)
    with pytest.raises(UserError, match="several columns are named 'id'"):
        ws.from_spark(spark.range(3).selectExpr("id", "id AS id"))
    with pytest.raises(UserError, match="version is 7"):
        ws.from_spark(spark.range(3), version=7)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedType, match="cast that column in Spark"):
        ws.from_spark(spark.sql("SELECT INTERVAL '1' MONTH AS m"))


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


def test_files_that_spark_reads_are_read_once(ws: mr.Workspace, tmp_path: Path) -> None:
    texts, old = tmp_path / "rows.csv", 1_600_000_000
    texts.write_text("a;b\n1;x\n2;y\n")
    os.utime(texts, (old, old))

    def amounts(reader: mr.DataFrameReader) -> Dataset:
        return reader.csv(str(texts), "a INT, b STRING", ";", header=True).select("a")

    assert ran(amounts(ws.read))[0] == (1, 0)
    assert ran(amounts(ws.read))[0] == (0, 1)
    other = amounts(ws.read.option("mode", "DROPMALFORMED"))
    assert ran(other)[0] == (1, 0), "another option may give other rows"
    both = amounts(ws.read).union(amounts(ws.read))
    assert sorted(both.to_arrow()["a"].to_pylist()) == [1, 1, 2, 2]
    texts.write_text("a;b\n7;x\n2;y\n")
    os.utime(texts, (old, old + 1))
    assert sorted(amounts(ws.read).to_arrow()["a"].to_pylist()) == [2, 7]
