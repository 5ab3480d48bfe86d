"""A job on executors of their own, one of which is killed: every row once, one batch in doubt."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import millrace as mr

pytestmark = pytest.mark.spark
Cluster = Callable[..., AbstractContextManager[SparkSession]]
ROWS = 60
BATCH = 3


def called(log: Path) -> Counter[int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(map(int, lines))


def executors(spark: SparkSession) -> list[int]:
    """The executors of this very application."""
    port = spark.sparkContext.getConf().get("spark.driver.port")
    wanted = f"CoarseGrainedExecutorBackend --driver-url .*:{port} "
    found = subprocess.run(["pgrep", "-f", wanted], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_an_executor_that_is_killed_costs_one_batch(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    killed: list[int] = []

    def pay(row: dict[str, int]) -> dict[str, int]:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, f"{row['id']}\n".encode())
        os.close(handle)
        time.sleep(0.1)
        return {"id": row["id"]}

    with cluster() as spark:

        def kill_one() -> None:
            while called(log).total() < ROWS // 4:
                time.sleep(0.05)
            killed.append(executors(spark)[0])
            os.kill(killed[0], signal.SIGKILL)

        threading.Thread(target=kill_one, daemon=True).start()
        config = mr.Config(job_lease_ms=3000)
        with mr.open(tmp_path / "mill", spark, config=config) as ws:
            job = ws.job("paid")
            source = job.source("rows", spark.range(ROWS), partitions=2)
            paid = source.map(
                "pay", pay, schema="id bigint", expensive=True, batch_rows=BATCH, version="1"
            )
            paid.sink_parquet(str(tmp_path / "out"))
            report = job.run()

    assert killed
    assert report.state == "finished"
    rows = ds.dataset(tmp_path / "out").to_table()["id"].to_pylist()
    assert sorted(rows) == list(range(ROWS))
    counts = called(log)
    assert set(counts) == set(range(ROWS))
    assert counts.total() - ROWS <= report.step("pay").in_doubt <= BATCH
