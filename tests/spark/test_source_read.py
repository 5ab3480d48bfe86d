"""`spark.read.format("millrace")`: journals, shuffles and the rows of jobs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from tests.spark.types_kit import TYPES

import millrace as mr
from millrace.spark import register
from millrace.spark.frames.rows_as_frames import of_table

pytestmark = pytest.mark.spark
ROWS = [(n, n % 7, f"t{n}") for n in range(300)]
TABLE = pa.table({"id": [r[0] for r in ROWS], "k": [r[1] for r in ROWS], "t": [r[2] for r in ROWS]})


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark)


def source(spark: SparkSession, ws: mr.Workspace, **options: object) -> DataFrameReader:
    reader = spark.read.format("millrace").option("path", ws.path)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_a_journal_is_read_in_ranges_of_offsets_by_spark_alone(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    for begin in (0, 100, 200):
        ws.journals.create("a/b", TABLE.schema)
        ws.journals.append("a/b", TABLE.slice(begin, 100))
    ws.close()  # Nobody owns the journals: Spark's own processes have to.

    frame = source(spark, ws, journal="a/b", partitionRows=120).load()

    assert [field.simpleString() for field in frame.schema] == ["id:bigint", "k:bigint", "t:string"]
    assert [tuple(row) for row in frame.collect()] == ROWS
    part = source(spark, ws, journal="a/b", startOffset=50, endOffset=250, partitionRows=90).load()
    assert rows(part) == ROWS[50:250]
    assert part.selectExpr("spark_partition_id() AS p").distinct().count() == 3
    # What Spark opened for a moment is let go of.
    assert ws.journals.end_offset("a/b") == 300
    ws.close()


def test_only_committed_rows_are_read_and_none_that_came_later(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    broker = ws.journals
    broker.create("a", TABLE.schema)
    broker.create("b", TABLE.schema)
    with broker.transaction() as t:  # Ends with ACKs, which take offsets.
        t.append("a", TABLE.slice(0, 10))
        t.append("b", TABLE.slice(0, 10))
    broker.append("a", TABLE.slice(10, 10))
    producer = broker.producer("open")
    producer.append("a", TABLE.slice(20, 10))

    assert rows(source(spark, ws, journal="a", partitionRows=4).load()) == ROWS[:20]
    producer.commit()
    assert rows(source(spark, ws, journal="a").load()) == ROWS[:30]
    broker.create("empty", TABLE.schema)
    assert source(spark, ws, journal="empty").load().count() == 0
    ws.close()


def test_all_types_that_spark_knows_come_as_spark_has_them(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    ws.journals.create("types", TYPES.schema)
    ws.journals.append("types", TYPES)
    frame = source(spark, ws, journal="types").load()
    expected = of_table(spark, TYPES)
    assert frame.schema.simpleString() == expected.schema.simpleString()
    assert repr(frame.collect()) == repr(expected.collect())
    some = source(spark, ws, journal="types").schema("s string, i64 long").load()
    assert repr(some.collect()) == repr(expected.select("s", "i64").collect())
    ws.close()


def test_a_shuffle_is_read_by_its_reduce_partitions(spark: SparkSession, ws: mr.Workspace) -> None:
    given = spark.createDataFrame(TABLE)
    made = ws.shuffle(given, keys="k", partitions=3)
    frame = source(spark, ws, shuffle=made.query_id).load()
    assert rows(frame) == ROWS
    places = frame.selectExpr("k", "spark_partition_id() AS p").distinct()
    expected = given.selectExpr("k", "pmod(hash(k), 3) AS p").distinct()
    assert rows(places) == rows(expected)


def test_the_rows_of_a_job_are_read_by_step_also_as_a_view(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    job = ws.job("texts")
    taken = job.source("given", spark.createDataFrame(TABLE).repartition(2), partitions=2)
    kept = taken.map("length", lambda row: {"n": len(row["t"])}, schema="n bigint")
    kept.sink_journal("lengths")
    job.run()

    given = source(spark, ws, job="texts", step="given").load()
    assert rows(given) == ROWS
    assert given.selectExpr("spark_partition_id()").distinct().count() == 2
    register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW lengths USING millrace "
        f"OPTIONS (path '{ws.path}', journal 'lengths')"
    )
    found = spark.sql("SELECT n, count(*) FROM lengths GROUP BY n")
    assert rows(found) == [(2, 10), (3, 90), (4, 200)]
    with pytest.raises(PySparkException, match="rows of given"):
        source(spark, ws, job="texts", step="gven").load().collect()
    ws.close()


def test_a_frame_is_filtered_again_and_again(spark: SparkSession, ws: mr.Workspace) -> None:
    some = pa.table({"n": pa.array([1, 2, None, 4]), "s": ["ab", None, "b", "ba"]})
    ws.journals.create("few", some.schema)
    ws.journals.append("few", some)
    frame = source(spark, ws, journal="few").load()
    expected = spark.createDataFrame(some)
    conditions = ["n = 2", "n > 1 OR s = 'ab'", "true"]
    before = str(spark.conf.get("spark.sql.python.filterPushdown.enabled"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = [frame.where(text).collect() for text in conditions]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", before)
    assert found == [expected.where(text).collect() for text in conditions]
    ws.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jornal": "a"}, "did you mean journal"),
        ({"journal": "none"}, "none"),
        ({"journal": "a", "endOffset": 99}, "found: 0 to 0"),
        ({"shuffle": 7}, "no run 7"),
        ({"journal": "a", "shuffle": 7}, "found: shuffle, journal"),
    ],
)
def test_what_cannot_be_read_is_said(
    spark: SparkSession, ws: mr.Workspace, options: dict[str, object], message: str
) -> None:
    ws.journals.create("a", TABLE.schema)
    with pytest.raises(PySparkException, match=message):
        source(spark, ws, **options).load().collect()  # On Connect nothing is looked at before.
    ws.close()
