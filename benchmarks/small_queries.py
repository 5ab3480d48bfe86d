"""What a query costs beside its rows: h2o.ai's ten group-bys over a million rows, warm.

    .venv/bin/python benchmarks/small_queries.py [--rows 1000000] [--rounds 3]

Millrace, Spark and DuckDB alone answer the same SQL text over one Parquet file, in this process'
session, and hand Arrow tables over. A condition that all rows meet is another one each time, so
nothing is reused. The median of the rounds counts, after one that compares the answers. CPU seconds
are of this process, of Spark's JVM and of its Python workers. A line of JSON follows the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark.session import slots, start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import KINDS, cpu_by_kind
from examples.tpcds.judges import difference

QUESTIONS: Final = {
    "q1": "SELECT id1, sum(v1) AS v1 FROM x WHERE {} GROUP BY id1",
    "q2": "SELECT id1, id2, sum(v1) AS v1 FROM x WHERE {} GROUP BY id1, id2",
    "q3": "SELECT id3, sum(v1) AS v1, avg(v3) AS v3 FROM x WHERE {} GROUP BY id3",
    "q4": "SELECT id4, avg(v1) AS v1, avg(v2) AS v2, avg(v3) AS v3 FROM x WHERE {} GROUP BY id4",
    "q5": "SELECT id6, sum(v1) AS v1, sum(v2) AS v2, sum(v3) AS v3 FROM x WHERE {} GROUP BY id6",
    "q6": "SELECT id4, id5, median(v3) AS m, stddev(v3) AS s FROM x WHERE {} GROUP BY id4, id5",
    "q7": "SELECT id3, max(v1) - min(v2) AS range FROM x WHERE {} GROUP BY id3",
    "q8": """SELECT id6, v3 FROM (SELECT id6, v3,
        row_number() OVER (PARTITION BY id6 ORDER BY v3 DESC) AS n FROM x WHERE {}) y
        WHERE n <= 2""",
    "q9": "SELECT id2, id4, pow(corr(v1, v2), 2) AS r2 FROM x WHERE {} GROUP BY id2, id4",
    "q10": """SELECT id1, id2, id3, id4, id5, id6, sum(v3) AS v3, count(*) AS n FROM x WHERE {}
        GROUP BY id1, id2, id3, id4, id5, id6""",
}
GROUPS: Final = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the clock, and of CPU by the kind of process."""

    seconds: float
    cpu: tuple[float, ...]


def make_table(path: Path, rows: int) -> None:
    """The table of h2o.ai's benchmark, from DuckDB's own chance."""
    few, many = GROUPS, max(1, rows // GROUPS)
    with duckdb.connect(config={"threads": 1}) as db:
        db.execute("SELECT setseed(0.5)")
        db.execute(
            f"""COPY (SELECT
                format('id{{:03d}}', 1 + (random() * {few})::INTEGER % {few}) AS id1,
                format('id{{:03d}}', 1 + (random() * {few})::INTEGER % {few}) AS id2,
                format('id{{:010d}}', 1 + (random() * {many})::INTEGER % {many}) AS id3,
                1 + (random() * {few})::INTEGER % {few} AS id4,
                1 + (random() * {few})::INTEGER % {few} AS id5,
                1 + (random() * {many})::INTEGER % {many} AS id6,
                1 + (random() * 5)::INTEGER % 5 AS v1,
                1 + (random() * 15)::INTEGER % 15 AS v2,
                round(random() * 100, 6) AS v3
                FROM range({rows})) TO '{path}'"""
        )


def cost(run: Callable[[], pa.Table]) -> Cost:
    """What one run takes."""
    started, cpu = time.perf_counter(), cpu_by_kind()
    run()
    seconds = time.perf_counter() - started
    return Cost(seconds, tuple(b - a for a, b in zip(cpu, cpu_by_kind(), strict=True)))


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    given = parser.parse_args()
    spark, fresh = start_session("small queries"), count(1)
    shown = Table("question", "Spark s", "Millrace s", "DuckDB s", *(f"{p} CPU s" for p in KINDS))
    totals: dict[str, float] = {"spark": 0.0, "millrace": 0.0, "duckdb": 0.0}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.parquet"
        make_table(path, given.rows)
        db = duckdb.connect(config={"threads": slots(spark, mr.Config())})
        db.execute(f"CREATE VIEW x AS FROM '{path}'")
        spark.read.parquet(str(path)).createOrReplaceTempView("x")
        with mr.open(Path(name) / "mill", spark, create=True) as ws:
            ws.view("x", str(path))
            for question in given.questions:
                engines: dict[str, Callable[[str], pa.Table]] = {
                    "spark": lambda text: spark.sql(text).toArrow(),
                    "millrace": lambda text: ws.sql(text).to_arrow(),
                    "duckdb": lambda text: db.sql(text).to_arrow_table(),
                }
                costs = measured(engines, QUESTIONS[question], fresh, given.rounds)
                for engine, taken in costs.items():
                    totals[engine] += taken.seconds
                cells = [f"{taken.seconds:.3f}" for taken in costs.values()]
                cells += [f"{part:.3f}" for part in costs["millrace"].cpu]
                shown.add_row(question, *cells)
                print(question, *cells, file=sys.stderr, flush=True)
    spark.stop()
    Console().print(shown)
    figures = {f"{engine}_s": round(seconds, 2) for engine, seconds in totals.items()}
    print(json.dumps({"benchmark": "small_queries", "rows": given.rows, **figures}))


def measured(
    engines: dict[str, Callable[[str], pa.Table]], question: str, fresh: count[int], rounds: int
) -> dict[str, Cost]:
    """The middle cost of a question on each engine; all must have the same answer."""

    def text() -> str:
        return question.format(f"v1 > -{next(fresh)}")

    answers = {engine: run(text()) for engine, run in engines.items()}
    for engine, answer in answers.items():
        unlike = difference(answer, answers["duckdb"])
        if unlike:
            raise SystemExit(f"{engine} has another answer to {question}: {unlike}")
    costs = {}
    for engine, run in engines.items():
        taken = [cost(lambda run=run: run(text())) for _ in range(rounds)]  # type: ignore[misc]
        seconds = statistics.median(one.seconds for one in taken)
        cpu = zip(*(one.cpu for one in taken), strict=True)
        costs[engine] = Cost(seconds, tuple(statistics.mean(part) for part in cpu))
    return costs


if __name__ == "__main__":
    main()
