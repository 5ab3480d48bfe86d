"""Folders that are partitioned by columns: the columns, types and rows that Spark reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.dataset_kit import CONFIGS, rows_of

import millrace as mr

pytestmark = pytest.mark.spark

FOLDERS = {
    "whole numbers": ["k=1", "k=02", "k=__HIVE_DEFAULT_PARTITION__"],
    "large numbers": ["k=1", "k=30000000000000000000"],
    "fractions": ["k=1", "k=1.5", "k=NaN"],
    "days": ["k=2020-01-01", "k=1999-12-31"],
    "times": ["k=2020-01-01 10%3A00%3A00", "k=2020-03-08 02%3A30%3A00.5", "k=2020-01-02"],
    "texts": ["k=01", "k=x y%2Fz", "k=a%3Db", "k=__HIVE_DEFAULT_PARTITION__"],
    "nested": ["k=1/j=a", "k=2/j=b", "k=2/j=2020-01-01"],
    "beside": ["k=1", "."],
}


def rows_read(dataset: mr.Dataset) -> pa.Table:
    return pa.Table.from_batches(dataset.to_batches(), dataset.arrow_schema)


@pytest.mark.parametrize("name", FOLDERS)
def test_columns_and_rows_are_sparks(spark: SparkSession, tmp_path: Path, name: str) -> None:
    for number, folder in enumerate(FOLDERS[name]):
        (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
        rows = pa.table({"v": [number, None], "f": [0.5, float("nan")]})
        pq.write_table(rows, tmp_path / "data" / folder / f"{number}.parquet")
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        ws = mr.open(tmp_path / "mill", spark, config=CONFIGS["cut up"])
        dataset = ws.read_parquet(tmp_path / "data")
        frame = spark.read.parquet(str(tmp_path / "data"))
        for condition in ("true", "k IS NOT NULL AND v IS NOT NULL"):
            expected = frame.where(condition).toArrow()
            answer = rows_read(dataset.filter(condition))
            assert answer.schema.names == expected.schema.names
            assert answer.schema.types == expected.schema.types
            assert rows_of(answer) == rows_of(expected), condition
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_folders_that_spark_wrote_are_read_and_files_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(100).selectExpr("id", "id % 5 AS k", "concat('a:', id % 2) AS s")
    frame.write.partitionBy("k", "s").parquet(str(tmp_path / "data"))
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS["cut up"])

    query = ws.read_parquet(tmp_path / "data").filter("k = 3 AND s = 'a:1'")
    answer = rows_read(query)

    assert sorted(answer.column("id").to_pylist()) == [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]
    assert query.run().stages[0].map_tasks <= 4, "only the files of one folder are read"


def test_what_is_written_is_what_spark_writes_and_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = ["plain", "x/y", "a%2Fb", "k=v", "ä b", "", None, "c:d", "x\ty"]
    rows = pa.table(
        {
            "id": range(90),
            "s": [texts[n % len(texts)] for n in range(90)],
            "day": pa.array([18_000 + n % 3 for n in range(90)], pa.int32()).cast(pa.date32()),
            "ok": [None if n % 5 == 0 else n % 2 == 0 for n in range(90)],
        }
    )
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS["cut up"])
    ours, theirs, third = (tmp_path / name for name in ("ours", "theirs", "third"))

    written = ws.from_arrow(rows).write_parquet(ours, partition_by=["s", "day", "ok"])
    ws.from_arrow(rows).write.partitionBy("s", "day", "ok").parquet(str(third))
    spark.createDataFrame(rows).write.partitionBy("s", "day", "ok").parquet(str(theirs))

    def folders(path: Path) -> set[str]:
        return {str(file.parent.relative_to(path)) for file in path.rglob("*.parquet")}

    assert folders(ours) == folders(theirs) == folders(third)
    assert written.rows == 90
    schema = "id bigint, s string, day date, ok boolean"
    answers = [spark.read.schema(schema).parquet(str(path)).toArrow() for path in (ours, theirs)]
    assert rows_of(answers[0]) == rows_of(answers[1])
    assert rows_of(rows_read(ws.read_parquet(ours))) == rows_of(rows_read(ws.read_parquet(theirs)))
    assert (third / "_SUCCESS").exists()


def test_spark_writes_folders_that_are_not_written_here(
    spark: SparkSession, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS["cut up"])
    rows = ws.from_arrow(pa.table({"x": [0.5, 1.5], "k": [1, 2]}))
    path = str(tmp_path / "out")
    rows.write.partitionBy("x").parquet(path)
    assert {each.name for each in (tmp_path / "out").glob("x=*")} == {"x=0.5", "x=1.5"}

    rows.write.mode("overwrite").partitionBy("k").parquet(path)
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        rows.filter("k = 2").write.mode("overwrite").partitionBy("k").parquet(path)
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert {each.name for each in (tmp_path / "out").glob("k=*")} == {"k=1", "k=2"}
    assert ws.read_parquet(path).count() == 2
