"""Aggregates by key in a job beside Spark's own, over the same journals, in one session.

    .venv/bin/python benchmarks/state.py [--rows 400000] [--keys 100000 1000000]

A stream of rows with random keys: `key_by(...).aggregate(...)` of a job beside
`groupBy(...).agg(...)` of a Structured Streaming query in update mode that reads the journals by
`format("millrace")`, with `availableNow` and the RocksDB state store, into a sink that drops the
rows. The state has a row of each key before time is taken. Seconds are wall and CPU, of the
driver, the JVM and workers; a ratio above 1 means that Millrace is faster. Before that the time
that a restore from a snapshot takes, and the cost of one batch in the engine alone, as the number
of keys grows. One JSON line for each case.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import millrace as mr
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.restore.state_snapshots import (
    SnapshotRecord,
    load_snapshot,
    write_snapshot,
)
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_operators import KeyTotals
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import WorkSettings
from millrace.pipeline.state.totals_work import TotalsPlan, TotalsWork
from millrace.spark.session import start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import cpu_by_kind

JOURNALS: Final = 2
SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BATCH_ROWS: Final = 1000
ROUNDS: Final = 30
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def append(ws: mr.Workspace, keys: np.ndarray) -> None:
    for number, some in enumerate(np.array_split(keys, JOURNALS)):
        ws.journals.append(f"rows/{number}", pa.table([some, some % 100], schema=SCHEMA))


def job_of(ws: mr.Workspace) -> mr.Job:
    job = ws.job("totals")
    by_key = job.source("rows", journals="rows/").key_by("k", partitions=2)
    by_key.aggregate("totals", total="sum(v)", n="count(*)")
    return job


def query(spark: SparkSession, ws: mr.Workspace, folder: Path) -> None:
    binding = {"name": "all", "prefix": "rows", "key": ["k"]}
    read = json.dumps({"name": "totals", "bindings": [binding]})
    stream = spark.readStream.format("millrace").option("read", read)
    rows = stream.option("members", 2).load(ws.path)
    totals = rows.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    writer = totals.writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def measured(work: object) -> tuple[float, float]:
    cpu, begun = sum(cpu_by_kind()), time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - begun, sum(cpu_by_kind()) - cpu


def beside_spark(spark: SparkSession, rows: int, keys: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="millrace-state-"))
    try:
        with mr.open(folder / "mill", spark) as ws:
            for number in range(JOURNALS):
                ws.journals.create(f"rows/{number}", SCHEMA)
            chance = np.random.default_rng(1)
            append(ws, chance.permutation(keys))
            job_of(ws).run()
            query(spark, ws, folder)
            append(ws, chance.integers(0, keys, rows))
            ours = measured(lambda: job_of(ws).run())
            theirs = measured(lambda: query(spark, ws, folder))
            kept = ws.state("totals/totals").to_arrow().num_rows
        found = {
            "case": "aggregate beside Spark",
            "rows": rows,
            "keys": kept,
            "rows_per_s": round(rows / ours[0]),
            "spark_rows_per_s": round(rows / theirs[0]),
            "cpu_s": round(ours[1], 2),
            "spark_cpu_s": round(theirs[1], 2),
            "ratio": round(theirs[0] / ours[0], 2),
            "cpu_ratio": round(theirs[1] / ours[1], 2),
        }
        print(json.dumps(found), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def engine_alone(keys: int) -> None:
    operator = KeyTotals(aggregates=(("total", "sum(v)"), ("n", "count(*)")), emit="upserts")
    plan = TotalsPlan.of(operator, ["k"], SCHEMA, "aggregate")
    settings = WorkSettings(
        memory_bytes_max=1 << 30, scratch=tempfile.gettempdir(), time_zone="UTC"
    )
    work, kept = TotalsWork(plan, operator, settings), StateTable(plan.state)
    chance = np.random.default_rng(1)

    def batch(values: np.ndarray) -> pa.RecordBatch:
        count = len(values)
        return pa.record_batch(
            {"_mr_offset": np.arange(count), "k": values, "v": chance.integers(0, 100, count)}
        )

    for begin in range(0, keys, 500_000):
        made = work.run(batch(np.arange(begin, min(keys, begin + 500_000))), kept, SourceProgress())
        kept.change(made.changes)
    seconds = []
    for _ in range(ROUNDS):
        rows = batch(chance.integers(0, keys, BATCH_ROWS))
        begun = time.process_time()
        kept.change(work.run(rows, kept, SourceProgress()).changes)
        seconds.append(time.process_time() - begun)
    work.close()
    found = {
        "case": "batch in the engine",
        "keys": keys,
        "batch_rows": BATCH_ROWS,
        "cpu_ms_median": round(float(np.median(seconds)) * 1000, 2),
        "cpu_ms_most": round(max(seconds) * 1000, 2),
        "bytes_per_key": round(kept.nbytes / keys),
    }
    print(json.dumps(found), flush=True)


def restore(keys: int) -> None:
    """Load the snapshot of a state; the files are in the page cache."""
    schema = pa.schema([("k", pa.int64()), ("total", pa.int64()), ("n", pa.int64())])
    numbers = np.arange(keys)
    rows = pa.RecordBatch.from_arrays([pa.array(numbers)] * 3, schema=schema)
    kept = StateTable(schema, next_number=keys)
    kept.load(rows, numbers, hash_rows(rows, ["k"]))
    folder = tempfile.mkdtemp(prefix="millrace-state-")
    try:
        made = write_snapshot(kept, offset=0, at_us=0, workspace=folder, folder="large/state")
        del kept, rows
        again = StateTable(schema)
        cpu, begun = time.process_time(), time.perf_counter()
        load_snapshot(again, SnapshotRecord(made, 0), folder)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        assert len(again) == keys
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = {"case": "restore", "keys": keys, "s": round(seconds, 2), "cpu_s": round(cpu, 2)}
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--keys", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--growth", type=int, nargs="*", default=[1_000_000, 8_000_000])
    parser.add_argument("--restore", type=int, nargs="*", default=[10_000_000])
    given = parser.parse_args()
    for keys in given.restore:
        restore(keys)
    for keys in given.growth:
        engine_alone(keys)
    if not given.keys:
        return
    spark = start_session(cores=2)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    for keys in given.keys:
        beside_spark(spark, given.rows, keys)
    spark.stop()


if __name__ == "__main__":
    main()
