"""Bytes that TPC-H's queries read of their Parquet files, beside DuckDB alone in the same run.

    .venv/bin/python benchmarks/bytes_read.py [--tpcds] [--scale 1] [--queries 1 5] [--order]
        [--many-tasks]

With `--tpcds` they are the 99 queries of TPC-DS, as SQL text. A line of JSON follows the table.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
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
from examples.tpcds import data as tpcds_data
from examples.tpcds.judges import name_tables
from examples.tpch.data import LARGE, SMALL, make_data
from examples.tpch.judges import duckdb_answer
from examples.tpch.queries import QUERIES
from examples.tpch.tables import Tables

PROFILE = "SET enable_profiling = 'no_output'"
DAYS = 365
MORE = 1.1


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

    def slots_of_host(self) -> int:
        """Threads add nothing to what is read."""
        return 1

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
    def profiled(
        settings: Any,  # noqa: ANN401 - of the engine
        sql: str = "",
        *,
        threads: int = 1,
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        with borrowed(settings, sql, threads=threads) as connection:
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


Asked = Iterator[tuple[str, mr.Dataset, Callable[[], object]]]
"""A query's name, its dataset, and the same on DuckDB."""


def tpch_queries(
    ws: mr.Workspace, db: duckdb.DuckDBPyConnection, scale: float, numbers: Sequence[int]
) -> Asked:
    """Queries of TPC-H as datasets."""
    data = make_data(scale)
    tables = Tables.open(ws, data)
    db_tables(db, {name: f"{data / name}/*.parquet" for name in LARGE + SMALL})
    for number in numbers or sorted(QUERIES):
        query = QUERIES[number](tables)
        yield f"Q{number}", query, partial(duckdb_answer, db, data, number)


def tpcds_queries(
    ws: mr.Workspace, db: duckdb.DuckDBPyConnection, scale: float, numbers: Sequence[int]
) -> Asked:
    """Queries of TPC-DS as SQL text."""
    data = tpcds_data.make_data(scale)
    name_tables(ws, data)
    db_tables(db, {name: str(path) for name, path in tpcds_data.tables(data).items()})
    for number in numbers or tpcds_data.QUERIES:
        query = ws.sql(tpcds_data.query_text(data, number))
        text = (data / "queries" / f"q{number:02}.sql").read_text(encoding="utf-8")
        yield f"Q{number}", query, partial(rows_on, db, text)


def ordered_queries(ws: mr.Workspace, db: duckdb.DuckDBPyConnection, folder: Path) -> Asked:
    """A day of a table in the order of days."""
    path = ordered_table(folder)
    events = ws.read_parquet(path).filter("day = 200")
    for columns in ("sum(value)", "count(moment)", "max(day)"):
        text = f"SELECT {columns} FROM '{path}' WHERE day = 200"
        query = events.agg(x=columns)
        yield f"one day, {columns}", query, partial(rows_on, db, text)


def rows_on(db: duckdb.DuckDBPyConnection, text: str) -> object:
    """What DuckDB answers to a text."""
    return db.sql(text).fetchall()


def db_tables(db: duckdb.DuckDBPyConnection, paths: Mapping[str, str]) -> None:
    """Let DuckDB see the tables of files."""
    for name, path in paths.items():
        db.execute(f"CREATE VIEW {name} AS FROM '{path}'")


def main() -> None:
    """Measure, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tpcds", action="store_true")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--queries", type=int, nargs="*", default=())
    parser.add_argument("--order", action="store_true")
    parser.add_argument("--many-tasks", action="store_true", help="cut every plan into stages")
    given = parser.parse_args()
    shown = Table(
        "query", "Millrace MB", "DuckDB MB", "ratio", "row groups", "DuckDB's", "s", "DuckDB s"
    )
    total, more = [0, 0], 0
    with (
        tempfile.TemporaryDirectory() as name,
        opened(Path(name), many_tasks=given.many_tasks) as (ws, workspace),
    ):
        db = duckdb.connect(config={"threads": 1})
        queries = tpcds_queries if given.tpcds else tpch_queries
        asked = [queries(ws, db, given.scale, given.queries)]
        asked += [ordered_queries(ws, db, Path(name))] if given.order else []
        for title, query, on_duckdb in chain(*asked):
            ours, theirs = millrace_reading(query, workspace), duckdb_reading(db, on_duckdb)
            total = [total[0] + ours.bytes, total[1] + theirs.bytes]
            more += ours.bytes > theirs.bytes * MORE
            print(title, ours, theirs, file=sys.stderr, flush=True)
            shown.add_row(
                title,
                f"{ours.bytes / 1e6:.2f}",
                f"{theirs.bytes / 1e6:.2f}",
                f"{ours.bytes / max(1, theirs.bytes):.2f}",
                f"{ours.groups} of {ours.groups_in_all}",
                f"{theirs.groups} of {theirs.groups_in_all}",
                f"{ours.seconds:.2f}",
                f"{theirs.seconds:.2f}",
            )
    Console().print(shown)
    figures = {
        "benchmark": "bytes_read",
        "case": f"{'tpcds' if given.tpcds else 'tpch'} sf{given.scale:g}",
        "queries": shown.row_count,
        "mb": round(total[0] / 1e6, 1),
        "duckdb_mb": round(total[1] / 1e6, 1),
        "ratio": round(total[0] / max(1, total[1]), 3),
        "queries_over_a_tenth_more": more,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
