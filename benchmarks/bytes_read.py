"""Bytes that TPC-H's queries read of their Parquet files, beside DuckDB alone in the same run.

    .venv/bin/python benchmarks/bytes_read.py [--scale 1] [--queries 1 5] [--order] [--many-tasks]

Both run in this process without Spark, DuckDB with one thread, as in a task. DuckDB counts the
bytes and the row groups in both. `--order` adds a table whose files are ordered by a day, with
doubles and nested columns, of which a filter on the day reads few row groups. With `--many-tasks`
bytes of scans whose rows go on as they are do not count, because no engine reads them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.engine import duckdb_engine, duckdb_instances
from millrace.execute.query_run import QueryRun
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TaskTry, TaskWork, Watch
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.tpch.data import make_data
from examples.tpch.judges import duckdb_answer, duckdb_tables
from examples.tpch.queries import QUERIES
from examples.tpch.tables import Tables

PROFILE = "SET enable_profiling = 'no_output'"
DAYS = 365


@dataclass(slots=True)
class Reading:
    """What queries read of files."""

    bytes: int = 0
    groups: int = 0
    groups_in_all: int = 0
    seconds: float = 0.0

    def add(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Count the last query of a connection."""
        profile = json.loads(connection.get_profiling_information(format="json"))
        self.bytes += profile["io"]["total_bytes_read"]
        self.groups += profile["query"].get("total_row_groups_scanned", 0)
        self.groups_in_all += profile["query"].get("total_row_groups_to_scan", 0)


class HereRunner:
    """Runs tasks one after the other in this process."""

    def slots(self) -> int:
        """As many as a small machine has."""
        return 2

    def run(
        self, work: TaskWork, tasks: int, schema: pa.Schema, *, title: str, watch: Watch
    ) -> pa.Table:
        """Run all tasks."""
        del title
        watch()
        rows = [batch for number in range(tasks) for batch in work(TaskTry(number, 0))]
        return pa.Table.from_batches(rows, schema)

    def about(self) -> Mapping[str, Any]:
        """Nothing of interest."""
        return {"versions": {}, "master": "here"}


class NoFrames:
    """A query that reads files alone."""

    def __init__(self, plan: Any) -> None:  # noqa: ANN401 - a node
        self.plan = plan
        self.shuffles: dict[int, Any] = {}
        self.reports: tuple[Any, ...] = ()

    def rely(self, *_: object) -> None:
        """Nothing is saved."""

    def save_again(self, *_: object) -> None:
        """Nothing is saved."""


@contextmanager
def counting(reading: Reading) -> Iterator[None]:
    """Count what the engine reads in tasks."""
    borrowed = duckdb_instances.borrowed

    @contextmanager
    def profiled(settings: Any) -> Iterator[duckdb.DuckDBPyConnection]:  # noqa: ANN401 - of the engine
        with borrowed(settings) as connection:
            connection.execute(PROFILE)
            yield connection
            reading.add(connection)

    vars(duckdb_engine)["borrowed"] = profiled
    try:
        yield
    finally:
        vars(duckdb_engine)["borrowed"] = borrowed


def millrace_reading(query: mr.Dataset, workspace: ShuffleWorkspace) -> Reading:
    """What a dataset reads of files."""
    reading, plan = Reading(), query._plan  # noqa: SLF001 - there is no other way to run it here
    started = time.perf_counter()
    with counting(reading):
        run = QueryRun(HereRunner(), workspace, NoFrames(plan), zone="UTC", reuse=False)
        run.finish()
        list(run.batches())
    reading.seconds = time.perf_counter() - started
    return reading


def duckdb_reading(connection: duckdb.DuckDBPyConnection, run: Any) -> Reading:  # noqa: ANN401 - a call
    """What DuckDB alone reads."""
    reading = Reading()
    connection.execute(PROFILE)
    started = time.perf_counter()
    run()
    reading.seconds = time.perf_counter() - started
    reading.add(connection)
    return reading


def ordered_table(folder: Path) -> Path:
    """Two million events of a year in the order of their day, with doubles and nested columns."""
    path = folder / "events.parquet"
    rows = 2_000_000
    with duckdb.connect() as db:
        db.execute(
            f"""COPY (SELECT (i * {DAYS} // {rows})::INTEGER AS day, random() AS value,
                {{'a': i, 'b': 'text ' || i}} AS nested, make_timestamp_ns(i * 1000) AS moment
                FROM range({rows}) t(i)) TO '{path}' (ROW_GROUP_SIZE 20000)"""
        )
    assert pq.ParquetFile(path).metadata.num_row_groups > DAYS // 4
    return path


@contextmanager
def opened(folder: Path, *, many_tasks: bool) -> Iterator[tuple[mr.Workspace, ShuffleWorkspace]]:
    """A workspace, and what a query needs of it."""
    config = mr.Config(one_task_bytes_max=1) if many_tasks else mr.Config()
    with mr.open(folder / "mill", config=config, create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token="none", loopback=True)  # noqa: S106 - nobody asks
        agents = folders.agents(config, lambda _: None)
        yield (
            ws,
            ShuffleWorkspace(
                store=runtime_of(ws).store,
                folders=folders,
                config=config,
                agents=agents,
                keep_alive=KeepAlive(agents),
            ),
        )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--queries", type=int, nargs="*", default=sorted(QUERIES))
    parser.add_argument("--order", action="store_true")
    parser.add_argument("--many-tasks", action="store_true", help="cut every plan into stages")
    arguments = parser.parse_args()
    data = make_data(arguments.scale)
    shown = Table(
        "query", "Millrace MB", "DuckDB MB", "ratio", "row groups", "DuckDB's", "s", "DuckDB s"
    )
    console = Console()
    total = [0, 0]

    def add(name: str, ours: Reading, theirs: Reading) -> None:
        total[0] += ours.bytes
        total[1] += theirs.bytes
        shown.add_row(
            name,
            f"{ours.bytes / 1e6:.2f}",
            f"{theirs.bytes / 1e6:.2f}",
            f"{ours.bytes / max(1, theirs.bytes):.2f}",
            f"{ours.groups} of {ours.groups_in_all}",
            f"{theirs.groups} of {theirs.groups_in_all}",
            f"{ours.seconds:.2f}",
            f"{theirs.seconds:.2f}",
        )

    with (
        tempfile.TemporaryDirectory() as name,
        opened(Path(name), many_tasks=arguments.many_tasks) as (ws, workspace),
    ):
        tables = Tables.open(ws, data)
        db = duckdb_tables(data, threads=1)
        for number in arguments.queries:
            query = QUERIES[number](tables)
            ours = millrace_reading(query, workspace)
            theirs = duckdb_reading(db, lambda number=number: duckdb_answer(db, data, number))
            add(f"Q{number}", ours, theirs)
        if arguments.order:
            path = ordered_table(Path(name))
            events = ws.read_parquet(path).filter("day = 200")
            for columns in ("sum(value)", "count(moment)", "max(day)"):
                ours = millrace_reading(events.agg(x=columns), workspace)
                text = f"SELECT {columns} FROM '{path}' WHERE day = 200"
                theirs = duckdb_reading(db, lambda text=text: db.sql(text).fetchall())
                add(f"one day, {columns}", ours, theirs)
    console.print(shown)
    console.print(f"in all {total[0] / 1e6:.1f} MB, DuckDB {total[1] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
