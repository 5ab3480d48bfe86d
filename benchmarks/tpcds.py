"""The 99 TPC-DS queries as SQL text, beside Spark in the same run.

    .venv/bin/python benchmarks/tpcds.py [--scale 1] [--queries 1 5 21] [--warm-ups 1] [--no-spark]

Both sides read the same Parquet files on the same cores and hand their answers over as Arrow
tables; the answers are compared with DuckDB's own. Millrace runs each query in a workspace of its
own, so nothing is reused, and its answer is at rest when it is done. Spark is 4.3 with its
defaults, which include adaptive execution. A line of JSON follows the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark.session import slots, start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.tpcds.data import QUERIES, make_data, query_text
from examples.tpcds.judges import (
    difference,
    duckdb_answer,
    name_tables,
    spark_answer,
    spark_tables,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a query took on both sides; `note` says what is wrong, `spark_parts` what Spark ran."""

    number: int
    seconds: float | None
    spark_seconds: float | None
    spark_parts: int
    note: str


def timed(run: Callable[[], pa.Table], warm_ups: int) -> tuple[pa.Table, float]:
    """An answer and the seconds of its last run."""
    for _ in range(warm_ups):
        run()
    start = time.perf_counter()
    answer = run()
    return answer, time.perf_counter() - start


def millrace_answer(spark: SparkSession, folder: Path, number: int) -> tuple[pa.Table, int]:
    """The answer to a query in a workspace of its own, and how many operators ran on Spark."""
    place = Path(tempfile.mkdtemp())
    try:
        with mr.open(place / "mill", spark) as ws:
            name_tables(ws, folder)
            query = ws.sql(query_text(folder, number))
            return query.to_arrow(), str(query.explain()).count("on Spark")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(
    spark: SparkSession, folder: Path, number: int, *, warm_ups: int, beside: bool
) -> Measured:
    """One query on both sides."""
    note, seconds, theirs, parts = "", None, None, [0]

    def ours() -> pa.Table:
        answer, parts[0] = millrace_answer(spark, folder, number)
        return answer

    try:
        answer, seconds = timed(ours, warm_ups)
        note = difference(answer, duckdb_answer(folder, number)) or ""
    except mr.MillraceError as error:
        note = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if beside:
        _, theirs = timed(lambda: spark_answer(spark, folder, number), warm_ups)
    return Measured(
        number=number, seconds=seconds, spark_seconds=theirs, spark_parts=parts[0], note=note
    )


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--queries", type=int, nargs="*", default=list(QUERIES))
    parser.add_argument("--warm-ups", type=int, default=0)
    parser.add_argument("--no-spark", action="store_true")
    given = parser.parse_args()
    folder = make_data(given.scale)
    spark = start_session("tpcds")
    spark_tables(spark, folder)
    rows = []
    for number in given.queries:
        rows.append(
            measure(spark, folder, number, warm_ups=given.warm_ups, beside=not given.no_spark)
        )
        print(rows[-1], file=sys.stderr, flush=True)
    show(rows)
    print(json.dumps(summary(rows, given.scale, slots(spark, mr.Config()))))


def show(rows: list[Measured]) -> None:
    """The table."""
    table = Table("query", "where", "millrace s", "spark s", "times", "note")
    for row in rows:
        where = "native" if row.spark_parts == 0 else f"{row.spark_parts} on Spark"
        ratio = (
            f"{row.spark_seconds / row.seconds:.1f}" if row.spark_seconds and row.seconds else ""
        )
        shown = [f"{s:.2f}" if s else "" for s in (row.seconds, row.spark_seconds)]
        table.add_row(str(row.number), where, *shown, ratio, row.note[:60])
    Console().print(table)


def summary(rows: list[Measured], scale: float, cores: int) -> dict[str, object]:
    """The figures of all queries."""
    both = [row for row in rows if row.seconds and row.spark_seconds]
    ours = sum(row.seconds or 0 for row in both)
    theirs = sum(row.spark_seconds or 0 for row in both)
    return {
        "benchmark": "tpcds",
        "scale": scale,
        "cores": cores,
        "queries": len(rows),
        "right": sum(not row.note for row in rows),
        "native": sum(row.spark_parts == 0 and row.seconds is not None for row in rows),
        "millrace_s": round(sum(row.seconds or 0 for row in rows), 1),
        "spark_s": round(theirs, 1),
        "times": round(theirs / ours, 2) if ours else None,
    }


if __name__ == "__main__":
    main()
