"""Streams that end: what they leave behind, and what one that is used twice tells."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr
from millrace.spark.versions.spark_versions import READ_LIMITS, has
from millrace.transport.owner import owner_endpoint
from millrace.workspace import runtime_of

SCHEMA = pa.schema(
    [("cust_id", pa.int64()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
JOURNALS = ("acme/orders", "acme/payments")
HOUR_US = 3_600_000_000
LONG_S = 600
ESTABLISHED = "01"
DOCS = Path(__file__).parents[2] / "docs" / "spark-streaming.md"
READER = "python_streaming_source_runner"
TOO_BUSY = "Python worker failed to connect back"
"""Spark waits just ten seconds for a Python process to begin, which is not always enough."""


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    mr.register(spark)
    with mr.open(tmp_path / "mill") as opened:
        for name in JOURNALS:
            opened.journals.create(name, SCHEMA)
        yield opened


def pay(ws: mr.Workspace, numbers: range) -> None:
    """A transaction over both journals for each number; each an hour after the one before."""
    with ws.journals.producer("shop") as shop:
        for number in numbers:
            rows = {"cust_id": [number], "amount": [number], "at": [number * HOUR_US]}
            for name in JOURNALS:
                shop.append(name, pa.table(rows, schema=SCHEMA))
            shop.commit()


def stream(spark: SparkSession, ws: mr.Workspace, name: str, **options: object) -> DataFrame:
    binding = {"name": "all", "prefix": "acme", "key": ["cust_id"]}
    reader = spark.readStream.format("millrace").option("path", ws.path)
    reader = reader.option("read", json.dumps({"name": name, "bindings": [binding]}))
    for option, value in options.items():
        reader = reader.option(option, str(value))
    return reader.load()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def run_available(start: Callable[[], StreamingQuery]) -> None:
    """Run a query over what is available to its end."""
    while True:
        query = start()
        try:
            assert query.awaitTermination(LONG_S)
        except Exception as error:
            if TOO_BUSY not in str(error):
                raise
        else:
            return


def readers() -> list[int]:
    """Processes of Spark's, under this one, that read a stream."""
    parents, found = {}, []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal():
                told = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                parents[int(name)] = int(told[1])
                if told[0] != "Z" and READER in Path(f"/proc/{name}/cmdline").read_text():
                    found.append(int(name))
        except OSError:
            continue  # It has just ended.

    def is_ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return [process for process in found if is_ours(process)]


def connections(ws: mr.Workspace) -> int:
    """How many connections the owner of the journals has; Spark's own are others' business."""
    endpoint = owner_endpoint.read(runtime_of(ws).store)
    assert endpoint is not None
    port = int(endpoint.address.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[1].endswith(f":{port:04X}") and line[3] == ESTABLISHED for line in lines)


@pytest.mark.slow
def test_ended_queries_leave_no_process_lease_folder_or_connection(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    staged = Path(ws.path) / "reads"
    counts: list[int] = []
    for number in range(3):
        pay(ws, range(number, number + 1))
        query = start_and_read(
            lambda: (
                stream(spark, ws, "ends", members=2)
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / "log"))
                .start()
            )
        )
        assert list(staged.glob("ends-*"))
        assert len(readers()) == 1
        query.stop()
        wait_until(lambda: not readers(), "the reader's process has not ended")
        assert not list(staged.glob("ends-*"))
        lease = (
            runtime_of(ws).joined_broker().acquire("reads/ends", "test", lease_ms=60_000)
        )  # At once.
        runtime_of(ws).joined_broker().release(lease)
        counts.append(connections(ws))
        if number > 0:
            wait_until(
                lambda: connections(ws) <= counts[0],
                f"connections stay open: {counts}",
            )


def start_and_read(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and wait until it has shown something."""
    query = start()

    def has_shown() -> bool:
        nonlocal query
        if not query.isActive:
            assert TOO_BUSY in str(query.exception()), query.exception()
            query = start()
        shown = [each for each in query.recentProgress if each["numInputRows"]]
        if shown and has(READ_LIMITS):
            latest = json.loads(shown[-1]["sources"][0]["latestOffset"])
            assert {"checkpoint", "journals", "lagRows"} <= latest.keys()
        return bool(shown)

    wait_until(has_shown, "nothing was shown")
    return query


@pytest.fixture
def few_partitions(spark: SparkSession) -> Iterator[None]:
    """State in two parts: each costs a task in every batch."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, before or "200")


@pytest.mark.slow
@pytest.mark.usefixtures("few_partitions")
def test_what_the_documentation_shows_runs(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## State on top")[2]
    section = section.partition("\n## ")[0]
    (shown,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    shown = shown.replace('"./', f'"{tmp_path}/')
    pay(ws, range(4))
    read = {"name": "ledger", "bindings": [{"name": "all", "prefix": "acme", "key": ["cust_id"]}]}
    names = {"spark": spark, "ledger": json.dumps(read)}

    def start() -> StreamingQuery:
        exec(shown, names)  # noqa: S102 - what the page shows
        query = names["query"]
        assert isinstance(query, StreamingQuery)
        return query

    run_available(start)
    found = spark.read.parquet(str(tmp_path / "per-hour")).orderBy("cust_id").collect()
    # The watermark is ten minutes before the last row: the window before that row is still open.
    assert [(row.cust_id, row.amount) for row in found] == [(n, 2 * n) for n in range(2)]
