"""Processes that write to a Delta table as a job does, and are killed meanwhile.

Each process is a worker and the driver at once: it publishes ranges of rows and commits their
files. Others write to the table beside it, with delta-rs itself.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError
from tests.unit.pipeline.sinks.sinks_kit import (
    SCHEMA,
    SINK,
    column,
    hop_of,
    make_input,
    take,
)
from tests.unit.pipeline.sinks.table_sinks_kit import committer

from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import TableSink
from millrace.pipeline.sinks import SinkWriter, check_sink
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import TableFolder

UNITS, ROWS, KEYS = 3, 10_000, 11
OTHERS_TRIES = 20
BY_KEY = pa.schema([("x", pa.int64()), ("k", pa.int64()), ("gone", pa.bool_())])
CHECKPOINTS = {"delta.checkpointInterval": "3"}
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload([__name__])


def delta_hop(table: Path | str, *, by_key: bool = False) -> Hop:
    target = DeltaTarget(uri=str(table))
    if not by_key:
        return hop_of(TableSink(name=SINK, schema=SCHEMA, target=target))
    target = replace(target, keys=("k",), delete_column="gone", later_wins=True)
    return hop_of(TableSink(name=SINK, schema=BY_KEY, target=target), BY_KEY)


def rows_of(hop: Hop, numbers: Iterable[int]) -> pa.RecordBatch:
    """Rows of the input as the sink gets them; keys come again, and some of them go."""
    x = list(numbers)
    if hop.output != BY_KEY:
        return column(x)
    return pa.RecordBatch.from_pydict(
        {"x": x, "k": [key_of(n) for n in x], "gone": [n % 7 == 0 for n in x]}, schema=BY_KEY
    )


def key_of(x: int) -> int:
    """The keys of a unit are its own."""
    return x // ROWS * KEYS + x % ROWS % KEYS


def prepare(mill: str, table: str, *, by_key: bool = False) -> list[str]:
    """The workspace, its input and the table, which has checkpoints often."""
    broker = EmbeddedBroker.open(mill)
    names = make_input(broker, UNITS, ROWS)
    schema = pa.schema([("x", pa.int64()), ("k", pa.int64())]) if by_key else SCHEMA
    DeltaTable.create(table, schema, configuration=dict(CHECKPOINTS))
    check_sink(delta_hop(table, by_key=by_key), broker)
    broker.close()
    return names


def rows_in(table: str) -> list[int]:
    """What two readers of the table see that are not ours."""
    rows = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT x FROM t").read_all()
    theirs = sorted(pa.table(rows)["x"].to_pylist())
    assert theirs == sorted(pl.scan_delta(table).collect()["x"].to_list())
    return theirs


def published(broker: Broker, hop: Hop, names: Iterable[str]) -> list[int]:
    """The rows of the input whose offsets are committed; by key, the last one of each."""
    every = [
        number * ROWS + x
        for number, name in enumerate(names)
        for x in range(broker.committed(hop.group, name) or 0)
    ]
    if hop.output != BY_KEY:
        return every
    last = {key_of(x): x for x in every}
    return sorted(x for x in last.values() if x % 7)


def publish_range(
    broker: Broker, hop: Hop, writer: SinkWriter, unit: int, rows: int, lease: Lease
) -> None:
    """Record the next rows of a unit, as a worker does."""
    name = f"in/{unit}"
    at = broker.committed(hop.group, name) or 0
    end = min(at + rows, ROWS)
    if end == at:
        return
    given = rows_of(hop, range(unit * ROWS + at, unit * ROWS + end))
    prepared = writer.prepare(broker.get(name).id, [given], at, end)
    with broker.transaction(lease) as t:
        prepared.add_to(t)
        t.commit(hop.group, name, end, expected=at or None)
    prepared.finish()


def another_writes(table: str, number: int) -> None:
    """A writer that knows nothing of the job: rows below zero.

    delta-rs refuses an append beside a commit that takes rows out, and users write again then.
    """
    names = DeltaTable(table).schema().to_arrow().names
    rows = pa.table({name: pa.array([-number], pa.int64()) for name in names})
    for tries_left in reversed(range(OTHERS_TRIES)):
        try:
            write_deltalake(table, rows, mode="append")
        except CommitFailedError:
            assert tries_left, "it is refused each time"
        else:
            return


def finish(mill: str, table: str, names: list[str], *, by_key: bool = False) -> None:
    """A process that is not killed: it commits all that was published, and judges."""
    broker = EmbeddedBroker.open(mill)
    hop = delta_hop(table, by_key=by_key)
    driver = committer(hop, broker)
    while driver.commit_due(now=True):
        pass
    assert [x for x in rows_in(table) if x >= 0] == sorted(published(broker, hop, names))
    broker.close()


def child_dies_at(mill: str, table: str, point: str, *, by_key: bool) -> None:
    """Publish a range and commit it; a fault is armed, and others are quicker once."""
    broker = EmbeddedBroker.open(mill)
    hop = delta_hop(table, by_key=by_key)
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
        publish_range(broker, hop, writer, 0, 5, lease)
        driver.commit_due(now=True)


def serve_children(mill: str, table: str, calls: Connection, *, by_key: bool) -> None:
    """Start a child that works for each number, and say how the last one ended: by fork, for speed.

    This process only imports, so it has no threads that a fork would lose.
    """
    while True:
        number = calls.recv()
        child = os.fork()
        if child == 0:
            child_works(mill, table, number, by_key=by_key)
        calls.send(child)
        calls.recv()
        calls.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def child_works(mill: str, table: str, seed: int, *, by_key: bool) -> None:
    """Publish ranges of all units and commit them, at random, for good."""
    broker = EmbeddedBroker.open(mill)
    hop = delta_hop(table, by_key=by_key)
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    driver = committer(hop, broker)
    while True:
        number = chance.randrange(UNITS)
        lease, writer = take(broker, hop, f"in/{number}", mill)
        for _ in range(chance.randint(1, 3)):
            publish_range(broker, hop, writer, number, chance.randint(1, 3), lease)
        broker.release(lease)
        if chance.random() < 0.6:
            driver.commit_due(now=True)
