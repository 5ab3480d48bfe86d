"""Jobs on executors that are processes of their own: resources they have, and their deaths."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.cluster.job_kit import wait_until

import millrace as mr

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Cluster = Callable[..., AbstractContextManager[SparkSession]]
CONFIG = mr.Config(job_run_lease_ms=5_000, job_lease_ms=5_000)


def rows_of(folder: Path) -> dict[int, str]:
    table = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])
    found = {row["id"]: row["text"] for row in table.to_pylist()}
    assert len(found) == table.num_rows, "no row twice"
    return found


def test_a_step_that_asks_for_a_resource_runs_where_it_is(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "gpu.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["7"]}\'\n')
    script.chmod(0o755)
    conf: dict[str, str] = {}
    for kind in ("executor", "worker"):
        conf |= {
            f"spark.{kind}.resource.gpu.amount": "1",
            f"spark.{kind}.resource.gpu.discoveryScript": str(script),
        }

    def told(row: dict) -> dict:  # type: ignore[type-arg]
        from pyspark import TaskContext

        found = TaskContext.get().resources()  # type: ignore[union-attr]
        return {"id": row["id"], "text": ",".join(f"{n} {r.addresses}" for n, r in found.items())}

    with cluster(conf=conf) as spark, mr.open(tmp_path / "mill", spark, config=CONFIG) as ws:
        job = ws.job("gpu")
        made = job.source("rows", spark.range(20)).map(
            "gpu",
            told,
            schema="id bigint, text string",
            expensive=True,
            resources={"gpu": 1},
            version="1",
        )
        made.sink_parquet(tmp_path / "gpu")
        plain = made.map("cpu", told, schema="id bigint, text string", durable=True, version="1")
        plain.sink_parquet(tmp_path / "cpu")
        report = job.run()

    assert report.state == "finished"
    assert rows_of(tmp_path / "gpu") == dict.fromkeys(range(20), "gpu ['7']")
    assert rows_of(tmp_path / "cpu") == dict.fromkeys(range(20), "")


def executors() -> list[int]:
    """The executors of this process's own Spark, and nobody else's."""
    parents: dict[int, int] = {}
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text()
            command = Path(entry.path, "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in command:
            found.append(int(entry.name))

    def is_mine(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return sorted(pid for pid in found if is_mine(pid))


def test_a_killed_executor_costs_no_row_and_its_calls_are_counted(
    cluster: Cluster, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    path = os.fspath(log)

    def slow(row: dict) -> dict:  # type: ignore[type-arg]
        import time

        with open(path, "a") as file:
            file.write(f"{row['id']}\n")
        time.sleep(0.05)
        return {"id": row["id"], "text": "done"}

    def kill_one() -> None:
        wait_until(lambda: len(log.read_text().split()) >= 20, "20 calls")
        os.kill(executors()[0], signal.SIGKILL)
        killed.set()

    killed = threading.Event()
    with cluster() as spark, mr.open(tmp_path / "mill", spark, config=CONFIG) as ws:
        threading.Thread(target=kill_one, daemon=True).start()
        job = ws.job("killed")
        made = job.source("rows", spark.range(100)).map(
            "slow",
            slow,
            schema="id bigint, text string",
            expensive=True,
            batch_rows=4,
            version="1",
        )
        made.sink_parquet(tmp_path / "out")
        report = job.run()

    assert killed.is_set()
    assert rows_of(tmp_path / "out") == dict.fromkeys(range(100), "done")
    step, calls = report.step("slow"), log.read_text().split()
    assert set(map(int, calls)) == set(range(100))
    assert len(calls) - 100 <= step.in_doubt <= 4
