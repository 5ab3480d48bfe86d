"""An as-of join and an interval join as datasets, beside Spark and DuckDB alone in the same run.

    .venv/bin/python benchmarks/asof.py [--rows 5000000]

Spark uses its sort-merge as-of join, and for intervals the join on keys with BETWEEN that users
write. Every engine writes all rows of its result to sinks of its own kind: Spark to noop, DuckDB to
an Arrow stream that is drained, Millrace to files at rest that outlive the application. Times and
keys are drawn so that no two rows of a key have the same time: then there is one right answer, and
the sum of a column of it is compared first. The interval join has a tenth of the rows: both peers
look at all pairs of a key.
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
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.spark.session import start_session

DATA = Path(__file__).parent / ".data"
FILES = 8
ROWS_PER_KEY = 500
STEP_US = 4_000
CASES = {"as-of": 1, "interval": 10}
"""What is compared, and by how much the rows are divided for it."""


def make_files(rows: int) -> tuple[str, str]:
    trades, quotes = DATA / f"trades-{rows}", DATA / f"quotes-{rows}"
    if not (quotes / "_made").exists():
        for folder in (trades, quotes):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for seed, (folder, value) in enumerate(((trades, "size"), (quotes, "bid"))):
            random = np.random.default_rng(seed)
            # Every time is there once, so that no rows are equal; in between lies chance.
            times = random.permutation(rows) * STEP_US + seed
            keys = random.integers(0, max(1, rows // ROWS_PER_KEY), rows)
            table = pa.table(
                {
                    "k": keys,
                    "t": pa.array(times, pa.timestamp("us")),
                    value: random.random(rows),
                    f"{value}_no": random.integers(0, 1000, rows),
                }
            )
            each = rows // FILES
            for number in range(FILES):
                pq.write_table(table.slice(number * each, each), folder / f"{number}.parquet")
        (quotes / "_made").touch()
    return str(trades), str(quotes)


def within(files: str) -> int:
    """Half of the mean gap between rows of a key, in microseconds: about one pair to a row."""
    rows = int(files.rsplit("-", 1)[1])
    return rows // ROWS_PER_KEY * STEP_US // 2


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_spark(spark: SparkSession, case: str, trades: str, quotes: str) -> DataFrame:
    spark.read.parquet(trades).createOrReplaceTempView("trades")
    spark.read.parquet(quotes).createOrReplaceTempView("quotes")
    listed = "SELECT l.*, r.t AS t_right, r.bid, r.bid_no FROM trades l"
    if case == "as-of":
        return spark.sql(
            f"{listed} LEFT ASOF JOIN quotes r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k"
        )
    span = f"INTERVAL {within(quotes)} MICROSECONDS"
    near = f"r.t BETWEEN l.t - {span} AND l.t + {span}"
    return spark.sql(f"{listed} JOIN quotes r ON l.k = r.k AND {near}")


def in_millrace(spark: SparkSession, case: str, trades: str, quotes: str) -> Dataset:
    shutil.rmtree(DATA / "mill-asof", ignore_errors=True)
    ws = mr.open(DATA / "mill-asof", spark)
    left, right = ws.read_parquet(trades), ws.read_parquet(quotes)
    if case == "as-of":
        return left.join_asof(right, on="t", by="k")
    span = f"{within(quotes)} microseconds"
    return left.join_interval(
        right, left_on="t", right_on="t", lower=f"-{span}", upper=span, by="k"
    )


def in_duckdb(case: str, trades: str, quotes: str) -> duckdb.DuckDBPyRelation:
    connection = duckdb.connect(config={"threads": 2})
    listed = f"SELECT l.*, r.t AS t_right, r.bid, r.bid_no FROM '{trades}/*.parquet' l"
    right = f"'{quotes}/*.parquet' r"
    if case == "as-of":
        return connection.sql(f"{listed} ASOF LEFT JOIN {right} ON l.k = r.k AND l.t >= r.t")
    span = f"to_microseconds({within(quotes)})"
    near = f"r.t BETWEEN l.t - {span} AND l.t + {span}"
    return connection.sql(f"{listed} JOIN {right} ON l.k = r.k AND {near}")


def drained(relation: duckdb.DuckDBPyRelation) -> int:
    return sum(batch.num_rows for batch in relation.to_arrow_reader(131_072))


def check(spark: SparkSession, case: str, files: tuple[str, str]) -> int:
    """The rows of the result, after all engines agreed on them."""
    ours = (
        in_millrace(spark, case, *files).agg(n="count(*)", s="sum(bid_no)").to_arrow().to_pylist()
    )
    theirs = in_spark(spark, case, *files).selectExpr("count(*) AS n", "sum(bid_no) AS s")
    alone = in_duckdb(case, *files).aggregate("count(*) AS n, sum(bid_no)::BIGINT AS s")
    assert ours == theirs.toArrow().to_pylist() == alone.to_arrow_table().to_pylist(), case
    return int(ours[0]["n"])


def compare(spark: SparkSession, case: str, rows: int, rounds: int) -> dict[str, Any]:
    files = make_files(rows)
    out = check(spark, case, files)
    actions: dict[str, Callable[[], object]] = {
        "spark": lambda: (
            in_spark(spark, case, *files).write.format("noop").mode("overwrite").save()
        ),
        "millrace": lambda: in_millrace(spark, case, *files).run(),
        "duckdb": lambda: drained(in_duckdb(case, *files)),
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):  # What was checked has warmed everything up.
        for name, action in actions.items():
            times[name].append(timed(action))
    best = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "benchmark": "asof",
        "case": f"{case}, {rows:,} x {rows:,} rows, {out:,} out",
        "millrace_s": round(best["millrace"], 3),
        "peer_s": round(best["spark"], 3),
        "duckdb_s": round(best["duckdb"], 3),
        "ratio": round(best["spark"] / best["millrace"], 2),
        "of_duckdb": round(best["millrace"] / best["duckdb"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = start_session("asof")
    spark.conf.set("spark.sql.join.asofJoin.enabled", "true")
    spark.conf.set("spark.sql.join.sortMergeAsOfJoin.enabled", "true")
    table = Table("case", "Spark s", "Millrace s", "DuckDB s", "times Spark", "of DuckDB's time")
    for case in [arguments.case] if arguments.case else list(CASES):
        found = compare(spark, case, arguments.rows // CASES[case], arguments.rounds)
        print(json.dumps(found), flush=True)
        names = ("case", "peer_s", "millrace_s", "duckdb_s", "ratio", "of_duckdb")
        table.add_row(*(str(found[name]) for name in names))
    spark.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
