"""A query as Spark runs it, without Spark: batches are begun, written, adopted and noted."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

import millrace as mr
from millrace.faults import VARIABLE
from millrace.journal.core.values import Publish, Published
from millrace.spark.source.source_options import SourceOptions, parse
from millrace.spark.source.stream_writer import JournalStreamWriter, make_writer
from millrace.transport.owner.joined_broker import JoinedBroker

QUERY: Final = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
JOURNALS: Final = ("out/0", "out/1")
COLUMNS: Final = StructType([StructField("key", LongType()), StructField("batch", LongType())])
TASKS: Final = 2
ROWS: Final = 4
"""Of a task."""
WAIT_S: Final = 400
"""For what may take long on a busy machine."""
_FORK: Final = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.unit.spark.source.stream_writing_kit"])


def start(function: Callable[..., None], *args: object) -> Any:  # noqa: ANN401 - a process
    """Run a function of this module in a process of its own."""
    child = _FORK.Process(target=function, args=args)
    child.start()
    return child


def options(folder: Path, **more: str) -> SourceOptions:
    """Of a stream that is written by key."""
    given = {"path": str(folder / "mill"), "journals": "out/{n}", "keyBy": "key", "partitions": "2"}
    return parse({**given, **more}, "stream write")


def rows_of(batch: int, task: int) -> pa.RecordBatch:
    """What a task has of a batch, however often it is asked."""
    keys = range(task * ROWS, (task + 1) * ROWS)
    return pa.record_batch({"key": list(keys), "batch": [batch] * ROWS})


def run_task(
    writer: JournalStreamWriter, task: int, rows: pa.RecordBatch, query: str = QUERY
) -> Any:  # noqa: ANN401 - a message
    """Write rows as a task of Spark does."""
    context = TaskContext._getOrCreate()
    context._partitionId = task
    context._localProperties = {"sql.streaming.queryId": query}
    return writer.write(iter([rows]))


def noted(folder: Path) -> int:
    """How many batches have ended, as Spark's log says."""
    return len(list((folder / "commits").iterdir()))


def run_query(folder: Path, upto: int, point: str = "", at: int = 0, file: str = "") -> None:
    """Write batches from where the log ends; fail at a point from a batch on.

    Points of the journals are for the transaction alone. With a file, others fail who look there.
    """
    whole = point.startswith("source.")
    for batch in range(noted(folder), upto):
        if point and batch >= at:
            fail_at(point, file) if whole else fail_in_transaction(point, file)
        writer = make_writer(options(folder), COLUMNS, overwrite=False)
        messages = [run_task(writer, task, rows_of(batch, task)) for task in range(TASKS)]
        make_writer(options(folder), COLUMNS, overwrite=False).commit(messages, batch)
        (folder / "commits" / str(batch)).touch()


def fail_at(point: str, file: str) -> None:
    """Fail there from now on, or have others do so."""
    if file:
        Path(file).write_text(point, encoding="utf-8")
    else:
        os.environ[VARIABLE] = point


def fail_in_transaction(point: str, file: str) -> None:
    """The same, beginning with the next transaction that publishes a batch."""
    original = JoinedBroker.publish

    def publish(self: JoinedBroker, request: Publish) -> Published:
        fail_at(point, file)
        return original(self, request)

    JoinedBroker.publish = publish  # type: ignore[method-assign]


def own(folder: Path, ready: str, file: str) -> None:
    """Own the journals until it fails as a file says."""
    os.environ[VARIABLE] = f"@{file}"
    ws = mr.open(folder / "mill", create=True)
    ws.journals.list()
    Path(ready).touch()
    threading.Event().wait(2 * WAIT_S)


def check(folder: Path, batches: int) -> None:
    """Each row of each batch is there once, and each batch is one transaction."""
    with mr.open(folder / "mill") as ws:
        tables = [ws.journals.read(name, 0).rows() for name in JOURNALS]
        raw = [ws.journals.read(name, 0, isolation="raw").stored() for name in JOURNALS]
    found = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    keys = range(TASKS * ROWS)
    assert sorted(found) == sorted((key, batch) for key in keys for batch in range(batches))
    for table in tables:
        assert table["batch"].to_pylist() == sorted(table["batch"].to_pylist())
    acks = [[row["_mr_clock"] for row in each.to_pylist() if row["_mr_hints"]] for each in raw]
    assert acks[0] == acks[1]
    assert len(acks[0]) == batches


class Story:
    """A query that dies again and again, sometimes with an owner of the journals beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches = 0
        self._owners = 0
        (folder / "commits").mkdir()

    def die_at(self, point: str, *, after: int = 0) -> None:
        """Be killed at a point, a few batches later."""
        self.batches = noted(self.folder) + after + 1
        child = start(run_query, self.folder, self.batches, point, self.batches - 1)
        child.join(WAIT_S)
        assert child.exitcode == -9, (point, child.exitcode)

    def die_by_chance(self, chance: random.Random) -> None:
        """Be killed at any moment."""
        self.batches = noted(self.folder) + chance.randint(1, 3)
        child = start(run_query, self.folder, self.batches)
        time.sleep(chance.uniform(0, 0.6))
        child.kill()
        child.join(WAIT_S)

    def lose_owner(self, point: str) -> None:
        """Go on while the owner of the journals is killed at a point; somebody takes over."""
        self._owners += 1
        ready = self.folder / f"ready-{self._owners}"
        file = self.folder / f"fault-{self._owners}"
        owner = start(own, self.folder, str(ready), str(file))
        end = time.monotonic() + WAIT_S
        while not ready.exists():
            assert owner.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        self.batches = noted(self.folder) + 2  # The first may be there already.
        child = start(run_query, self.folder, self.batches, point, 0, str(file))
        child.join(WAIT_S)
        owner.join(WAIT_S)
        assert owner.exitcode == -9, point
        assert child.exitcode == 0, point

    def finish(self) -> None:
        """Write all that is left, and look."""
        self.batches += 1
        child = start(run_query, self.folder, self.batches)
        child.join(WAIT_S)
        assert child.exitcode == 0
        check(self.folder, self.batches)
