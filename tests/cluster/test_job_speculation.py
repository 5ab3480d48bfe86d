"""A job on a Spark that starts copies of tasks which take long: copies double nothing."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import millrace as mr

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Standalone = Callable[[Sequence[Mapping[str, str]]], AbstractContextManager[str]]
Connected = Callable[..., AbstractContextManager[SparkSession]]
ROWS = 36
BATCH = 3
COPIES = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # A task alone in its stage gets a copy when it takes longer than this.
    "spark.speculation.task.duration.threshold": "1s",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_copies_of_workers_and_of_taking_in_double_nothing(
    standalone: Standalone, connected: Connected, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    ended, copied = threading.Event(), set[int]()

    def pay(row: dict[str, int]) -> dict[str, int]:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, f"{row['id']}\n".encode())
        os.close(handle)
        time.sleep(0.2)
        return {"id": row["id"]}

    # Workers live for a short time, so that copies of one outlive it, and the other way round.
    config = mr.Config(job_lease=3, job_worker_time=3)
    # Spark starts a copy on another host than the task's own.
    hosts = [
        {"SPARK_LOCAL_IP": f"127.0.0.{1 + n % 2}", "SPARK_WORKER_DIR": str(tmp_path / f"work-{n}")}
        for n in range(4)
    ]
    with (
        standalone(hosts) as master,
        connected(master, conf=COPIES) as spark,
        mr.open(tmp_path / "mill", spark, config=config) as ws,
    ):
        tracker = spark.sparkContext.statusTracker()

        def look_for_copies() -> None:
            while not ended.wait(0.05):
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None and info.numActiveTasks > info.numTasks:
                        copied.add(stage)

        watching = threading.Thread(target=look_for_copies)
        watching.start()
        job = ws.job("copies")
        rows = spark.range(ROWS).repartition(4)
        paid = job.source("rows", rows, partitions=1).map(
            "pay", pay, schema="id bigint", expensive=True, batch_rows=BATCH, version="1"
        )
        paid.sink_parquet(str(tmp_path / "out"))
        try:
            report = job.run()
        finally:
            ended.set()
            watching.join()

    assert report.state == "finished"
    rows_out = ds.dataset(tmp_path / "out").to_table()["id"].to_pylist()
    assert sorted(rows_out) == list(range(ROWS))
    counts, step = Counter(map(int, lines(log))), report.step("pay")
    assert set(counts) == set(range(ROWS))
    # Spark ends a copy when the other is done; what it was in the middle of is in doubt.
    assert counts.total() - ROWS <= step.in_doubt
    assert step.calls == ROWS + step.in_doubt
    assert copied, "Spark did start copies"
