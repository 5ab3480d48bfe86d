"""Journals of the embedded broker against Apache Kafka, on the same machine, in the same run.

    .venv/bin/python benchmarks/journal_kafka.py [--rows N] [--rounds N] [--fsync] [--millrace]

Rows of 1 KB and of 256 B in batches of 100, from 1 and from 8 writers, into one journal and into
one topic of one partition. A writer waits for the answer to each batch. "to fetch" is from the
beginning of an append until a reader, who follows, has the rows. Then everything is read again from
the beginning. All take turns for some rounds, and the middle one counts.

Kafka is one node, fetched and started here, with its own client at its best: idempotent, acks=all,
one producer for each writer, a batch handed over in one call. Mind what an answer means: the
embedded broker has synced the rows to the disk by then. Kafka by default has not, it relies on
other nodes, of which there are none here. `--fsync` measures a second Kafka that syncs every batch
(log.flush.interval.messages=1), which is the like for like comparison. `--millrace` measures
Millrace's Kafka broker as well: every append is a transaction there.

A last line has all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import KafkaServer, fetch_jars, start_kafka

BATCH_ROWS = 100
SCHEMA = pa.schema([("value", pa.binary())])
CASES = ((1000, 1), (1000, 8), (256, 1), (256, 8))
FSYNC = {"log.flush.interval.messages": "1"}
MARK = struct.Struct(">II")
BUILD = str(Path(__file__).parents[1] / "build")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    peer: str
    row_bytes: int
    writers: int
    rows_per_s: float
    append_ms_p50: float
    append_ms_p99: float
    fetch_ms_p50: float
    fetch_ms_p99: float
    read_rows_per_s: float


@dataclass(slots=True)
class Times:
    """When batches, known by writer and number, were begun, answered and here."""

    begun: dict[tuple[int, int], float] = field(default_factory=dict)
    took: list[float] = field(default_factory=list)
    here: dict[tuple[int, int], float] = field(default_factory=dict)


Append = Callable[[list[bytes]], object]


class Embedded:
    """Any broker of Millrace's, one journal."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        broker.create("j", SCHEMA)

    def writer(self) -> Append:
        def append(rows: list[bytes]) -> None:
            self.broker.append("j", pa.record_batch([pa.array(rows, pa.binary())], schema=SCHEMA))

        return append

    def follow(self, total: int, note: Callable[[list[bytes]], None]) -> None:
        at = seen = 0
        while seen < total:
            self.broker.wait_for_rows({"j": at}, timeout_s=5)
            found = self.broker.read("j", at)
            marks = pc.binary_slice(found.rows()["value"], 0, MARK.size)
            note(marks.unique().to_pylist())
            at, seen = found.next_offset, seen + found.num_rows

    def read_all(self, total: int) -> None:
        at = seen = 0
        while seen < total:
            found = self.broker.read("j", at)
            at, seen = found.next_offset, seen + found.num_rows

    def close(self) -> None:
        self.broker.close()


