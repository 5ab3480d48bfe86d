"""Journals on Kafka from processes that joined, beside Kafka's own transactional client.

    .venv/bin/python benchmarks/kafka_joined.py [--processes 1 8] [--seconds 4] [--rows 100 1000] \\
        [--rounds 3] [--parts read write] [--beside embedded synced]

Both on one Kafka node, started here, in turns; the middle of the rounds counts. All processes are
spawned. `write`: each process appends batches of `--rows` rows of 1 KB to a journal, or topic, of
its own, and waits for each answer; a batch is one transaction on both sides. Kafka's client is
confluent-kafka with a transactional id for each process. `read`: each process reads one of these
journals, or topics, from its beginning, again and again, committed rows alone.

"kafka" is Kafka's client. "joined" are joined processes that use Kafka themselves, with a message
for each row; "arrow" the same with journals whose rows are frames; "served" ones for which the
owner reads. With `--beside`, "embedded" are journals of a workspace in a folder, synced before each
answer, and "synced" is Kafka's client at a second node that syncs every batch. `ratio` is rows/s
over those of Kafka's client in the same round, the middle of the rounds; a first round, in which
Kafka compiles its code, does not count. `owner_ms_mb` is the CPU of the owner for 1 MB.
`process_cpu_ms`, `owner_cpu_ms` and `kafka_cpu_ms` are CPU of one transaction, or of 1,000 rows
read: it depends little on what else runs.

A table goes to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import millrace as mr
from millrace.config import Config
from millrace.testing.kafka_server import KafkaServer, fetch_jars, start_kafka
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.workspace import runtime_of

BUILD: Final = str(Path(__file__).parents[1] / "build")
JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
ROW_BYTES: Final = 1000
SCHEMA: Final = pa.schema([("value", pa.binary())])
READ_ROWS: Final = 20_000
FILL_ROWS: Final = 1_000
WAIT_S: Final = 300
FSYNC: Final = {"log.flush.interval.messages": "1"}
FORMS: Final = ("messages", "arrow")
CONTEXT: Final = multiprocessing.get_context("spawn")

Told = tuple[int, int, float, float]
"""Of one process: its rows, its calls, the seconds they took, and its CPU seconds."""
Call = Callable[[], int]


class Place(NamedTuple):
    """Where a peer's rows are, and the processes beside those that are measured."""

    where: Any
    owner: int | None
    kafka: int | None


def batch(count: int) -> pa.RecordBatch:
    values = np.random.default_rng(os.getpid()).bytes(count * ROW_BYTES)
    whole = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(ROW_BYTES), count, [None, pa.py_buffer(values)]
    )
    return pa.record_batch([whole.cast(pa.binary())], schema=SCHEMA)


def cpu_s(pid: int | None) -> float:
    """CPU that a process has used, all of its threads."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def child_of(pid: int) -> int:
    """The one process that a guard has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    (child,) = map(int, text.split())
    return child


def own(folder: str, url: str | None) -> None:
    """Own the journals of a workspace until killed."""
    mr.open(folder, **_broker(url)).journals.list()
    threading.Event().wait()


def _broker(url: str | None) -> dict[str, Any]:
    return {} if url is None else {"broker": url}


def kafka_writer(servers: str, number: int, rows: int) -> Call:
    values = batch(rows)[0].to_pylist()
    settings: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0, "linger.ms": 0}
    producer = Producer({**settings, "transactional.id": f"bench-{rows}-{number}"})
    producer.init_transactions(60)
    topic = f"bench-{number}"

    def write() -> int:
        producer.begin_transaction()
        sent = producer.produce_batch(topic, [{"value": value} for value in values], 0)
        assert sent == len(values)
        producer.commit_transaction(60)
        return rows

    return write


