"""`readStream.format("millrace")`: whole transactions in each batch, limits, what is available."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import millrace as mr

SCHEMA = pa.schema([("cust_id", pa.int64()), ("amount", pa.int64())])
READ = json.dumps(
    {"name": "ledger", "bindings": [{"name": "all", "prefix": "acme", "key": ["cust_id"]}]}
)
LONG_S = 120


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill") as opened:
        for name in ("acme/orders", "acme/payments"):
            opened.journals.create(name, SCHEMA)
        yield opened


@pytest.fixture
def streams(spark: SparkSession, ws: mr.Workspace) -> Callable[..., DataFrame]:
    mr.register(spark)

    def load(**options: object) -> DataFrame:
        reader = spark.readStream.format("millrace").option("path", ws.path)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return load


def pay(ws: mr.Workspace, numbers: range) -> None:
    """A transaction over both journals for each number: three rows in each."""
    with ws.journals.producer("shop") as shop:
        for number in numbers:
            rows = pa.table({"cust_id": range(3), "amount": [number] * 3}, schema=SCHEMA)
            shop.append("acme/orders", rows)
            shop.append("acme/payments", rows)
            shop.commit()


class Batches:
    """The rows of each batch, as (journal, customer, amount), in files.

    On Connect, the function that takes a batch runs in a process of the server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def rows(self) -> dict[int, list[tuple[str, int, int]]]:
        files = self.folder.glob("*.json")
        return {int(f.stem): [tuple(row) for row in json.loads(f.read_text())] for f in files}

    def count(self) -> int:
        return sum(map(len, self.rows.values()))

    def start(self, frame: DataFrame, *, available: bool = False) -> StreamingQuery:
        folder = str(self.folder)

        def take(rows: DataFrame, number: int) -> None:
            found = rows.select("_mr_journal", "cust_id", "amount").collect()
            path = f"{folder}/{number}.json"
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(sorted(list(row) for row in found), file)
            os.replace(f"{path}.new", path)

        log = str(self.folder / "log")
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", log)
        return (writer.trigger(availableNow=True) if available else writer).start()

    def wait(self, count: int, query: StreamingQuery) -> None:
        until = time.monotonic() + LONG_S
        while self.count() < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < until, self.rows
            time.sleep(0.05)

    def check_whole(self, numbers: range) -> None:
        """Each transaction is in one batch, with all its rows."""
        every = sorted(row for rows in self.rows.values() for row in rows)
        journals = ("acme/orders", "acme/payments")
        assert every == sorted((j, c, n) for j in journals for c in range(3) for n in numbers)
        for rows in self.rows.values():
            for number in {amount for _, _, amount in rows}:
                assert sum(amount == number for _, _, amount in rows) == 6, (number, rows)


def test_no_batch_shows_half_of_a_transaction(
    streams: Callable[..., DataFrame], ws: mr.Workspace, tmp_path: Path
) -> None:
    batches = Batches(tmp_path / "out")
    pay(ws, range(5))
    query = batches.start(streams(read=READ))
    try:
        for begin in range(5, 60, 5):
            if begin in (20, 40):
                batches.wait(6 * begin, query)  # So that there are several batches.
            pay(ws, range(begin, begin + 5))
        batches.wait(360, query)
    finally:
        query.stop()
    batches.check_whole(range(60))
    assert len([rows for rows in batches.rows.values() if rows]) >= 3


@pytest.mark.slow
def test_a_query_over_what_is_available_shows_it_with_limits_and_ends(
    streams: Callable[..., DataFrame], ws: mr.Workspace, tmp_path: Path
) -> None:
    batches = Batches(tmp_path / "out")
    stream = streams(read=READ, maxRowsPerTrigger=60)
    for numbers in (range(40), range(50), range(50)):
        if len(numbers) > batches.count() // 6:
            pay(ws, numbers[batches.count() // 6 :])
        query = batches.start(stream, available=True)
        assert query.awaitTermination(LONG_S)
        batches.check_whole(numbers)


def test_a_journal_is_a_stream_under_a_name(
    streams: Callable[..., DataFrame], ws: mr.Workspace, tmp_path: Path
) -> None:
    pay(ws, range(3))
    stream = streams(journal="acme/orders", name="orders", members=1)
    assert stream.columns == [
        *SCHEMA.names,
        "_mr_journal",
        "_mr_offset",
        "_mr_producer",
        "_mr_clock",
    ]
    batches = Batches(tmp_path / "out")
    query = batches.start(stream, available=True)
    assert query.awaitTermination(LONG_S)
    (rows,) = batches.rows.values()
    assert rows == sorted(("acme/orders", c, n) for c in range(3) for n in range(3))


def test_what_cannot_be_streamed_is_said_before_a_query_starts(
    streams: Callable[..., DataFrame],
) -> None:
    empty = {"name": "none", "bindings": [{"name": "all", "prefix": "nobody"}]}
    for options, said in (
        ({"read": json.dumps(empty)}, "coordinated read none has no journal yet"),
        ({"read": "unheard-of"}, "has no coordinated read unheard-of"),
        ({"read": "{"}, "option read is no JSON"),
    ):
        with pytest.raises(PySparkException, match=said):
            _ = streams(**options).schema  # On Connect nothing is looked at before.
