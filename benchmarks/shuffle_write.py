"""Parquet files to a keyed shuffle, beside Spark's own `repartition` in the same session.

    .venv/bin/python benchmarks/shuffle_write.py [--rows 20000000] [--series]

Spark writes its shuffle files and hands the rows to a sink that drops them; Millrace writes its
shuffle files, with checksums and indexes, and keeps them. Neither is told the answer: each round of
Millrace starts from an empty workspace.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark.session import start_session

DATA = Path(__file__).parent / ".data"
FILES = 8
PARTITIONS = 8
ROUNDS = 3
KEYS = 2_000_000


def make_files(rows: int) -> Path:
    folder = DATA / f"rows-{rows}"
    if (folder / "_made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    each = rows // FILES
    for number in range(FILES):
        random = np.random.default_rng(number)
        key = random.integers(0, KEYS, each)
        table = pa.table(
            {
                "key": key,
                "name": pa.array(np.char.add("customer-", key.astype("U7"))),
                "a": random.integers(0, 1 << 40, each),
                "b": random.random(each),
                "c": random.integers(0, 1000, each).astype("int32"),
            }
        )
        pq.write_table(table.drop_columns("name"), folder / f"int-{number}.parquet")
        pq.write_table(table.drop_columns("key"), folder / f"str-{number}.parquet")
    (folder / "_made").touch()
    return folder


def with_spark(spark: SparkSession, paths: list[str], key: str) -> float:
    started = time.perf_counter()
    frame = spark.read.parquet(*paths).repartition(PARTITIONS, key)
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def with_millrace(spark: SparkSession, paths: list[str], key: str, rows: int) -> float:
    workspace = DATA / "mill"
    shutil.rmtree(workspace, ignore_errors=True)
    started = time.perf_counter()
    shuffle = mr.open(workspace, spark).shuffle(paths, keys=key, partitions=PARTITIONS)
    seconds = time.perf_counter() - started
    assert shuffle.rows == rows // FILES * FILES
    assert shuffle.report.ran >= FILES
    shutil.rmtree(workspace)
    return seconds


def compare(spark: SparkSession, rows: int, kind: str) -> dict[str, Any]:
    folder = make_files(rows)
    key = "key" if kind == "int" else "name"
    paths = [str(folder / f"{kind}-{number}.parquet") for number in range(FILES)]
    mine, theirs = [], []
    for _ in range(ROUNDS + 1):  # The first round warms both and is dropped.
        theirs.append(with_spark(spark, paths, key))
        mine.append(with_millrace(spark, paths, key, rows))
    peer_s, millrace_s = statistics.median(theirs[1:]), statistics.median(mine[1:])
    return {
        "benchmark": "shuffle_write",
        "case": f"{kind} key, {rows:,} rows",
        "rows": rows,
        "millrace_s": round(millrace_s, 3),
        "peer_s": round(peer_s, 3),
        "ratio": round(peer_s / millrace_s, 2),
    }


MEMORY = """
import sys, threading, time, millrace as mr, pyarrow as pa
from millrace.ids import AttemptId
from millrace.keys import HashPartitioner
from millrace.scan.source import Listing, open_source
from millrace.scan.splits import cut
from millrace.storage.local import LocalStore
from millrace.shuffle.writer import begin_attempt, write_map_output

def resident():
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) * 1024 for l in lines if l.startswith("RssAnon"))

source = open_source(sys.argv[3:], Listing(now_ms=0, recent_ms=1))
(task,) = cut(source.shapes, split_bytes_target=1 << 60, map_tasks_max=1)
store, attempt = LocalStore(sys.argv[1]), AttemptId.of(1, 0, 0, 1)
store.make_folder(".")
begin_attempt(store, attempt)
idle, peak, done = resident(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, resident())

watcher = threading.Thread(target=watch)
watcher.start()
config = mr.Config()
index = write_map_output(
    store,
    attempt,
    source.reader().batches(task, config.task_memory_bytes_max // 16),
    schema=source.schema,
    partitioner=HashPartitioner("key", int(sys.argv[2])),
    config=config,
    now_ms=lambda: 0,
)
done.set()
watcher.join()
print(pa.default_memory_pool().max_memory(), peak - idle, index.bytes)
"""


def peak_memory(rows: int, partitions: int) -> dict[str, Any]:
    """What one task over all the files holds at most, in Arrow and in its whole process."""
    folder = make_files(rows)
    workspace = DATA / "memory"
    shutil.rmtree(workspace, ignore_errors=True)
    paths = [str(folder / f"int-{number}.parquet") for number in range(FILES)]
    answer = subprocess.run(
        [sys.executable, "-c", MEMORY, str(workspace), str(partitions), *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(workspace)
    held, resident, written = (round(int(text) / 2**20) for text in answer.stdout.split())
    return {
        "benchmark": "shuffle_write",
        "case": f"memory of one task, {rows:,} rows into {partitions} partitions",
        "arrow_mib": held,
        "process_mib": resident,
        "written_mib": written,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--series", action="store_true", help="also 1x, 2x, 4x, 8x of rows / 4")
    arguments = parser.parse_args()
    spark = start_session("shuffle_write")
    cases = [(arguments.rows, "int"), (arguments.rows, "str")]
    if arguments.series:
        cases += [(arguments.rows * times // 4, "int") for times in (1, 2, 4, 8)]
    table = Table("case", "Spark s", "Millrace s", "times faster", title="Parquet to shuffle files")
    for rows, kind in cases:
        found = compare(spark, rows, kind)
        print(json.dumps(found), flush=True)
        table.add_row(
            found["case"], f"{found['peer_s']}", f"{found['millrace_s']}", f"{found['ratio']}"
        )
    spark.stop()
    for partitions in (PARTITIONS, 200):
        print(json.dumps(peak_memory(arguments.rows, partitions)), flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