def kafka_reader(servers: str, number: int, _rows: int) -> Call:
    settings: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0, "group.id": "bench"}
    settings |= {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    begin = [TopicPartition(f"bench-{number}", 0, 0)]
    consumer.assign(begin)

    def read() -> int:
        first = consumer.poll(30)
        assert first is not None
        messages = [first, *consumer.consume(10_000, 0)]
        errors = [error for error in (message.error() for message in messages) if error]
        assert all(error.code() == KafkaError._PARTITION_EOF for error in errors)  # noqa: SLF001
        if errors:
            consumer.assign(begin)
        return len([message.value() for message in messages if message.error() is None])

    return read


def joined(where: JournalAddress) -> JoinedBroker:
    return join_journals(where, Config())


def writer(where: JournalAddress, number: int, rows: int, form: str = "messages") -> Call:
    broker, made = joined(where), batch(rows)

    def write() -> int:
        broker.append(f"{form}/{number}", made)
        return rows

    return write


def reader(where: JournalAddress, number: int, _rows: int, form: str = "messages") -> Call:
    broker, at = joined(where), 0

    def read() -> int:
        nonlocal at
        fetched = broker.read(f"{form}/{number}", at)
        at = 0 if fetched.next_offset == at else int(fetched.next_offset)
        return fetched.num_rows

    return read


def served_reader(where: JournalAddress, number: int, rows: int) -> Call:
    """As before there was another way: the owner reads."""
    from millrace.transport.owner import kafka_access  # noqa: PLC0415 - in this process alone

    kafka_access.KafkaAccess.at = lambda *_: None  # type: ignore[method-assign]
    return reader(where, number, rows)


KINDS: Final[dict[tuple[str, str], Callable[[Any, int, int], Call]]] = {
    ("write", "kafka"): kafka_writer,
    ("write", "joined"): writer,
    ("write", "arrow"): partial(writer, form="arrow"),
    ("write", "synced"): kafka_writer,
    ("write", "embedded"): writer,
    ("read", "kafka"): kafka_reader,
    ("read", "synced"): kafka_reader,
    ("read", "embedded"): reader,
    ("read", "joined"): reader,
    ("read", "arrow"): partial(reader, form="arrow"),
    ("read", "served"): served_reader,
}


def work(
    kind: tuple[str, str],
    where: object,
    number: int,
    rows: int,
    seconds: float,
    begin: Barrier,
    told: Queue[Told],
) -> None:
    call = KINDS[kind](where, number, rows)
    call()
    begin.wait(WAIT_S)
    count, calls, begun, used = 0, 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - begun) < seconds:
        count += call()
        calls += 1
    told.put((count, calls, passed, time.process_time() - used))
    # The clients are of no more use, and some would wait at the end.
    told.close()
    told.join_thread()
    os._exit(0)


def measure(
    kind: tuple[str, str], place: Place, processes: int, rows: int, seconds: float
) -> dict[str, float]:
    begin = CONTEXT.Barrier(processes + 1)
    told: Queue[Told] = CONTEXT.Queue()
    started = [
        CONTEXT.Process(target=work, args=(kind, place.where, number, rows, seconds, begin, told))
        for number in range(processes)
    ]
    for process in started:
        process.start()
    begin.wait(WAIT_S)
    owner, kafka = cpu_s(place.owner), cpu_s(place.kafka)
    answers = [told.get(timeout=WAIT_S) for _ in started]
    owner, kafka = cpu_s(place.owner) - owner, cpu_s(place.kafka) - kafka
    for process in started:
        process.join()
    megabytes = sum(answer[0] for answer in answers) * ROW_BYTES / 1e6
    # A read is of as many rows as are there: its CPU is told for 1,000 rows.
    units = sum(answer[1] if kind[0] == "write" else answer[0] / 1000 for answer in answers)
    return {
        "rows_per_s": sum(count / passed for count, _, passed, _ in answers),
        "owner_ms_mb": 1000 * owner / megabytes,
        "process_cpu_ms": 1000 * sum(answer[3] for answer in answers) / units,
        "owner_cpu_ms": 1000 * owner / units,
        "kafka_cpu_ms": 1000 * kafka / units,
    }


def start_owner(folder: str, url: str | None) -> tuple[BaseProcess, JournalAddress]:
    ws = mr.open(folder, create=True, **_broker(url))
    where = JournalAddress(path=ws.path, token=runtime_of(ws).token, workspace_id=ws.id)
    process = CONTEXT.Process(target=own, args=(folder, url))
    process.start()
    while not os.path.exists(os.path.join(folder, "owner.json")):
        assert process.is_alive(), "the owner ended"
        time.sleep(0.02)
    return process, where


