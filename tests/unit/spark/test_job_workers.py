"""Workers of a run: what they spent their time on, and what is heard of those that cannot start."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr
from millrace.errors import SparkGone, TaskFailed
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.run.worker_orders import WorkerGroup, WorkerOrder, spent_on
from millrace.spark.job_workers import SparkWorkerPool
from millrace.transport.owner.owner_endpoint import JournalAddress

POST = WorkerGroup(hops=None, resources=(), workers=1)


def same(row: dict) -> dict:  # type: ignore[type-arg]
    return row


def job_hops(folder: str) -> tuple[Hop, ...]:
    ws = mr.open(folder, broker="memory")
    ws.journals.create("given", pa.schema([("id", pa.int64())]))
    job = ws.job("j")
    rows = job.source("rows", journal="given").map("first", same, schema="id bigint", durable=True)
    paid = rows.map("paid", same, schema="id bigint", expensive=True)
    kept = paid.map("second", same, schema="id bigint").filter("id > 0")
    kept.sink_parquet(f"{folder}/out")
    hops = job._graph.hops
    ws.close()
    return hops


def outcome(taken: dict[str, float], inside: dict[str, float]) -> dict[str, Any]:
    return {"seconds_per_hop": taken, "seconds_in_function": inside}


def test_functions_that_are_fused_count_for_the_hop_they_run_in(tmp_path: Path) -> None:
    hops = job_hops(str(tmp_path))
    assert [hop.name for hop in hops] == ["first", "paid", "sink_parquet"]
    one = outcome({"paid": 4.0, "sink_parquet": 2.0}, {"paid": 3.0, "second": 1.0})
    other = outcome({"first": 8.0, "sink_parquet": 6.0}, {"first": 2.0, "second": 0.5})
    assert spent_on(hops, [one, other]) == {
        "first": (8.0, 2.0),
        "paid": (4.0, 3.0),
        "sink_parquet": (8.0, 1.5),
    }
    assert spent_on(hops, []) == {}


class BrokenSpark:
    """A session that cannot be used, and a JVM that answers."""

    def __init__(self, port: int) -> None:
        self.conf = SimpleNamespace(get=lambda _name, default=None: default)
        parameters = SimpleNamespace(
            address="127.0.0.1", port=port, auth_token="", ssl_context=None
        )
        gateway = SimpleNamespace(gateway_parameters=parameters)
        self.sparkContext = SimpleNamespace(_gateway=gateway, _jsc=object())

    def newSession(self) -> None:  # noqa: N802 - as Spark calls it
        raise OSError("no session can be made")


def some_work() -> WorkerOrder:
    return WorkerOrder(
        where=JournalAddress(address="grpc://nowhere:1", token=""),
        hops=(),
        config=mr.Config(),
        run=1,
        time_zone="UTC",
        workspace="",
        events_from=0,
        until_end=None,
        only=None,
        versions={},
        job_id="a job",
    )


def crew_on(port: int) -> SparkWorkerPool:
    spark = cast("SparkSession", BrokenSpark(port))
    return SparkWorkerPool(spark, some_work(), [POST], mr.Config(), deaths=lambda: 0)


def test_a_seat_that_cannot_be_taken_ends_the_crew_and_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        port = jvm.getsockname()[1]

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = jvm.accept()
                    connection.recv(100)
                    connection.sendall(b"!y\n")
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        crew = crew_on(port)
        crew._join(60_000)
    assert isinstance(crew.error, TaskFailed)
    assert "no session can be made" in str(crew.error)


def test_seats_of_a_spark_that_is_gone_end_at_once_and_say_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    crew = crew_on(port)
    crew._join(60_000)
    assert crew.is_over
    assert isinstance(crew.error, SparkGone)