class Kafka:
    """Kafka with its own client, one topic of one partition."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        self.servers = server.address
        self.topic = topic
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
            future.result()

    def writer(self) -> Append:
        settings = {"bootstrap.servers": self.servers, "acks": "all", "enable.idempotence": True}
        producer = Producer({**settings, "linger.ms": 0, "log_level": 0})

        def append(rows: list[bytes]) -> None:
            sent = producer.produce_batch(self.topic, [{"value": row} for row in rows], 0)
            assert sent == len(rows)
            assert producer.flush(30) == 0

        return append

    def _consumer(self) -> Consumer:
        settings: dict[str, Any] = {"bootstrap.servers": self.servers, "group.id": "bench"}
        settings["log_level"] = 0
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        return consumer

    def follow(self, total: int, note: Callable[[list[bytes]], None]) -> None:
        consumer, seen = self._consumer(), 0
        while seen < total:
            one = consumer.poll(5)
            assert one is not None
            found = [one, *consumer.consume(10_000, 0)]
            note([message.value() or b"" for message in found])
            seen += len(found)
        consumer.close()

    def read_all(self, total: int) -> None:
        consumer, seen = self._consumer(), 0
        while seen < total:
            one = consumer.poll(5)
            assert one is not None
            found = [one, *consumer.consume(10_000, 0)]
            seen += len([message.value() for message in found])
        consumer.close()

    def close(self) -> None:
        pass


Peer = Embedded | Kafka


def percentile(times: list[float], share: float) -> float:
    return 1000 * sorted(times)[min(len(times) - 1, int(len(times) * share))]


def batch(writer: int, number: int, filler: bytes) -> list[bytes]:
    """Rows that all name their batch."""
    row = MARK.pack(writer, number) + filler
    return [row] * BATCH_ROWS


def measure(name: str, peer: Peer, row_bytes: int, writers: int, rows: int) -> Result:
    each = max(1, rows // BATCH_ROWS // writers)
    total = each * writers * BATCH_ROWS
    times = Times()
    # Everybody is connected, and has written a batch that does not count, before the time starts.
    ready = threading.Barrier(writers + 1)
    filler = np.random.default_rng(1).bytes(row_bytes - MARK.size)

    def note(found: list[bytes]) -> None:
        now = time.perf_counter()
        for row in found:
            # The last row of a batch that is seen is the one that counts.
            times.here[MARK.unpack_from(row)] = now

    def write(number: int) -> None:
        append = peer.writer()
        append(batch(number, each, filler))
        ready.wait()
        append_times: list[float] = []
        for place in range(each):
            mine = batch(number, place, filler)
            start = time.perf_counter()
            times.begun[number, place] = start
            append(mine)
            append_times.append(time.perf_counter() - start)
        times.took.extend(append_times)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    everything = total + writers * BATCH_ROWS
    reader = threading.Thread(target=peer.follow, args=(everything, note))
    for thread in (*threads, reader):
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    passed = time.perf_counter() - start
    reader.join()
    start = time.perf_counter()
    peer.read_all(everything)
    reading = time.perf_counter() - start
    peer.close()
    fetched = [times.here[key] - begun for key, begun in times.begun.items()]
    return Result(
        peer=name,
        row_bytes=row_bytes,
        writers=writers,
        rows_per_s=total / passed,
        append_ms_p50=percentile(times.took, 0.5),
        append_ms_p99=percentile(times.took, 0.99),
        fetch_ms_p50=percentile(fetched, 0.5),
        fetch_ms_p99=percentile(fetched, 0.99),
        read_rows_per_s=everything / reading,
    )


def show(result: Result, against: Result | None) -> None:
    ratio = "" if against is None else f"{against.rows_per_s / result.rows_per_s:.2f}x"
    reads = "" if against is None else f"{against.read_rows_per_s / result.read_rows_per_s:.2f}x"
    appends = f"{result.append_ms_p50:.1f} / {result.append_ms_p99:.1f}"
    fetches = f"{result.fetch_ms_p50:.1f} / {result.fetch_ms_p99:.1f}"
    print(
        f"{result.row_bytes:5} B x {result.writers} {result.peer:18} {result.rows_per_s:9,.0f} "
        f"{ratio:>7} {appends:>14} {fetches:>14} {result.read_rows_per_s:11,.0f} {reads:>7}",
        flush=True,
    )


def middle(results: list[Result]) -> Result:
    """The round whose rows/s is the middle one."""
    return sorted(results, key=lambda each: each.rows_per_s)[len(results) // 2]


def rounds_of(
    case: tuple[int, int], asked: argparse.Namespace, servers: dict[str, KafkaServer]
) -> list[Result]:
    """Every peer in turn, round by round, so that a busy moment hits all of them; the middles."""
    row_bytes, writers = case
    found: dict[str, list[Result]] = {}
    for number in range(asked.rounds):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            embedded = Embedded(EmbeddedBroker.open(os.path.join(folder, "mill")))
            done = measure("embedded", embedded, row_bytes, writers, asked.rows)
            found.setdefault(done.peer, []).append(done)
        for name, server in servers.items():
            peer = Kafka(server, f"bench-{row_bytes}-{writers}-{number}")
            found.setdefault(name, []).append(measure(name, peer, row_bytes, writers, asked.rows))
        if asked.millrace:
            name = "millrace on kafka"
            with tempfile.TemporaryDirectory(dir=".") as folder:
                ours = Embedded(KafkaBroker.open(servers["kafka"].url, folder))
                done = measure(name, ours, row_bytes, writers, asked.rows // 4)
            found.setdefault(name, []).append(done)
    return [middle(each) for each in found.values()]


def run(asked: argparse.Namespace, servers: dict[str, KafkaServer]) -> list[Result]:
    heads = ("case", "peer", "rows/s", "times", "append ms", "to fetch ms", "read rows/s", "times")
    print("{:9} {:18} {:>9} {:>7} {:>14} {:>14} {:>11} {:>7}".format(*heads))
    results: list[Result] = []
    for case in CASES:
        mine, *others = rounds_of(case, asked, servers)
        show(mine, None)
        for each in others:
            show(each, mine)
        results += [mine, *others]
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--millrace", action="store_true")
    asked = parser.parse_args()
    config = Config()
    libs = fetch_jars(BUILD, config)
    wanted: dict[str, dict[str, str]] = {"kafka": {}}
    if asked.fsync:
        wanted["kafka, synced"] = FSYNC
    servers: dict[str, KafkaServer] = {}
    print("embedded: synced to the disk before each answer; kafka: not, unless it says so")
    print(f"'times': the embedded broker's rows/s over the peer's; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        try:
            for name, settings in wanted.items():
                where = os.path.join(folder, name.replace(", ", "-"))
                jvm = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
                servers[name] = start_kafka(libs, where, config=config, settings=settings, jvm=jvm)
            results = run(asked, servers)
        finally:
            for server in servers.values():
                server.process.stop()
    print(f"load at the end: {os.getloadavg()[0]:.1f}; above the number of cores, measure again")
    print(json.dumps({"load": os.getloadavg()[0], "results": [asdict(each) for each in results]}))


if __name__ == "__main__":
    main()
