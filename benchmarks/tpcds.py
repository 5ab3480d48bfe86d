"""The 99 TPC-DS queries as SQL text, beside Spark in the same run.

    .venv/bin/python benchmarks/tpcds.py [--scale 1] [--queries 1-10 21] [--warm-ups 1] [--no-spark]
        [--results FILE] [--seconds-max 240] [--spark-memory 4g]

Both sides read the same Parquet files on the same cores and hand their answers over as Arrow
tables; the answers are compared with DuckDB's own, and with Spark's. Millrace runs each query in a
workspace of its own, so nothing is reused, and its answer is at rest when it is done. Spark is 4.3
with its defaults, which include adaptive execution. A line of JSON follows the table.

A long run can be made in pieces: `--results` keeps a line of JSON for each query, leaves out the
queries that are in the file, and shows all of them; `--seconds-max` begins no query after that
time. Each piece begins with a few queries that do not count, on both sides, because a JVM is slow
before it has compiled what it runs. CPU seconds are of this process and all that it started:
Spark's JVM and Python's workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark.session import slots, start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import cpu_by_kind
from examples.tpcds.data import QUERIES, make_data, query_text
from examples.tpcds.judges import (
    difference,
    duckdb_answer,
    name_tables,
    spark_answer,
    spark_tables,
)

FIRST: Final = (3, 7, 52)
"""Queries that a session runs before it measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a query took on both sides; `note` says what is wrong, `spark_parts` what Spark ran."""

    number: int
    seconds: float | None
    cpu_seconds: float | None
    spark_seconds: float | None
    spark_cpu_seconds: float | None
    spark_parts: int
    note: str


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, and what its last run took."""

    answer: pa.Table
    seconds: float
    cpu_seconds: float


def timed(run: Callable[[], pa.Table], warm_ups: int) -> Timed:
    """An answer and the seconds of its last run."""
    for _ in range(warm_ups):
        run()
    start, cpu = time.perf_counter(), sum(cpu_by_kind())
    answer = run()
    return Timed(answer, time.perf_counter() - start, sum(cpu_by_kind()) - cpu)


def millrace_answer(spark: SparkSession, folder: Path, number: int) -> pa.Table:
    """The answer to a query in a workspace of its own."""
    with described(spark, folder, number) as query:
        return query.to_arrow()


@contextmanager
def described(spark: SparkSession, folder: Path, number: int) -> Iterator[mr.Dataset]:
    """A query in a workspace that is removed afterwards."""
    place = Path(tempfile.mkdtemp())
    try:
        with mr.open(place / "mill", spark) as ws:
            name_tables(ws, folder)
            yield ws.sql(query_text(folder, number))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(
    spark: SparkSession, folder: Path, number: int, *, warm_ups: int, beside: bool
) -> Measured:
    """One query on both sides."""
    notes, parts = [], 0
    ours = theirs = None
    try:
        with described(spark, folder, number) as query:
            parts = str(query.explain()).count("on Spark")
        ours = timed(lambda: millrace_answer(spark, folder, number), warm_ups)
        notes.append(difference(ours.answer, duckdb_answer(folder, number)))
    except mr.MillraceError as error:
        notes.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    if beside:
        try:
            theirs = timed(lambda: spark_answer(spark, folder, number), warm_ups)
        except (PySparkException, Py4JError) as error:
            notes.append(f"Spark failed: {type(error).__name__}: {str(error)[:200]}")
        unlike = ours and theirs and difference(ours.answer, theirs.answer)
        notes.append(f"unlike Spark: {unlike}" if unlike else None)
    return Measured(
        number=number,
        seconds=round(ours.seconds, 3) if ours else None,
        cpu_seconds=round(ours.cpu_seconds, 2) if ours else None,
        spark_seconds=round(theirs.seconds, 3) if theirs else None,
        spark_cpu_seconds=round(theirs.cpu_seconds, 2) if theirs else None,
        spark_parts=parts,
        note="; ".join(filter(None, notes)),
    )


def numbers(text: str) -> range:
    """Queries as they are asked for: one, or first and last."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def kept(results: Path | None) -> dict[int, Measured]:
    """What earlier pieces of a run measured."""
    if results is None or not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {line["number"]: Measured(**line) for line in lines}


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--queries", type=numbers, nargs="*", default=[QUERIES])
    parser.add_argument("--warm-ups", type=int, default=0)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seconds-max", type=float, default=float("inf"))
    parser.add_argument("--spark-memory", default="4g")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds_max
    folder = make_data(given.scale)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {given.spark_memory} pyspark-shell"
    spark = start_session("tpcds")
    spark_tables(spark, folder)
    rows = kept(given.results)
    asked = [number for some in given.queries for number in some if number not in rows]
    for number in FIRST if asked else ():
        measure(spark, folder, number, warm_ups=0, beside=not given.no_spark)
    for number in asked:
        if time.monotonic() > until:
            break
        rows[number] = measure(
            spark, folder, number, warm_ups=given.warm_ups, beside=not given.no_spark
        )
        line = json.dumps(asdict(rows[number]))
        print(line, file=sys.stderr, flush=True)
        if given.results:
            with given.results.open("a", encoding="utf-8") as results:
                results.write(line + "\n")
    measured = [rows[number] for number in sorted(rows)]
    show(measured)
    print(json.dumps(summary(measured, given.scale, slots(spark, mr.Config()))))


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
    ours, theirs, our_cpu, their_cpu = (
        sum(getattr(row, name) or 0 for row in both)
        for name in ("seconds", "spark_seconds", "cpu_seconds", "spark_cpu_seconds")
    )
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
        "times_cpu": round(their_cpu / our_cpu, 2) if our_cpu else None,
    }


if __name__ == "__main__":
    main()
