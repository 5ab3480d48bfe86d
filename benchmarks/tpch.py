"""The 22 TPC-H queries, beside Spark and DuckDB alone in the same run.

    .venv/bin/python benchmarks/tpch.py [--form dataset|sql|dataframe] [--scale 1]
        [--queries 1 5 21] [--rounds 1] [--warm-ups 1] [--results FILE] [--seconds-max 240]
        [--sail PYTHON]

Every engine reads the same Parquet files on the same cores and hands its answer over as an Arrow
table; the answers are compared. DuckDB runs `examples/tpch/sql`. The form says what the others run:

- dataset: Spark runs that SQL, Millrace runs `examples/tpch/queries`.
- sql: Spark and Millrace run that SQL.
- dataframe: Spark and Millrace run the same programs, `examples/tpch/dataframes`, with Spark's or
  Millrace's imports.

A query runs once before it is measured, so that code is compiled and files are in memory, and the
median of the rounds counts; large scales can do with `--warm-ups 0`. A long run can be made in
pieces: `--results` keeps the line of each query, leaves out the queries that are in the file, and
sums all of them up; `--seconds-max` begins no query after that time.

- Millrace: each run in a workspace of its own, so nothing is reused. What goes between stages,
  and the answer, are at rest when it is done. Listing the files is part of its time, and not of
  Spark's.
- Spark: 4.3 with its defaults, which include adaptive execution, and `--spark-memory` as its heap.
- Spark with Parquet between its stages, beside datasets alone: the queries as they are written for
  Millrace, over DataFrames of the columns that the query names. What a join or a group-by made is
  written to Parquet, and read back, when another join, group-by or sort needs it, once however many
  need it. Joins that Spark would broadcast are no stage of their own, and scans are not written.
- DuckDB: alone, with as many threads as Spark has slots.
- Sail, if PYTHON is that of an environment with `pysail` and `pyspark-client`: its server on the
  same machine, asked with the SQL text. Its tables are named before it is measured.

CPU seconds are of all processes of the benchmark while an engine answers. A JVM that compiles or
collects while another engine answers is counted there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.spark.session import slots, start_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cpu_seconds import cpu_by_kind
from examples.tpch.data import DATA, LARGE, SMALL, make_data
from examples.tpch.dataframes import programs
from examples.tpch.judges import (
    difference,
    duckdb_answer,
    duckdb_tables,
    order_of,
    spark_answer,
    spark_tables,
    sql_text,
)
from examples.tpch.queries import QUERIES
from examples.tpch.tables import Tables


class Staged:
    """A DataFrame with a dataset's methods, written to Parquet between its stages."""

    def __init__(self, frame: DataFrame, folder: Path, *, shuffled: bool = False) -> None:
        self.frame = frame
        self.folder = folder
        self.shuffled = shuffled
        self._settled: Staged | None = None

    def select(self, *columns: str) -> Staged:
        return self._with(self.frame.selectExpr(*columns))

    def filter(self, condition: str) -> Staged:
        return self._with(self.frame.where(condition))

    def with_columns(self, **columns: str) -> Staged:
        new = {name: functions.expr(text) for name, text in columns.items()}
        return self._with(self.frame.withColumns(new))

    def rename(self, **names: str) -> Staged:
        return self._with(self.frame.withColumnsRenamed(names))

    def drop(self, *columns: str) -> Staged:
        return self._with(self.frame.drop(*columns))

    def limit(self, count: int) -> Staged:
        return self._with(self.frame.limit(count))

    def sort(self, *orders: str) -> Staged:
        terms = [order.split(" ") for order in orders]
        columns = [
            functions.desc(name) if "DESC" in way else functions.asc(name) for name, *way in terms
        ]
        return Staged(self.settled().frame.orderBy(*columns), self.folder, shuffled=True)

    def group_by(self, *keys: str) -> StagedGroups:
        return StagedGroups(self.settled(), keys)

    def agg(self, **aggregates: str) -> Staged:
        return self.group_by().agg(**aggregates)

    def join(
        self,
        other: Staged,
        on: str | None = None,
        how: str = "inner",
        *,
        left_on: str | list[str] | None = None,
        right_on: str | list[str] | None = None,
        condition: str | None = None,
    ) -> Staged:
        left, right = self, other
        small = [right.frame, left.frame] if how == "inner" else [right.frame]
        broadcast = how == "cross" or min(map(_bytes, small)) <= _limit(left)
        if not broadcast:
            left, right = left.settled(), right.settled()
        ours, theirs = _names(on or left_on), _names(on or right_on)
        taken = {name: f"{name}_right" for name in left.frame.columns}
        renamed = right.frame.withColumnsRenamed(taken)
        tests = [
            f"{one} = {taken.get(two, two)}" for one, two in zip(ours, theirs, strict=True)
        ] + ([f"({condition})"] if condition else [])
        on_both = functions.expr(" AND ".join(tests) if tests else "true")
        joined = left.frame.join(renamed, on_both, "inner" if how == "cross" else how)
        if on and how not in ("semi", "anti"):
            joined = joined.drop(*(taken[name] for name in ours))
        shuffled = left.shuffled or right.shuffled or not broadcast
        return Staged(joined, self.folder, shuffled=shuffled)

    def settled(self) -> Staged:
        """The same rows, read from Parquet if they are not straight from files."""
        if not self.shuffled:
            return self
        if self._settled is None:
            path = str(self.folder / str(len(list(self.folder.iterdir()))))
            self.frame.write.parquet(path)
            self._settled = Staged(self.frame.sparkSession.read.parquet(path), self.folder)
        return self._settled

    def _with(self, frame: DataFrame) -> Staged:
        return Staged(frame, self.folder, shuffled=self.shuffled)


