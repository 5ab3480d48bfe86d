"""Jobs on executors that are processes of their own, and the resources that these have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Cluster = Callable[..., AbstractContextManager[SparkSession]]
CONFIG = mr.Config(job_run_lease=5, job_lease=5)


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
