"""What one slow slot costs a stage: four slots, and one of them at a quarter of its speed.

    .venv/bin/python benchmarks/straggler.py [--tasks 64] [--ticks 500] [--rounds 3]

Each map task is a function that takes so many ticks of a millisecond. It needs little CPU, so other
programs on the machine disturb it little. The slow slot is a Python worker of Spark's that is
stopped (SIGSTOP) for three quarters of each 80 ms. `pulled` is Millrace as it is: shares that
shrink, which slots pull when they are free. `static` is one share for each slot, as it was before.
The bound is what no sharing can beat: four slots against three and a quarter. It is reached only
with many map tasks for each slot: a slot never gives back the map task that it is in.

The table goes to stderr, a line of JSON to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr

SLOTS: Final = 4
SPEED: Final = 0.25
PERIOD_S: Final = 0.08
BOUND: Final = SLOTS / (SLOTS - 1 + SPEED)
SCHEMA: Final = pa.schema({"n": pa.int64(), "pid": pa.int64()})


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--ticks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{SLOTS}]")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    figures: dict[str, Any] = {"benchmark": "straggler", "tasks": given.tasks}
    shown = Table("shares", "even s", "one slot slow s", "map tasks of the slow slot", "ratio")
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name) / "in", given.tasks)
        runs = Runs(spark, Path(name), given.ticks)
        for shares, config in {
            "pulled": mr.Config(),
            "static": mr.Config().with_options(spark_tasks_max=SLOTS),
        }.items():
            runs.of_workers(config)  # Starts them.
            even, slow, parts = [], [], []
            for _ in range(given.rounds):
                seconds, workers = runs.of_workers(config)
                even.append(seconds)
                worker = max(workers, key=workers.__getitem__)
                with throttled(worker):
                    seconds, workers = runs.of_workers(config)
                slow.append(seconds)
                parts.append(workers[worker])
            ratio = statistics.median(slow) / statistics.median(even)
            figures[f"{shares}_ratio"] = round(ratio, 2)
            cells = [f"{statistics.median(taken):.2f}" for taken in (even, slow)]
            shown.add_row(shares, *cells, str(statistics.median(parts)), f"{ratio:.2f}")
    spark.stop()
    Console(stderr=True).print(shown)
    print(json.dumps(figures | {"bound": round(BOUND, 2), "load": round(os.getloadavg()[0], 1)}))


def make_files(folder: Path, tasks: int) -> None:
    """As many files as map tasks, of a row each."""
    folder.mkdir()
    for number in range(tasks):
        pq.write_table(pa.table({"n": [number]}), folder / f"{number:05}.parquet")


class Runs:
    """Runs of the same stage, none of which finds another one's work."""

    def __init__(self, spark: SparkSession, folder: Path, ticks: int) -> None:
        self._spark, self._folder, self._ticks = spark, folder, ticks
        self._numbers = count()

    def of_workers(self, config: mr.Config) -> tuple[float, Counter[int]]:
        """How long one takes, and how many map tasks each Python worker ran."""
        number, ticks = next(self._numbers), self._ticks

        def work(rows: pa.RecordBatch) -> pa.RecordBatch:
            for _ in range(ticks):
                time.sleep(0.001)
            pid = os.getpid() + 0 * number
            return pa.record_batch({"n": rows["n"], "pid": [pid] * rows.num_rows})

        with mr.open(self._folder / f"mill{number}", self._spark, config=config) as ws:
            rows = ws.read_parquet(self._folder / "in").map_batches(work, SCHEMA)
            began = time.perf_counter()
            rows.run()
            return time.perf_counter() - began, Counter(rows.to_arrow()["pid"].to_pylist())


@contextlib.contextmanager
def throttled(pid: int) -> Iterator[None]:
    """Within the block, a process runs for a quarter of each period."""
    ended = threading.Event()

    def throttle() -> None:
        while not ended.wait(PERIOD_S * SPEED):
            os.kill(pid, signal.SIGSTOP)
            ended.wait(PERIOD_S * (1 - SPEED))
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=throttle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10 * PERIOD_S + 5)


if __name__ == "__main__":
    main()
