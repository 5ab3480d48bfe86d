"""Functions that hang in a Spark task: the process is left to Spark, and the job goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG, TEXTS, happened, ids

import millrace as mr
from millrace.pipeline.core.job_events import JobEventKind

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", spark, config=CONFIG) as opened:
        yield opened


def test_processes_full_of_hanging_calls_are_replaced(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    def hangs(row: dict) -> dict:  # type: ignore[type-arg]
        if row["id"] in (3, 4):
            time.sleep(600)
        return {"id": row["id"], "text": "x"}

    job = ws.job("hang")
    rows = spark.range(20).selectExpr("id", "concat('u', id) AS url")
    made = job.source("rows", rows, partitions=1).map(
        "f",
        hangs,
        schema=TEXTS,
        expensive=True,
        timeout=1.0,
        retries=1,
        on_error="dead_letter",
    )
    made.sink_parquet(tmp_path / "out", name="out")

    report = job.run()

    assert report.state == "finished"
    assert ids(tmp_path / "out") == [value for value in range(20) if value not in (3, 4)]
    assert report.step("f").dead_letters == 2
    assert len(happened(ws, "hang", JobEventKind.STUCK)) == 2
