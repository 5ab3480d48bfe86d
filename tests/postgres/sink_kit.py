"""A job that commits to a table of PostgreSQL, in processes that are killed in it.

A cheap function refuses some rows; the others are in the table, and what was refused is a dead
letter.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from tests.postgres.postgres_kit import Postgres
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    QUICK,
    Bench,
    dead,
    fill,
    hop,
    map_step,
    noted_rows,
)

from millrace.config import Config
from millrace.durations import ms
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import PostgresSink
from millrace.pipeline.sinks import check_sink
from millrace.tables.postgres.database import Database, Session
from millrace.tables.postgres.database_address import database_address
from millrace.tables.postgres.names_in_sql import table_name
from millrace.tables.postgres.placed_rows import PlacedRows, prepare_places
from millrace.tables.postgres.postgres_table import PostgresTable
from millrace.tables.postgres.target_table import TargetTable

PROGRESS = "jobs/an-id/j/out/progress-0"
ROWS, BATCH_ROWS, ARMING = 40, 4, 21
CONFIG = QUICK.with_options(job_turn_ms=60_000, job_publish_bytes=1, database_wait=20)
"""Each batch is committed by itself."""
REFUSED = tuple(range(3, ROWS, 7))
EXPECTED = [-value for value in range(ROWS) if value not in REFUSED]
multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])


def new_name(prefix: str = "t") -> str:
    return f"{prefix}_{secrets.token_hex(6)}"


def asked(server: Postgres, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """What a client that knows nothing of Millrace finds."""
    with psycopg.connect(server.url, autocommit=True) as db:
        cursor = db.execute(sql, values)
        return cursor.fetchall() if cursor.description else []


def shown(server: Postgres, table: str, column: str = "x") -> list[Any]:
    return [row[0] for row in asked(server, f'SELECT "{column}" FROM "{table}" ORDER BY 1')]


def kill_connections(server: Postgres) -> None:
    asked(
        server,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'millrace' AND pid != pg_backend_pid()",
    )


def refuse_some(row: dict[str, Any]) -> dict[str, Any]:
    if row["x"] == ARMING and os.environ.get("ARMED_LATER"):
        os.environ[VARIABLE] = os.environ["ARMED_LATER"]
    if row["x"] in REFUSED:
        raise ValueError("refused")
    return {"x": -row["x"]}


def sink_to(
    url: str, table: str, keys: Sequence[str] = (), schema: pa.Schema = NUMBERS
) -> PostgresSink:
    return PostgresSink(
        name="out",
        schema=schema,
        target=PostgresTable(
            address=database_address("a test", url, None),
            name=table_name("a test", table),
            keys=tuple(keys),
        ),
    )


def job_hops(url: str, table: str, keys: Sequence[str] = ()) -> list[Hop]:
    function = map_step("f", refuse_some, retries=0, on_error="dead_letter", batch_rows=BATCH_ROWS)
    return [hop(function, sink=sink_to(url, table, keys))]


def bench(folder: Path, home: Broker, url: str, table: str, keys: Sequence[str] = ()) -> Bench:
    made = job_hops(url, table, keys)
    for each in made:
        check_sink(each, home, CONFIG)
    return Bench(folder, made, CONFIG, home, progress={"out": PROGRESS + table})


def prepare(folder: str) -> None:
    home = EmbeddedBroker.open(f"{folder}/mill")
    fill(home, range(ROWS))
    home.close()


def run_job(
    folder: str, url: str, table: str, keys: Sequence[str], point: str | None, later: str | None
) -> None:
    """Run the job to its end, or die at a point: the first time, or in the middle."""
    home = EmbeddedBroker.open(f"{folder}/mill")
    for lease in home.leases(hops.ROOT):
        home.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    started = bench(Path(folder), home, url, table, keys).start()
    if point is not None:
        os.environ[VARIABLE] = point
    if later is not None:
        os.environ["ARMED_LATER"] = later
    started.run()
    home.close()


def judge(home: Broker, server: Postgres, table: str) -> None:
    """Each row is in the table once, and each refused one is one dead letter."""
    assert shown(server, table) == sorted(EXPECTED)
    assert [letter["row"]["x"] for letter in dead(home, "f")] == list(REFUSED)
    (source,) = home.list(hops.output_prefix(JOB, "src"))
    assert home.backlog(hops.step_root(JOB, "out"), source.name) == 0
    assert noted_rows(home) == len(EXPECTED)


def judge_at_rest(folder: Path, server: Postgres, table: str) -> None:
    home = EmbeddedBroker.open(str(folder / "mill"))
    judge(home, server, table)
    home.close()


@dataclass
class Writers:
    """Writers of units of one table, as workers are."""

    url: str
    table: str
    schema: pa.Schema = NUMBERS
    keys: tuple[str, ...] = ()
    delete_column: str | None = None
    config: Config = CONFIG
    opened: list[Database] = field(default_factory=list)

    @property
    def target(self) -> TargetTable:
        table = PostgresTable(
            address=database_address("a test", self.url, None),
            name=table_name("a test", self.table),
            keys=self.keys,
            delete_column=self.delete_column,
        )
        return TargetTable.of(table, self.schema, "a test")

    def database(self) -> Database:
        address = database_address("a test", self.url, None)
        wait_ms = ms(self.config.database_wait)
        self.opened.append(Database(address, wait_ms, what="a test"))
        return self.opened[-1]

    def prepare(self, *, make: bool = True) -> None:
        def work(session: Session) -> None:
            self.target.prepare(session, make=make)
            prepare_places(session, self.target.name)

        self.target.check_values()
        self.database().transaction(work)

    def writer(self) -> PlacedRows:
        return PlacedRows(self.database(), self.target, "app" + self.table)

    def close(self) -> None:
        for each in self.opened:
            each.close()


def numbers(*values: int) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64())})
