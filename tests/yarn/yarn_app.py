"""What a user submits to YARN: a query, and a job with paid calls. It says who ran it."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millrace as mr

ROWS = 40
CONFIG = mr.Config(job_run_lease=5, job_lease=5, job_watch_ms=50)


def ask_of(url: str) -> Callable[[dict[str, Any], mr.Context], dict[str, Any]]:
    def ask(row: dict[str, Any], context: mr.Context) -> dict[str, Any]:
        data = json.dumps({"id": row["id"], "key": context.key}).encode()
        request = urllib.request.Request(url, data=data, method="POST")  # noqa: S310 - on loopback
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return {"id": row["id"], "answer": json.loads(answer.read())["answer"]}

    return ask


def main(mill: str, out: str, url: str, told: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    with Path(told, "drivers").open("a") as drivers:
        drivers.write(f"{os.getpid()} {os.getppid()}\n")
    with mr.open(mill, spark, config=CONFIG) as ws:
        rows = ws.from_spark(spark.range(ROWS).repartition(2), version="1")
        groups = rows.group_by("id % 4 AS k").agg(n="count(*)").to_arrow().to_pylist()
        job = ws.job("paid")
        asked = job.source("rows", rows, partitions=2).map(
            "ask",
            ask_of(url),
            schema="id bigint, answer string",
            expensive=True,
            batch_rows=4,
            version="1",
        )
        asked.sink_parquet(out)
        report = job.run()
    context = spark.sparkContext
    made = {
        "master": context.master,
        "groups": sorted((row["k"], row["n"]) for row in groups),
        "calls": report.step("ask").calls,
        "state": report.state,
        "in_doubt": report.step("ask").in_doubt,
    }
    Path(told, "report.json").write_text(json.dumps(made))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
