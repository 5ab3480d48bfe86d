"""Runs a query over a bucket, with a secret in `storage_options=` and a plan of more than 1 MiB.

Arguments: classic or connect, a folder for everything that is written, and as JSON the url and
options of the store. Beside the query it sends a function of the same size that holds `CONTROL`.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import millrace as mr
from millrace.config import Config

CONTROL = "a-text-that-a-large-function-holds"
LARGE_BYTES = 3_000_000


def settings(folder: Path) -> dict[str, str]:
    """All that Spark writes lies in the folder, and in plain bytes."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.eventLog.dir": f"file:{folder / 'events'}",
        "spark.local.dir": str(folder / "local"),
        "spark.broadcast.compress": "false",
        "spark.shuffle.compress": "false",
        "spark.sql.maxPlanStringLength": str(1 << 28),
        "spark.log.level": "INFO",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def main(mode: str, folder: Path, url: str, options: dict[str, str]) -> None:
    """Start Spark, run both, and say when all is written."""
    from pyspark.sql import SparkSession

    from millrace.testing.managed_process import free_ports

    (folder / "events").mkdir()
    builder = SparkSession.builder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if mode == "connect":
        from pyspark.sql.connect.client.core import DefaultChannelBuilder

        port = free_ports(1)[0]
        setattr(DefaultChannelBuilder, "default_port", staticmethod(lambda: port))  # noqa: B010 - Spark has no setting
        builder = builder.remote("local[2]").config("spark.connect.grpc.binding.port", str(port))
    else:
        builder = builder.master("local[2]")
    for name, value in settings(folder).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    large = secrets.token_bytes(LARGE_BYTES)

    def passed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert len(large) == LARGE_BYTES
        return batch

    def control(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert len(large) == LARGE_BYTES
        assert CONTROL
        yield from batches

    spark.range(0, 2).mapInArrow(control, "id long").collect()
    config = Config(compression="none")
    with mr.open(folder / "mill", spark, config=config) as ws:
        rows = ws.read_parquet(f"{url}/in", storage_options=options)
        sums = rows.map_batches(
            passed_on, schema=pa.schema([("k", pa.int64()), ("v", pa.int64())])
        ).group_by("k")
        answer = sums.agg(total="sum(v)").to_arrow()
        assert sorted(answer["total"].to_pylist()) == [20, 25], answer
        assert ws.shuffle(f"{url}/in", keys="k", partitions=2, storage_options=options).rows == 10
        written = rows.write_parquet(f"{url}/out", storage_options=options)
        assert written.rows == ws.read_parquet(f"{url}/out", storage_options=options).count() == 10
        job = ws.job("copy")
        read = job.source("rows", ws.from_arrow(pa.table({"k": [1, 2, 3]})))
        read.filter("k > 1").sink_parquet(f"{url}/sink", storage_options=options)
        job.run()
        job.reset("rows")
        job.run()
        assert ws.read_parquet(f"{url}/sink", storage_options=options).count() == 2
    (folder / "done").touch()
    sys.stdin.read()  # Spark keeps what it wrote until it ends.


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *json.loads(sys.argv[3]))
