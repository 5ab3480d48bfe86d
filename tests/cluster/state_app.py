"""An application with Spark's stateful operators on streams of Millrace, to be killed.

Run as a program: it starts four queries side by side, and either goes on until it is killed or
reads what is available, keeps what the file sink holds, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.cluster.state_kit import MARK, TELLER, TO_PAY, WINDOW, in_order

import millrace as mr
from millrace.spark.session import start_session

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PREFIXES = {
    "rows": "bank",
    "windows": "bank",
    "running": "bank",
    "orders": "shop/orders",
    "payments": "shop/payments",
}
KEYS = {"orders": "order_id", "payments": "paid_id"}
QUERIES = ("joined", "running", "windows", "rows")
WRONG = "wrong.txt"
TOO_BUSY = "Python worker failed to connect back"
"""Spark waits just ten seconds for a Python process to begin, which is not always enough."""
BEGINNING = ("Initializing StreamExecution", "Initializing sources")
BEFORE, AFTER = "before", "after"
RUNNING = "who string, account long, txn long, journal string, balance long"


class Balance(StatefulProcessor):
    """Keeps what an account holds, and tells it after each row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._held = handle.getValueState("held", "balance long")

    def handleInputRows(  # noqa: N802 - Spark's
        self, key: tuple[str, int], rows: Iterator[Any], timer_values: object = None
    ) -> Iterator[Row]:
        del timer_values
        held = self._held.get()
        balance = held[0] if held is not None else 0
        # The shuffle to states keeps no order.
        for row in sorted(rows, key=lambda row: (row.txn, row._mr_journal)):
            balance += row.amount
            yield Row(
                who=key[0],
                account=key[1],
                txn=row.txn,
                journal=row._mr_journal,
                balance=balance,
            )
        self._held.update((balance,))

    def close(self) -> None:
        pass


class Application:
    """The queries, over streams with the options of this start."""

    def __init__(self, spark: SparkSession, folder: Path, plan: dict[str, Any]) -> None:
        self.spark = spark
        self.folder = folder
        self.plan = plan
        self._lock = threading.Lock()
        self._left = int(plan.get("batches", 0))

    def start(self, name: str) -> StreamingQuery:
        """Start one of the queries."""
        match name:
            case "rows":
                return self._start(name, self._rows(), self._keep(name))
            case "windows":
                return self._start(name, self._windows(), self._keep(name))
            case "running":
                return self._start(name, self._running(), self._keep(name))
            case _:
                return self._start(name, self._joined(), self.folder / name)

    def run(self, is_through: Callable[[StreamingQuery], bool]) -> None:
        """Run them all side by side, until each is through."""
        queries = {}
        for name in self.plan["queries"]:
            queries[name] = query = self.start(name)
            while query.isActive and query.status["message"] in BEGINNING:
                time.sleep(0.01)  # All at once would be too much for a busy machine.
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        while not all(map(is_through, queries.values())):
            for name, query in queries.items():
                if not query.isActive and (failure := query.exception()) is not None:
                    if TOO_BUSY not in str(failure):
                        raise failure
                    queries[name] = self.start(name)
            time.sleep(0.05)

    # The queries.
    def _rows(self) -> DataFrame:
        return self._stream("rows").select("_mr_journal", "who", "txn", "account", "amount")

    def _windows(self) -> DataFrame:
        teller = self._stream("windows").where(f.col("who") == TELLER)
        return (
            teller.withWatermark("at", "0 seconds")
            .groupBy(f.window("at", WINDOW), "account")
            .agg(f.sum("amount").alias("amount"), f.count("*").alias("moves"))
            .where("moves > 0" if self.plan["drain"] else "true")  # A query may gain a filter.
            .select(f.unix_timestamp("window.start"), "account", "amount", "moves")
        )

    def _running(self) -> DataFrame:
        grouped = self._stream("running").where(f.col("txn") > MARK).groupBy("who", "account")
        return grouped.transformWithState(Balance(), RUNNING, "append", "none")

    def _joined(self) -> DataFrame:
        orders = self._stream("orders").withWatermark("ordered_at", "0 seconds")
        payments = self._stream("payments").withWatermark("paid_at", "0 seconds")
        is_paid = f.expr(
            f"order_id = paid_id AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL {TO_PAY}"
        )
        return orders.join(payments, is_paid, "leftOuter").select("order_id", "paid_at")

    # What they are made of.
    def _stream(self, name: str) -> DataFrame:
        key = [KEYS.get(name, "account")]
        binding = {"name": "all", "prefix": PREFIXES[name], "key": key}
        reader = self.spark.readStream.format("millrace").option("path", self.plan["workspace"])
        reader = reader.option("read", json.dumps({"name": name, "bindings": [binding]}))
        for option, value in self.plan["options"].get(name, {}).items():
            reader = reader.option(option, str(value))
        return reader.load()

    def _start(
        self, name: str, frame: DataFrame, sink: Path | Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        writer = frame.writeStream.queryName(name).outputMode("append")
        writer = writer.option("checkpointLocation", str(self.folder / "log" / name))
        if self.plan["drain"]:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=self.plan["every"])
        if isinstance(sink, Path):
            return writer.format("parquet").start(str(sink))
        return writer.foreachBatch(sink).start()

    def _keep(self, name: str) -> Callable[[DataFrame, int], None]:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)

        def take(frame: DataFrame, number: int) -> None:
            rows = in_order(frame.collect())
            self._die(name, BEFORE)
            keep(folder / f"{number}.json", rows)
            self._die(name, AFTER)

        return take

    def _die(self, name: str, moment: str) -> None:
        if self.plan.get("die") == [name, moment]:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    os.killpg(0, signal.SIGKILL)


def keep(path: Path, rows: list[list[object]]) -> None:
    """Store rows under a batch id; the same id must have the same rows for good."""
    text = json.dumps(rows)
    if path.exists():
        if path.read_text() != text:
            (path.parent / WRONG).write_text(f"{path}: had {path.read_text()}, and now {text}")
            raise AssertionError(path)
        return
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def main(plan: dict[str, Any]) -> None:
    spark = start_session("state", cores=2)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    mr.register(spark)
    folder = Path(plan["folder"])
    app = Application(spark, folder, plan)
    if not plan["drain"]:
        app.run(lambda _query: False)
    app.run(lambda query: not query.isActive and query.exception() is None)
    if "joined" in plan["queries"]:
        keep_joined(spark, folder)
    spark.stop()


def keep_joined(spark: SparkSession, folder: Path) -> None:
    """Keep what the file sink holds, as Spark reads it."""
    found = spark.read.parquet(str(folder / "joined"))
    paid = found.where(f.col("order_id") > MARK).select("order_id", f.unix_timestamp("paid_at"))
    (folder / "joined.json").write_text(json.dumps(in_order(paid.collect())))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
