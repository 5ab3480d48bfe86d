"""A join and a group-by as datasets, beside Spark and DuckDB alone in the same run.

    .venv/bin/python benchmarks/datasets.py [--rows 20000000]

Every engine writes all rows of its result to Parquet-free sinks of its own kind: Spark to noop,
DuckDB to an Arrow stream that is drained, Millrace to files at rest that outlive the application.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
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


def timed(action: Callable[[], int]) -> tuple[float, int]:
    started = time.perf_counter()
    rows = action()
    return time.perf_counter() - started, rows


def spark_case(spark: SparkSession, case: str, facts: str, names: str) -> int:
    frame = spark.read.parquet(facts)
    if case == "join":
        frame = frame.join(spark.read.parquet(names), "k")
    else:
        frame = frame.groupBy("k").agg({"a": "sum", "b": "max", "*": "count"})
    frame.write.format("noop").mode("overwrite").save()
    return 0


def millrace_case(spark: SparkSession, case: str, facts: str, names: str) -> int:
    shutil.rmtree(DATA / "mill", ignore_errors=True)
    ws = mr.open(DATA / "mill", spark)
    data = ws.read_parquet(facts)
    if case == "join":
        data = data.join(ws.read_parquet(names), on="k")
    else:
        data = data.group_by("k").agg(a="sum(a)", b="max(b)", n="count(*)")
    data.run()
    return 0


def duckdb_case(case: str, facts: str, names: str) -> int:
    connection = duckdb.connect(config={"threads": 2})
    sql = (
        f"SELECT f.*, n.x, n.y FROM '{facts}/*.parquet' f JOIN '{names}/*.parquet' n USING (k)"
        if case == "join"
        else f"SELECT k, sum(a), max(b), count(*) FROM '{facts}/*.parquet' GROUP BY k"
    )
    return sum(batch.num_rows for batch in connection.sql(sql).to_arrow_reader(131_072))


def compare(spark: SparkSession, case: str, rows: int) -> dict[str, Any]:
    facts, names = make_files(rows)
    times: dict[str, list[float]] = {"spark": [], "millrace": [], "duckdb": []}
    for _ in range(ROUNDS + 1):
        times["spark"].append(timed(lambda: spark_case(spark, case, facts, names))[0])
        times["millrace"].append(timed(lambda: millrace_case(spark, case, facts, names))[0])
        times["duckdb"].append(timed(lambda: duckdb_case(case, facts, names))[0])
    best = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    return {
        "benchmark": "datasets",
        "case": f"{case}, {rows:,} rows",
        "millrace_s": round(best["millrace"], 3),
        "peer_s": round(best["spark"], 3),
        "duckdb_s": round(best["duckdb"], 3),
        "ratio": round(best["spark"] / best["millrace"], 2),
        "of_duckdb": round(best["millrace"] / best["duckdb"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    arguments = parser.parse_args()
    spark = start_session("datasets")
    table = Table("case", "Spark s", "Millrace s", "DuckDB s", "times Spark", "of DuckDB's time")
    for case in ("join", "group"):
        found = compare(spark, case, arguments.rows)
        print(json.dumps(found), flush=True)
        names = ("case", "peer_s", "millrace_s", "duckdb_s", "ratio", "of_duckdb")
        table.add_row(*(str(found[name]) for name in names))
    spark.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