class StagedGroups:
    """Groups of a `Staged`."""

    def __init__(self, rows: Staged, keys: tuple[str, ...]) -> None:
        self.rows = rows
        self.keys = keys

    def agg(self, **aggregates: str) -> Staged:
        calls = [functions.expr(text).alias(name) for name, text in aggregates.items()]
        frame = self.rows.frame.groupBy(*self.keys).agg(*calls)
        return Staged(frame, self.rows.folder, shuffled=True)


def _names(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []


def _bytes(frame: DataFrame) -> int:
    """How large Spark takes a frame to be."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    return int(plan.stats().sizeInBytes())


def _limit(rows: Staged) -> int:
    """Up to which size Spark broadcasts."""
    spark = rows.frame.sparkSession
    jvm_conf = spark._jsparkSession.sessionState().conf()  # noqa: SLF001
    return int(jvm_conf.autoBroadcastJoinThreshold())


class Engines:
    """Each engine's way to answer a query from a folder of data."""

    def __init__(
        self, spark: SparkSession, folder: Path, scale: float, form: str, sail: Sail | None
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.scale = scale
        self.form = form
        self.frames = programs().frames(spark, folder)
        left_out = {"spark_parquet"} if form != "dataset" else set()
        left_out |= {"sail"} if sail is None else set()
        self.names = [name for name in ENGINES if name not in left_out]
        self.sail = sail
        spark_tables(spark, folder)

    def run(self, engine: str, number: int) -> tuple[float, float, pa.Table]:
        """An engine's seconds, CPU seconds, and answer. What it leaves is removed afterwards."""
        scratch = DATA / "tpch-scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        ways: dict[str, Callable[[int, Path], pa.Table]] = {
            "millrace": self._millrace,
            "spark": self._spark,
            "spark_parquet": self._staged,
            "duckdb": self._duckdb,
            "sail": self._sail,
        }
        started, cpu = time.perf_counter(), sum(cpu_by_kind())
        answer = ways[engine](number, scratch)
        took, cpu = time.perf_counter() - started, sum(cpu_by_kind()) - cpu
        shutil.rmtree(scratch)
        return took, cpu, answer

    def _millrace(self, number: int, scratch: Path) -> pa.Table:
        with mr.open(scratch, self.spark) as ws:
            if self.form == "dataset":
                return QUERIES[number](Tables.open(ws, self.folder)).to_arrow()
            if self.form == "dataframe":
                return cast(
                    "pa.Table", programs("millrace").query(number, ws, self.folder).toArrow()
                )
            for name in LARGE + SMALL:
                ws.view(name, str(self.folder / name))
            return ws.sql(sql_text(number, self.scale)).to_arrow()

    def _spark(self, number: int, _: Path) -> pa.Table:
        if self.form == "dataframe":
            return cast("pa.Table", programs().queries[number](self.frames).toArrow())
        return spark_answer(self.spark, self.folder, number)

    def _staged(self, number: int, scratch: Path) -> pa.Table:
        named = set(re.findall(r"\w+", sql_text(number, self.scale)))
        frames = {}
        for name in LARGE + SMALL:
            whole = self.spark.table(name)
            columns = [column for column in whole.columns if column in named]
            frames[name] = Staged(whole.select(*columns), scratch)
        tables = Tables(scale=self.scale, **cast("dict[str, Any]", frames))
        query = cast("Staged", QUERIES[number](tables))
        return query.frame.toArrow()

    def _duckdb(self, number: int, _: Path) -> pa.Table:
        connection = duckdb_tables(self.folder, threads=slots(self.spark, mr.Config()))
        return duckdb_answer(connection, self.folder, number)

    def _sail(self, number: int, scratch: Path) -> pa.Table:
        assert self.sail is not None
        text, answer = scratch / "query.sql", scratch / "answer"
        text.write_text(sql_text(number, self.scale), encoding="utf-8")
        self.sail.ask(text, answer)
        with pa.memory_map(str(answer)) as file:
            return pa.ipc.open_stream(file).read_all()


class Sail:
    """Sail's server and its client, in another Python."""

    def __init__(self, python: Path, folder: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("sail_child.py")), str(folder)]
        self._child = subprocess.Popen(
            [*command, *LARGE, *SMALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def ask(self, text: Path, answer: Path) -> None:
        """Let it answer a query into a file."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps([str(text), str(answer)]) + "\n")
        self._child.stdin.flush()
        self._answer()

    def close(self) -> None:
        """End both."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)

    def _answer(self) -> None:
        assert self._child.stdout is not None
        if not self._child.stdout.readline():
            raise SystemExit(f"Sail ended with {self._child.wait()}")


ENGINES = ("spark", "spark_parquet", "millrace", "duckdb", "sail")
FIELDS = {"spark": "peer"}
"""What the figures of an engine are called, if not by its name."""


def measure(engines: Engines, number: int, rounds: int, warm_ups: int) -> dict[str, Any]:
    names = engines.names
    times: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    answers: dict[str, pa.Table] = {}
    for _ in range(warm_ups + rounds):
        for name in names:
            took, cpu, answers[name] = engines.run(name, number)
            times[name].append(took)
            cpus[name].append(cpu)
    taken = {name: statistics.median(all_[warm_ups:]) for name, all_ in times.items()}
    used = {name: statistics.median(all_[warm_ups:]) for name, all_ in cpus.items()}
    wrong = {name: difference(answers[name], answers["duckdb"], order_of(number)) for name in names}
    if any(wrong.values()):
        raise SystemExit(f"query {number} has different answers: {wrong}")
    case = case_of(engines, number)
    rows = {"rows": answers["millrace"].num_rows, "load": round(os.getloadavg()[0], 1)}
    return line(case, engines.form, taken, used) | rows


def case_of(engines: Engines, number: int) -> str:
    return f"sf{engines.scale:g} q{number}"


def kept(results: Path | None) -> dict[str, dict[str, Any]]:
    """The lines of earlier pieces of a run, by their cases."""
    if results is None or not results.exists():
        return {}
    lines = [json.loads(text) for text in results.read_text(encoding="utf-8").splitlines()]
    return {one["case"]: one for one in lines}


def line(case: str, form: str, taken: dict[str, float], used: dict[str, float]) -> dict[str, Any]:
    figures = {
        "benchmark": "tpch",
        "case": case,
        "form": form,
        **{f"{FIELDS.get(name, name)}_s": round(took, 3) for name, took in taken.items()},
        **{f"{FIELDS.get(name, name)}_cpu_s": round(cpu, 2) for name, cpu in used.items()},
        "ratio": round(taken["spark"] / taken["millrace"], 2),
        "of_duckdb": round(taken["millrace"] / taken["duckdb"], 2),
    }
    if "sail" in taken:
        figures["ratio_sail"] = round(taken["sail"] / taken["millrace"], 2)
    if "spark_parquet" in taken:
        figures["ratio_parquet"] = round(taken["spark_parquet"] / taken["millrace"], 2)
    return figures


def total(engines: Engines, lines: list[dict[str, Any]]) -> dict[str, Any]:
    def sums(what: str) -> dict[str, float]:
        return {n: sum(one[f"{FIELDS.get(n, n)}_{what}"] for one in lines) for n in engines.names}

    case = f"sf{engines.scale:g} total of {len(lines)} queries"
    return line(case, engines.form, sums("s"), sums("cpu_s"))


def shown(engines: Engines, lines: list[dict[str, Any]]) -> Table:
    headings = {
        "case": "query",
        "peer_s": "Spark",
        "spark_parquet_s": "+ Parquet",
        "millrace_s": "Millrace",
        "duckdb_s": "DuckDB",
        "sail_s": "Sail",
        "peer_cpu_s": "Spark CPU",
        "millrace_cpu_s": "Millrace CPU",
        "duckdb_cpu_s": "DuckDB CPU",
        "sail_cpu_s": "Sail CPU",
        "ratio": "x Spark",
        "ratio_parquet": "x Parquet",
        "ratio_sail": "x Sail",
        "of_duckdb": "/ DuckDB",
    }
    headings = {name: text for name, text in headings.items() if name in lines[0]}
    title = f"TPC-H, {engines.form}s, scale factor {engines.scale:g}, seconds"
    table = Table(*headings.values(), title=title)
    for one in lines:
        case = one["case"].split(" ")[1]
        table.add_row(case, *(str(one[name]) for name in headings if name != "case"))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=("dataset", "sql", "dataframe"), default="dataset")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--queries", type=int, nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-ups", type=int, default=1)
    parser.add_argument("--spark-memory", default="4g")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--sail", type=Path, metavar="PYTHON")
    parser.add_argument("--seconds-max", type=float, default=float("inf"))
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds_max
    folder = make_data(asked.scale)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {asked.spark_memory} pyspark-shell"
    spark = start_session("tpch")
    sail = Sail(asked.sail, folder) if asked.sail else None
    engines = Engines(spark, folder, asked.scale, asked.form, sail)
    lines = {
        case: one
        for case, one in kept(asked.results).items()
        if case.startswith(f"sf{asked.scale:g} ")
    }
    for number in asked.queries:
        if case_of(engines, number) in lines or time.monotonic() > until:
            continue
        figures = measure(engines, number, asked.rounds, asked.warm_ups)
        lines[figures["case"]] = figures
        print(json.dumps(figures), flush=True)
        if asked.results:
            with asked.results.open("a", encoding="utf-8") as results:
                results.write(json.dumps(figures) + "\n")
    shown_lines = [*lines.values(), total(engines, [*lines.values()])]
    print(json.dumps(shown_lines[-1]), flush=True)
    if sail is not None:
        sail.close()
    spark.stop()
    Console().print(shown(engines, shown_lines))


if __name__ == "__main__":
    main()