def prepare(place: Place, processes: int, forms: Sequence[str]) -> None:
    """Journals of these forms with rows for the readers; topics if there are none."""
    rows = pa.Table.from_batches([batch(FILL_ROWS)])
    writes: list[Callable[[], object]] = []
    if forms:
        broker = joined(place.where)
        for form in forms:
            names = [f"{form}/{number}" for number in range(processes)]
            broker.create_many(names, SCHEMA, [{"kafka.rows": form}] * processes)
            writes += [partial(broker.append, name, rows) for name in names]
    else:
        admin = AdminClient({"bootstrap.servers": place.where, "log_level": 0})
        topics = [NewTopic(f"bench-{number}", 1, 1) for number in range(processes)]
        for future in admin.create_topics(topics).values():
            future.result()
        writes = [kafka_writer(place.where, number, FILL_ROWS) for number in range(processes)]
    for write in writes:
        for _ in range(READ_ROWS // FILL_ROWS):
            write()
    if forms:
        broker.close()


def cases(asked: argparse.Namespace) -> list[tuple[str, int, int]]:
    parts = [("read", 0)] + [("write", rows) for rows in asked.rows]
    wanted = [case for case in parts if case[0] in asked.parts]
    return [(part, n, rows) for part, rows in wanted for n in asked.processes]


def run(asked: argparse.Namespace, places: Mapping[str, Place]) -> None:
    for part, processes, rows in cases(asked):
        peers = [kind for kind in KINDS if kind[0] == part and kind[1] in places]
        found: dict[str, list[dict[str, float]]] = {peer: [] for _, peer in peers}
        for turn in range(asked.rounds + 1):
            for kind in peers:
                done = measure(kind, places[kind[1]], processes, rows, asked.seconds)
                if turn:
                    found[kind[1]].append(done)
        for peer, rounds in found.items():
            ratios = [
                one["rows_per_s"] / kafka["rows_per_s"]
                for one, kafka in zip(rounds, found["kafka"], strict=True)
            ]
            line: dict[str, Any] = {"benchmark": "kafka_joined", "part": part, "peer": peer}
            line |= {"processes": processes, "batch_rows": rows}
            line["rows_per_s"] = round(statistics.median(one["rows_per_s"] for one in rounds))
            for cost in ("owner_ms_mb", "process_cpu_ms", "owner_cpu_ms", "kafka_cpu_ms"):
                line[cost] = round(statistics.median(one[cost] for one in rounds), 2)
            line["ratio"] = round(statistics.median(ratios), 2)
            print(json.dumps(line), flush=True)


def start(
    asked: argparse.Namespace, libs: str, folder: str, started: contextlib.ExitStack
) -> dict[str, Place]:
    """Start servers and owners, which end with `started`; where each peer's rows are."""

    def kafka(name: str, settings: Mapping[str, str]) -> tuple[Place, KafkaServer]:
        at, config = os.path.join(folder, name), Config()
        server = start_kafka(libs, at, config=config, settings=settings, jvm=JVM)
        started.callback(server.process.stop)
        place = Place(server.address, None, child_of(server.process.pid))
        prepare(place, max(asked.processes), ())
        return place, server

    def owned(name: str, url: str | None, pid: int | None, forms: Sequence[str]) -> Place:
        owner, where = start_owner(os.path.join(folder, name), url)
        started.callback(owner.join)
        started.callback(owner.kill)
        place = Place(where, owner.pid, pid)
        prepare(place, max(asked.processes), forms)
        return place

    plain, server = kafka("kafka", {})
    on_kafka = owned("mill", server.url, plain.kafka, FORMS)
    places = {"kafka": plain} | dict.fromkeys(("joined", "arrow", "served"), on_kafka)
    if "synced" in asked.beside:
        places["synced"] = kafka("synced", FSYNC)[0]
    if "embedded" in asked.beside:
        places["embedded"] = owned("embedded", None, None, ("messages",))
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rows", nargs="+", type=int, default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=["read", "write"], default=["read", "write"])
    parser.add_argument("--beside", nargs="+", choices=["embedded", "synced"], default=[])
    asked = parser.parse_args()
    libs = fetch_jars(BUILD, Config())
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.ExitStack() as started:
        run(asked, start(asked, libs, folder, started))
    print(f"load at the end {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
