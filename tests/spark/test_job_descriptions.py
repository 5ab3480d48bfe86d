"""Spark's page says what each job of Millrace's is for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.spark.spark_presence import is_connect

CONFIG = mr.Config(one_task_bytes_max=1, read_together_bytes_max=1, broadcast_bytes_max=1)


def described(spark: SparkSession) -> list[str]:
    """The descriptions of all jobs so far, oldest first, as Spark's page and its REST have them."""
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    texts = [jobs.apply(n).description() for n in range(jobs.size())]
    return [text.get() for text in reversed(texts) if text.isDefined()]


def groups(spark: SparkSession) -> list[str]:
    """The groups of all jobs so far, oldest first."""
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    found = [jobs.apply(n).jobGroup() for n in range(jobs.size())]
    return [group.get() for group in reversed(found) if group.isDefined()]


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    assert not is_connect(spark), "on Connect the server words descriptions: run it on classic"
    for name in ("orders", "customers"):
        (tmp_path / name).mkdir()
        for number in range(2):
            table = pa.table({"id": [number, 5], name: [1, 2]})
            pq.write_table(table, tmp_path / name / f"{number}.parquet")
    return mr.open(tmp_path / "mill", spark, config=CONFIG)


def test_each_stage_of_a_query_is_named_on_sparks_page(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    before, groups_before = len(described(spark)), len(groups(spark))
    orders, customers = (ws.read_parquet(tmp_path / name) for name in ("orders", "customers"))

    assert orders.join(customers, on="id", how="full").to_arrow().num_rows == 6

    assert sorted(described(spark)[before:])[:2] == [
        "millrace: orders join customers, stage 1 of 3, 2 tasks",
        "millrace: orders join customers, stage 2 of 3, 2 tasks",
    ]
    assert described(spark)[-1].startswith("millrace: orders join customers, stage 3 of 3")
    (run,) = [run.query_id for run in ws.runs()]
    assert set(groups(spark)[groups_before:]) == {f"millrace run {run} stage {n}" for n in range(3)}


def test_a_saved_dataframe_and_a_shuffle_are_named_too(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    before = len(described(spark))

    shuffle = ws.shuffle(spark.range(10), keys="id", partitions=2)
    ws.from_spark(spark.range(10)).count()

    texts = described(spark)[before:]
    assert f"millrace: shuffle {shuffle.query_id} of a DataFrame" in texts
    assert any(text.startswith("millrace: DataFrame of query ") for text in texts)
    assert any(text.startswith("millrace: DataFrame, stage 1 of ") for text in texts)


def test_work_of_the_users_own_keeps_its_description(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    ws.read_parquet(tmp_path / "orders").count()
    spark.sparkContext.setJobDescription("mine")
    try:
        spark.range(3).count()
        ws.read_parquet(tmp_path / "customers").count()
        spark.range(4).count()
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]

    texts = described(spark)
    assert texts[-1] == "mine"
    assert "millrace: customers, stage 1 of 2, 2 tasks" in texts
