"""Processes that write to a Delta table as a job does, and are killed meanwhile.

Each process is a worker and the driver at once: it publishes ranges of rows and commits their
files. Others write to the table beside it, with delta-rs itself.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from tests.unit.pipeline.sinks.sinks_kit import (
    SCHEMA,
    SINK,
    column,
    hop_of,
    make_input,
    publish,
    take,
)
from tests.unit.pipeline.sinks.table_sinks_kit import committer

from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import TableSink
from millrace.pipeline.sinks import check_sink
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import TableFolder

UNITS, ROWS = 3, 10_000
CHECKPOINTS = {"delta.checkpointInterval": "3"}
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload([__name__])


def delta_hop(table: Path | str) -> Hop:
    target = DeltaTarget(uri=str(table))
    return hop_of(TableSink(name=SINK, schema=SCHEMA, target=target))


def prepare(mill: str, table: str) -> list[str]:
    """The workspace, its input and the table, which has checkpoints often."""
    broker = EmbeddedBroker.open(mill)
    names = make_input(broker, UNITS, ROWS)
    DeltaTable.create(table, SCHEMA, configuration=dict(CHECKPOINTS))
    check_sink(delta_hop(table), broker)
    broker.close()
    return names


def rows_in(table: str) -> list[int]:
    """What two readers of the table see that are not ours."""
    rows = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT x FROM t").read_all()
    theirs = sorted(pa.table(rows)["x"].to_pylist())
    assert theirs == sorted(pl.scan_delta(table).collect()["x"].to_list())
    return theirs


def published(broker: Broker, hop: Hop, names: Iterable[str]) -> list[int]:
    """The rows of the input whose offsets are committed."""
    return [
        number * ROWS + x
        for number, name in enumerate(names)
        for x in range(broker.committed(hop.group, name) or 0)
    ]


def another_writes(table: str, number: int) -> None:
    """A writer that knows nothing of the job: rows below zero."""
    write_deltalake(table, pa.table({"x": pa.array([-number], pa.int64())}), mode="append")


def finish(mill: str, table: str, names: list[str]) -> None:
    """A process that is not killed: it commits all that was published, and judges."""
    broker = EmbeddedBroker.open(mill)
    hop = delta_hop(table)
    driver = committer(hop, broker)
    while driver.commit_due(now=True):
        pass
    assert [x for x in rows_in(table) if x >= 0] == sorted(published(broker, hop, names))
    broker.close()


def child_dies_at(mill: str, table: str, point: str) -> None:
    """Publish a range and commit it; a fault is armed, and others are quicker once."""
    broker = EmbeddedBroker.open(mill)
    hop = delta_hop(table)
    lease, writer = take(broker, hop, "in/0", mill)
    real, others = TableFolder.create, iter([1])

    def create(self: TableFolder, name: str, data: bytes) -> bool:
        if next(others, None):
            another_writes(table, 1)
        return real(self, name, data)

    TableFolder.create = create  # type: ignore[method-assign]
    driver = committer(hop, broker)
    os.environ[VARIABLE] = point
    for _ in range(4):  # One of these versions has a checkpoint.
        at = broker.committed(hop.group, "in/0") or 0
        publish(broker, hop, writer, "in/0", (at + 5, None), lease)
        driver.commit_due(now=True)


def serve_children(mill: str, table: str, calls: Connection) -> None:
    """Start a child that works for each number, and say how the last one ended: by fork, for speed.

    This process only imports, so it has no threads that a fork would lose.
    """
    while True:
        number = calls.recv()
        child = os.fork()
        if child == 0:
            child_works(mill, table, number)
        calls.send(child)
        calls.recv()
        calls.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def child_works(mill: str, table: str, seed: int) -> None:
    """Publish ranges of all units and commit them, at random, for good."""
    broker = EmbeddedBroker.open(mill)
    hop = delta_hop(table)
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    driver = committer(hop, broker)
    while True:
        number = chance.randrange(UNITS)
        name = f"in/{number}"
        lease, writer = take(broker, hop, name, mill)
        for _ in range(chance.randint(1, 3)):
            at = broker.committed(hop.group, name) or 0
            end = min(at + chance.randint(1, 3), ROWS)
            if end > at:
                values = range(number * ROWS + at, number * ROWS + end)
                prepared = writer.prepare(broker.get(name).id, [column(values)], at, end)
                with broker.transaction(lease) as t:
                    prepared.add_to(t)
                    t.commit(hop.group, name, end, expected=at or None)
                prepared.finish()
        broker.release(lease)
        if chance.random() < 0.6:
            driver.commit_due(now=True)
