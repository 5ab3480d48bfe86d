"""Joins and group-bys as datasets, beside Spark and DuckDB alone in the same run.

    .venv/bin/python benchmarks/datasets.py [--rows 20000000] [--parts peers growth resume exchange
        first]

Spark writes all rows of its result to noop, DuckDB to an Arrow stream that is drained, Millrace to
files at rest that outlive the application. `growth` runs Millrace on 1/8, 1/4, 1/2 and all of the
rows, with the most memory that one of Spark's Python workers took. `resume` removes what the last
stage wrote, as if the application had died after the map stages, and runs again. `exchange` runs
one query in one slot, once as one task and once with an exchange in the middle. `first` is the time
to the first row, beside the time to all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.config import MIB
from millrace.datasets.dataset import Dataset
from millrace.spark.session import start_session

DATA = Path(__file__).parent / ".data"
FILES = 8
KEYS = 2_000_000
ROUNDS = 3


def make_files(rows: int) -> tuple[str, str]:
    facts, names = DATA / f"facts-{rows}", DATA / f"names-{rows}"
    if not (names / "_made").exists():
        for folder in (facts, names):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        keys = KEYS * rows // 20_000_000
        for number in range(FILES):
            random = np.random.default_rng(number)
            each = rows // FILES
            fact = {
                "k": random.integers(0, keys, each),
                "a": random.integers(0, 1000, each),
                "b": random.random(each),
            }
            pq.write_table(pa.table(fact), facts / f"{number}.parquet")
        every = np.arange(keys)
        for number in range(FILES):
            part = every[number::FILES]
            name = {"k": part, "x": part * 7, "y": part.astype("float64")}
            pq.write_table(pa.table(name), names / f"{number}.parquet")
        (names / "_made").touch()
    return str(facts), str(names)


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def spark_case(spark: SparkSession, case: str, facts: str, names: str) -> None:
    frame = spark.read.parquet(facts)
    if case == "join":
        frame = frame.join(spark.read.parquet(names), "k")
    else:
        frame = frame.groupBy("k").agg({"a": "sum", "b": "max", "*": "count"})
    frame.write.format("noop").mode("overwrite").save()


def dataset(ws: mr.Workspace, case: str, facts: str, names: str) -> Dataset:
    data = ws.read_parquet(facts)
    if case == "join":
        return data.join(ws.read_parquet(names), on="k")
    return data.group_by("k").agg(a="sum(a)", b="max(b)", n="count(*)")


def millrace_case(spark: SparkSession, case: str, facts: str, names: str) -> None:
    shutil.rmtree(DATA / "mill", ignore_errors=True)
    dataset(mr.open(DATA / "mill", spark), case, facts, names).run()


def duckdb_case(case: str, facts: str, names: str) -> int:
    connection = duckdb.connect(config={"threads": 2})
    sql = (
        f"SELECT f.*, n.x, n.y FROM '{facts}/*.parquet' f JOIN '{names}/*.parquet' n USING (k)"
        if case == "join"
        else f"SELECT k, sum(a), max(b), count(*) FROM '{facts}/*.parquet' GROUP BY k"
    )
    return sum(batch.num_rows for batch in connection.sql(sql).to_arrow_reader(131_072))


def peers(spark: SparkSession, case: str, rows: int) -> dict[str, Any]:
    facts, names = make_files(rows)
    times: dict[str, list[float]] = {"spark": [], "millrace": [], "duckdb": []}
    for _ in range(ROUNDS + 1):
        times["spark"].append(timed(lambda: spark_case(spark, case, facts, names)))
        times["millrace"].append(timed(lambda: millrace_case(spark, case, facts, names)))
        times["duckdb"].append(timed(lambda: duckdb_case(case, facts, names)))
    best = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    return {
        "case": f"{case}, {rows:,} rows",
        "millrace_s": round(best["millrace"], 3),
        "peer_s": round(best["spark"], 3),
        "duckdb_s": round(best["duckdb"], 3),
        "ratio": round(best["spark"] / best["millrace"], 2),
        "of_duckdb": round(best["millrace"] / best["duckdb"], 2),
    }


def growth(spark: SparkSession, case: str, rows: int) -> dict[str, Any]:
    facts, names = make_files(rows)
    millrace_case(spark, case, facts, names)
    with most_memory() as memory:
        taken = [timed(lambda: millrace_case(spark, case, facts, names)) for _ in range(ROUNDS)]
    return {
        "case": f"{case}, {rows:,} rows",
        "millrace_s": round(statistics.median(taken), 3),
        "worker_memory_mib": memory["bytes"] // MIB,
    }


def resume(spark: SparkSession, case: str, rows: int) -> dict[str, Any]:
    facts, names = make_files(rows)
    whole, again, ran = [], [], 0
    for _ in range(ROUNDS):
        shutil.rmtree(DATA / "mill", ignore_errors=True)
        ws = mr.open(DATA / "mill", spark)
        query = dataset(ws, case, facts, names)
        whole.append(timed(query.run))
        last = max(int(p.name) for p in (DATA / "mill/shuffle").glob("*/*") if p.name.isdigit())
        for folder in (DATA / "mill/shuffle").glob(f"*/{last}"):
            shutil.rmtree(folder)
        started = time.perf_counter()
        reports = query.run().stages
        again.append(time.perf_counter() - started)
        ran = sum(report.ran for report in reports[:-1])
    return {
        "case": f"{case}, {rows:,} rows",
        "whole_s": round(statistics.median(whole), 3),
        "resumed_s": round(statistics.median(again), 3),
        "map_tasks_run": ran,
        "ratio": round(statistics.median(whole) / statistics.median(again), 2),
    }


def first(spark: SparkSession, rows: int, asked: str) -> dict[str, Any]:
    """How long the first row of a join takes, or few rows, beside all rows in the same workspace.

    In turns, each in a new workspace.
    """
    facts, names = make_files(rows)
    few: dict[str, Callable[[Dataset], object]] = {
        "to_batches": lambda query: next(kept := query.to_batches()) and kept,
        "limit(10)": lambda query: query.limit(10).to_arrow(),
        "show()": lambda query: query.show(),
    }

    def whole(query: Dataset) -> int:
        return sum(batch.num_rows for batch in query.to_batches())

    taken: dict[str, list[float]] = {"few": [], "whole": []}
    for _ in range(ROUNDS + 1):
        for name, use in (("few", few[asked]), ("whole", whole)):
            place = tempfile.mkdtemp(dir=DATA)
            with mr.open(f"{place}/mill", spark) as ws:
                query = dataset(ws, "join", facts, names)
                started = time.perf_counter()
                rest = use(query)
                taken[name].append(time.perf_counter() - started)
                if isinstance(rest, Iterator):  # Ended after the first row: the query is cancelled.
                    del rest
                    gc.collect()
            shutil.rmtree(place, ignore_errors=True)
    early, late = (statistics.median(times[1:]) for times in taken.values())
    return {
        "case": f"join, {rows:,} rows, {asked}",
        "first_s": round(early, 3),
        "whole_s": round(late, 3),
        "share": round(early / late, 2),
    }


def exchange(spark: SparkSession, rows: int) -> dict[str, Any]:
    facts, _ = make_files(rows)
    one_slot = mr.Config().with_options(spark_tasks_max=1, partition_bytes_target=1 << 40)
    configs = {
        "one task": one_slot.with_options(one_task_bytes_max=1 << 40),
        "exchange": one_slot.with_options(one_task_bytes_max=1),
    }
    taken: dict[str, list[float]] = {name: [] for name in configs}
    for _ in range(ROUNDS + 1):
        for name, config in configs.items():
            shutil.rmtree(DATA / "mill", ignore_errors=True)
            data = mr.open(DATA / "mill", spark, config=config).read_parquet(facts)
            groups = data.with_columns(g="k % 10000").group_by("g")
            query = groups.agg(a="sum(a)", b="max(b)", n="count(*)")
            taken[name].append(timed(query.run))
    one, two = (statistics.median(times[1:]) for times in taken.values())
    return {
        "case": f"group {rows:,} rows into 10,000 in one slot",
        "one_task_s": round(one, 3),
        "exchange_s": round(two, 3),
        "ratio": round(two / one, 2),
    }


@contextlib.contextmanager
def most_memory() -> Iterator[dict[str, int]]:
    """The most memory that one of Spark's Python workers holds meanwhile."""
    found = {"bytes": 0}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                        pages = int((folder / "statm").read_text().split()[1])
                        found["bytes"] = max(found["bytes"], pages * 4096)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    every = ["peers", "growth", "resume", "exchange", "first"]
    parser.add_argument("--parts", nargs="*", default=every, choices=every)
    arguments = parser.parse_args()
    rows = arguments.rows
    spark = start_session("datasets")
    parts: dict[str, list[Callable[[], dict[str, Any]]]] = {
        "peers": [lambda c=c: peers(spark, c, rows) for c in ("join", "group")],  # type: ignore[misc]
        "growth": [
            lambda c=c, n=n: growth(spark, c, rows // n)  # type: ignore[misc]
            for c in ("join", "group")
            for n in (8, 4, 2, 1)
        ],
        "resume": [lambda c=c: resume(spark, c, rows) for c in ("join", "group")],  # type: ignore[misc]
        "exchange": [lambda: exchange(spark, rows)],
        "first": [
            lambda a=a: first(spark, rows, a)  # type: ignore[misc]
            for a in ("to_batches", "limit(10)", "show()")
        ],
    }
    console = Console()
    for part in arguments.parts:
        found = [measure() for measure in parts[part]]
        table = Table(*found[0], title=part)
        for one in found:
            print(json.dumps({"benchmark": "datasets", "part": part, **one}), flush=True)
            table.add_row(*(str(value) for value in one.values()))
        console.print(table)
    spark.stop()


if __name__ == "__main__":
    main()
