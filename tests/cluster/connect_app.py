"""What a client of Spark Connect does with a workspace, as a program of its own.

    python connect_app.py WHAT SERVER WORKSPACE FOLDER OPTIONS

It tells how far it is in lines that begin with a word, and waits for a line where a test has
something to do meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import millrace as mr
from millrace.errors import OwnerUnreachable, ReadsFailed
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
JOURNALS = ("bank/orders", "bank/payments")
COPY = "copy"
READ = CoordinatedRead("ledger", [Binding(name="all", prefix="bank", key="id")])
BATCH_ROWS = 4
ROWS_EACH = 3
"""Of a transaction, in each of its journals."""
LONG_S = 240.0
TOO_BUSY = "Python worker failed to connect back"
"""Spark waits just ten seconds for a Python process to begin, which is not always enough."""
Found = TypeVar("Found")


def say(word: str, what: object) -> None:
    sys.stdout.write(f"{word} {json.dumps(what)}\n")
    sys.stdout.flush()


def patiently(do: Callable[[], Found]) -> Found:
    """Do something with Spark; again if this machine was too busy."""
    until = time.monotonic() + LONG_S
    while True:
        try:
            return do()
        except PySparkException as error:
            if TOO_BUSY not in str(error) or time.monotonic() > until:
                raise


def config_of(options: dict[str, Any]) -> mr.Config:
    """Patient where owners are started again: this machine may be slow."""
    return mr.Config().with_options(
        gone_after=120,
        owner_timeout=120,
        owner_start_ms_max=120_000,
        owner_retries_max=10,
        job_run_lease=options.get("run_lease_ms", 120_000) / 1000,
        job_lease=options.get("lease_ms", 10_000) / 1000,
        job_watch_ms=50,
        reads_lease=120,
        reads_members_wait=240,
        reads_silent_ms_max=120_000,
    )


def run_job(spark: SparkSession, ws: mr.Workspace, folder: str, options: dict[str, Any]) -> None:
    """A step that is called once for each row, and writes down that it was."""
    calls, pause_s = f"{folder}/calls", options.get("pause_s", 0.0)

    def triple(row: dict[str, Any]) -> dict[str, Any]:
        handle = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(handle, f"{row['id']}\n".encode())
        os.close(handle)
        time.sleep(pause_s)
        return {"id": row["id"], "amount": 3 * row["id"]}

    job = ws.job("triples")
    made = job.source("numbers", spark.range(options["rows"]), partitions=2).map(
        "triple",
        triple,
        schema="id bigint, amount bigint",
        expensive=True,
        batch_rows=BATCH_ROWS,
        version="1",
    )
    made.sink_journal("triples", name="out")
    report = job.run()
    step = next(step for step in report.steps if step.name == "triple")
    say("JOB", {"state": report.state, "calls": step.calls, "in_doubt": step.in_doubt})


def pay(ws: mr.Workspace, number: int, *, stop: bool = False) -> None:
    """A transaction over both journals; the test may do something in the middle of it."""
    with ws.journals.producer("shop") as shop:
        rows = pa.table({"id": range(ROWS_EACH), "amount": [number] * ROWS_EACH}, schema=SCHEMA)
        for name in JOURNALS:
            shop.append(name, rows)
            if stop and name == JOURNALS[0]:
                say("HALF", number)
                sys.stdin.readline()
        shop.commit()


def read(spark: SparkSession, ws: mr.Workspace, _folder: str, options: dict[str, Any]) -> None:
    """Pay and read by turns, until everything was shown that was paid, here and before."""
    del spark
    for name in JOURNALS:
        ws.journals.create(name, SCHEMA)
    session = ws.reads(READ, members=2, on_spark=True, restart=True, take_over=True)
    last = options["end"] - 1
    seen = -1
    for number in range(options["first"], options["end"]):
        pay(ws, number, stop=number in options["stops"])
        seen = max(seen, *_tell(session, 0.0), seen)
    say("PAID", last)
    while seen < last:  # A producer's transactions over the same journals are shown in order.
        seen = max(seen, *_tell(session, LONG_S), seen)
    say("READ", seen)
    session.close()


def _tell(session: ReadSession, wait_s: float) -> list[int]:
    """Tell what the next checkpoint shows, and then commit it; the amounts."""
    try:
        checkpoint = session.next_checkpoint(wait_s)
        if checkpoint is None:
            return []
        rows: list[list[int]] = []
        for member in range(session.members):
            for batch in session.batches(member, checkpoint):
                pairs = zip(batch["id"].to_pylist(), batch["amount"].to_pylist(), strict=True)
                rows += map(list, pairs)
        say("SHOWN", {"number": checkpoint.number, "rows": sorted(rows)})
        session.commit(checkpoint)
    except (ReadsFailed, OwnerUnreachable):
        return []  # The next session shows it again.
    return [amount for _, amount in rows]


def source(spark: SparkSession, ws: mr.Workspace, folder: str, options: dict[str, Any]) -> None:
    """Spark's own API: write a journal, read it, and follow a coordinated read."""
    path = ws.path
    rows = spark.range(options["rows"]).selectExpr("id", "2 * id AS amount").repartition(3)
    writer = rows.write.format("millrace").mode("append").option("journal", "doubles")
    patiently(lambda: writer.save(path))
    reader = spark.read.format("millrace").option("journal", "doubles")
    found = patiently(lambda: reader.load(path).collect())
    say("SOURCE", sorted([row.id, row.amount] for row in found))
    for name in JOURNALS:
        ws.journals.create(name, SCHEMA)
    for number in range(options["transactions"]):
        pay(ws, number)

    def copy() -> bool | None:
        query = _copied(spark, path, folder).trigger(availableNow=True).start()
        return query.awaitTermination(int(LONG_S))

    assert patiently(copy)
    say("STREAM", _copies(ws))


