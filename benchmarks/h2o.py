"""h2o.ai's questions about groups and joins, beside Spark and DuckDB alone in the same run.

    .venv/bin/python benchmarks/h2o.py [--rows 10000000] [--parts groups joins] [--rounds 1]

The tables are those of h2o.ai's public benchmark of data frames, from numpy's chance: G1 with 100
groups of the small keys, J1 with a small, a medium and a big table to join. Each is one Parquet
file. Every engine answers the same SQL text. Spark drops the rows of its answer (`noop`), DuckDB's
are drained, and Millrace saves its own, each time in a workspace of its own, so nothing is reused.
A question runs once before it is measured, and the counts of rows are compared. The median of the
rounds counts. CPU seconds are those of Millrace's driver, JVM and workers together, and of DuckDB.
A line of JSON follows each question, and one for each part in total.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark.session import slots, start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import cpu_by_kind
from benchmarks.small_queries import QUESTIONS as GROUPS

DATA: Final = Path(__file__).parent / ".data"
FEW: Final = 100
MEDIUM, BIG = 1_000, 1_000_000
"""How many rows of J1's `x` there are to one of the medium and of the small table."""
JOINS: Final = {
    "small inner on int": "SELECT x.*, y.id4 AS id4_y, y.v2 FROM x JOIN small y ON x.id1 = y.id1",
    "medium inner on int": """SELECT x.*, y.id1 AS id1_y, y.id4 AS id4_y, y.id5 AS id5_y, y.v2
        FROM x JOIN medium y ON x.id2 = y.id2""",
    "medium outer on int": """SELECT x.*, y.id1 AS id1_y, y.id4 AS id4_y, y.id5 AS id5_y, y.v2
        FROM x LEFT JOIN medium y ON x.id2 = y.id2""",
    "medium inner on factor": """SELECT x.*, y.id1 AS id1_y, y.id2 AS id2_y, y.id4 AS id4_y, y.v2
        FROM x JOIN medium y ON x.id5 = y.id5""",
    "big inner on int": """SELECT x.*, y.id1 AS id1_y, y.id2 AS id2_y, y.id4 AS id4_y,
        y.id5 AS id5_y, y.id6 AS id6_y, y.v2 FROM x JOIN big y ON x.id3 = y.id3""",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of the clock and of CPU, and the rows of the answer."""

    seconds: float
    cpu: float
    rows: int


def named(numbers: np.ndarray[Any, Any], width: int) -> pa.Array:
    """Numbers as h2o.ai's texts: id001."""
    return pc.binary_join_element_wise(
        "id", pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0"), ""
    )


def group_tables(rows: int) -> dict[str, pa.Table]:
    """G1: keys of few and of many groups, and three values."""
    random, many = np.random.default_rng(108), max(1, rows // FEW)
    return {
        "x": pa.table(
            {
                "id1": named(random.integers(1, FEW + 1, rows), 3),
                "id2": named(random.integers(1, FEW + 1, rows), 3),
                "id3": named(random.integers(1, many + 1, rows), 10),
                "id4": random.integers(1, FEW + 1, rows).astype("int32"),
                "id5": random.integers(1, FEW + 1, rows).astype("int32"),
                "id6": random.integers(1, many + 1, rows).astype("int32"),
                "v1": random.integers(1, 6, rows).astype("int32"),
                "v2": random.integers(1, 16, rows).astype("int32"),
                "v3": np.round(random.random(rows) * 100, 6),
            }
        )
    }


def join_tables(rows: int) -> dict[str, pa.Table]:
    """J1: `x` and the tables to join; nine of ten keys of a table are in `x`."""
    random = np.random.default_rng(108)
    sizes = {"small": max(10, rows // BIG), "medium": max(100, rows // MEDIUM), "big": rows}

    def keys(size: int, count: int) -> np.ndarray[Any, Any]:
        return random.integers(1, size * 10 // 9 + 1, count).astype("int32")

    def table(count: int, *, unique: str | None) -> pa.Table:
        columns: dict[str, Any] = {}
        for number, (name, size) in enumerate(sizes.items(), start=1):
            if sizes.get(unique or "", rows) < size:
                continue
            some = random.permutation(size).astype("int32") + 1 if name == unique else None
            values = keys(size, count) if some is None else some
            columns |= {f"id{number}": values, f"id{number + 3}": named(values, 0)}
        value = "v1" if unique is None else "v2"
        return pa.table({**columns, value: np.round(random.random(count) * 100, 6)})

    return {"x": table(rows, unique=None)} | {
        name: table(size, unique=name) for name, size in sizes.items()
    }


def made(part: str, rows: int) -> dict[str, str]:
    """The files of a part, made once."""
    folder = DATA / f"h2o-{part}-{rows}"
    if not (folder / "_made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tables = group_tables(rows) if part == "groups" else join_tables(rows)
        for name, table in tables.items():
            pq.write_table(table, folder / f"{name}.parquet")
        (folder / "_made").touch()
    return {path.stem: str(path) for path in sorted(folder.glob("*.parquet"))}


def questions_of(part: str) -> dict[str, str]:
    """The SQL texts of a part."""
    if part == "joins":
        return JOINS
    return {
        name: text.replace("WHERE {} ", "").replace(" WHERE {}", "")
        for name, text in GROUPS.items()
    }


def taken(run: Callable[[], int]) -> Taken:
    """What one run takes."""
    started, cpu = time.perf_counter(), cpu_by_kind()
    rows = run()
    seconds = time.perf_counter() - started
    return Taken(seconds, sum(cpu_by_kind()) - sum(cpu), rows)


def engines(spark: SparkSession, files: dict[str, str], text: str) -> dict[str, Callable[[], int]]:
    """Each engine's way to answer a question."""
    for name, path in files.items():
        spark.read.parquet(path).createOrReplaceTempView(name)

    def on_spark() -> int:
        spark.sql(text).write.format("noop").mode("overwrite").save()
        return -1

    def in_millrace() -> int:
        shutil.rmtree(DATA / "mill-h2o", ignore_errors=True)
        with mr.open(DATA / "mill-h2o", spark, create=True) as ws:
            for name, path in files.items():
                ws.view(name, path)
            return int(ws.sql(text).run().rows)

    def in_duckdb() -> int:
        with duckdb.connect(config={"threads": slots(spark, mr.Config())}) as db:
            for name, path in files.items():
                db.execute(f"CREATE VIEW {name} AS FROM '{path}'")
            return sum(batch.num_rows for batch in db.sql(text).to_arrow_reader(131_072))

    return {"spark": on_spark, "millrace": in_millrace, "duckdb": in_duckdb}


def measured(spark: SparkSession, part: str, name: str, text: str, given: Any) -> dict[str, Any]:  # noqa: ANN401 - of argparse
    """A question on each engine: the line that is printed of it."""
    ways = engines(spark, made(part, given.rows), text)
    ran = {
        engine: [taken(run) for _ in range(given.rounds + 1)][1:] for engine, run in ways.items()
    }
    rows = {engine: runs[0].rows for engine, runs in ran.items() if engine != "spark"}
    assert len({*rows.values()}) == 1, f"{name}: engines have different rows: {rows}"
    seconds = {e: statistics.median(one.seconds for one in runs) for e, runs in ran.items()}
    cpu = {e: statistics.median(one.cpu for one in runs) for e, runs in ran.items()}
    return figures(f"{part}: {name}, {given.rows:,} rows", seconds, cpu)


def figures(case: str, seconds: dict[str, float], cpu: dict[str, float]) -> dict[str, Any]:
    """The line of a case."""
    return {
        "benchmark": "h2o",
        "case": case,
        "millrace_s": round(seconds["millrace"], 3),
        "peer_s": round(seconds["spark"], 3),
        "duckdb_s": round(seconds["duckdb"], 3),
        "ratio": round(seconds["spark"] / seconds["millrace"], 2),
        "of_duckdb": round(seconds["millrace"] / seconds["duckdb"], 2),
        "millrace_cpu_s": round(cpu["millrace"], 3),
        "peer_cpu_s": round(cpu["spark"], 3),
        "duckdb_cpu_s": round(cpu["duckdb"], 3),
    }


def total(case: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The line of all questions of a part."""
    names = {"millrace": "millrace", "spark": "peer", "duckdb": "duckdb"}
    seconds = {engine: sum(line[f"{name}_s"] for line in lines) for engine, name in names.items()}
    cpu = {engine: sum(line[f"{name}_cpu_s"] for line in lines) for engine, name in names.items()}
    return figures(case, seconds, cpu)


def main() -> None:
    """Measure, print a line of JSON for each question, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--parts", nargs="+", choices=("groups", "joins"), default=["groups", "joins"]
    )
    given = parser.parse_args()
    spark = start_session("h2o")
    table = Table(
        "case", "Spark s", "Millrace s", "DuckDB s", "x Spark", "/ DuckDB", "CPU s", "DuckDB CPU s"
    )
    for part in given.parts:
        lines = []
        for name, text in questions_of(part).items():
            lines.append(measured(spark, part, name, text, given))
            print(json.dumps(lines[-1]), flush=True)
        lines.append(total(f"{part}: all, {given.rows:,} rows", lines))
        print(json.dumps(lines[-1]), flush=True)
        shown = ("case", "peer_s", "millrace_s", "duckdb_s", "ratio", "of_duckdb")
        for line in lines:
            table.add_row(*(str(line[key]) for key in (*shown, "millrace_cpu_s", "duckdb_cpu_s")))
    spark.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