def stream(spark: SparkSession, ws: mr.Workspace, folder: str, options: dict[str, Any]) -> None:
    """A query copies transactions as they are paid, for as long as that takes."""
    for name in JOURNALS:
        ws.journals.create(name, SCHEMA)
    query = patiently(lambda: _copied(spark, ws.path, folder).start())
    for number in range(options["transactions"]):
        pay(ws, number, stop=number in options["stops"])
    wanted = options["transactions"] * ROWS_EACH * len(JOURNALS)
    until = time.monotonic() + LONG_S
    while not ws.journals.list(COPY) or ws.journals.end_offset(COPY) < wanted:
        assert time.monotonic() < until, "rows are missing"
        if not query.isActive:
            assert TOO_BUSY in str(query.exception()), query.exception()
            query = patiently(lambda: _copied(spark, ws.path, folder).start())
        time.sleep(0.1)
    query.stop()
    say("STREAM", _copies(ws))


def _copied(spark: SparkSession, path: str, folder: str) -> DataStreamWriter:
    """Coordinated reads into a journal, by Spark alone."""
    bindings = [{"name": "all", "prefix": "bank", "key": ["id"]}]
    read = json.dumps({"name": "copied", "bindings": bindings})
    rows = spark.readStream.format("millrace").option("path", path).option("read", read).load()
    return (
        rows.selectExpr("_mr_journal AS journal", "id", "amount")
        .writeStream.format("millrace")
        .option("path", path)
        .option("journal", COPY)
        .option("checkpointLocation", f"{folder}/log")
    )


def _copies(ws: mr.Workspace) -> list[list[Any]]:
    rows = ws.journals.read(COPY, 0).rows()
    return sorted([row["journal"], row["id"], row["amount"]] for row in rows.to_pylist())


def everything(spark: SparkSession, ws: mr.Workspace, folder: str, options: dict[str, Any]) -> None:
    """One after the other; the test looks at this process after each."""
    say("SEES", _seen_by_executors(spark, ws.path))
    ws.journals.create("plain", SCHEMA)
    ws.journals.append("plain", pa.table({"id": [1, 2], "amount": [10, 20]}, schema=SCHEMA))
    say("JOURNAL", ws.journals.read("plain", 0).rows().to_pylist())
    done = ws.shuffle(spark.range(options["rows"]), keys="id", partitions=3)
    values = [value for part in range(3) for value in done.read(part)["id"].to_pylist()]
    say("SHUFFLE", sorted(values))
    run_job(spark, ws, folder, options)
    source(spark, ws, folder, options)
    with ws.reads(READ, members=2, on_spark=True) as session:
        told = 0
        while told < options["transactions"] * ROWS_EACH * len(JOURNALS):
            told += len(_tell(session, LONG_S))
        say("READ", told)


def _seen_by_executors(spark: SparkSession, path: str) -> list[bool]:
    """Whether tasks find a folder: all answers that there are."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [os.path.exists(path)] * batch.num_rows
            yield pa.RecordBatch.from_pydict({"sees": found})

    answers = spark.range(0, 8, 1, 4).mapInArrow(look, "sees boolean").collect()
    return sorted({row.sees for row in answers})


DOES: dict[str, Callable[[SparkSession, mr.Workspace, str, dict[str, Any]], None]] = {
    "job": run_job,
    "stream": stream,
    "read": read,
    "everything": everything,
}


def main() -> None:
    what, server, mill, folder, options = sys.argv[1:6]
    given: dict[str, Any] = json.loads(options)
    spark = SparkSession.builder.remote(server).getOrCreate()
    ws = mr.open(mill, spark, config=config_of(given))
    DOES[what](spark, ws, folder, given)
    say("DONE", what)
    sys.stdin.readline()  # The test looks at this process before it ends.
    ws.close()
    spark.stop()


if __name__ == "__main__":
    main()
