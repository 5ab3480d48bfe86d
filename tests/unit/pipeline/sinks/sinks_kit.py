"""A job with nothing but a sink, and processes that write to it and are killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from millrace.config import Config
from millrace.errors import StorageError
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop, unit_lease
from millrace.pipeline.core.job_model import JournalSink, ParquetSink, Sink
from millrace.pipeline.sinks import OtherJournals, SinkWriter, open_sink
from millrace.storage.storage_options import StorageOptions
from millrace.testing.fault_injection import armed

SCHEMA = pa.schema([("x", pa.int64())])
JOB, SINK = "captions", "out"
NO_OPTIONS = StorageOptions()
multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Place:
    """Settings of a worker."""

    workspace: str
    config: Config = field(default_factory=Config)
    scratch: str = "/nowhere"
    run_epoch: int = 1
    others: Mapping[str, OtherJournals] = field(default_factory=dict)
    progress: Mapping[str, str] = field(default_factory=dict)


def hop_of(sink: Sink, schema: pa.Schema = SCHEMA) -> Hop:
    return Hop(
        job=JOB,
        name=SINK,
        inputs=("in",),
        schema=schema,
        steps=(),
        sink=sink,
        output=schema,
        partitions=0,
        depth=1,
        feeds=(),
    )


KEYED = pa.schema([("x", pa.int64()), ("k", pa.string())])


def parquet_hop(
    folder: Path | str,
    schema: pa.Schema = SCHEMA,
    options: StorageOptions = NO_OPTIONS,
    partition_by: tuple[str, ...] = (),
) -> Hop:
    schema = KEYED if partition_by else schema
    sink = ParquetSink(
        name=SINK, schema=schema, path=str(folder), options=options, partition_by=partition_by
    )
    return hop_of(sink, schema)


def journal_hop(journal: str, schema: pa.Schema = SCHEMA) -> Hop:
    return hop_of(JournalSink(name=SINK, schema=schema, journal=journal), schema)


def column(values: Iterable[int]) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(list(values), pa.int64())})


def take(broker: Broker, hop: Hop, journal: str, mill: str) -> tuple[Lease, SinkWriter]:
    """Take a unit away from whoever has it; leftovers are old at once."""
    name = unit_lease(JOB, SINK, broker.get(journal).id)
    epoch = broker.fence(name)
    lease = broker.acquire(name, f"worker {epoch}")
    scratch = Path(mill).parent / "scratch"
    scratch.mkdir(exist_ok=True)
    place = Place(mill, Config(unfinished_grace=0.001), scratch=str(scratch))
    return lease, open_sink(hop, broker, place)


def publish(
    broker: Broker,
    hop: Hop,
    writer: SinkWriter,
    journal: str,
    take: tuple[int, Sequence[int] | None],
    lease: Lease | None = None,
) -> None:
    """What a worker does for one range: up to an offset, with the rows that were made of it."""
    next_, values = take
    before = broker.committed(hop.group, journal)
    first = before or 0
    rows = range(first, next_) if values is None else values
    prepared = writer.prepare(broker.get(journal).id, [column(rows)], first, next_)
    with broker.transaction(lease) as t:
        prepared.add_to(t)
        t.commit(hop.group, journal, next_, expected=before)
    prepared.finish()


def seen(folder: Path | str) -> list[int]:
    """The rows that a reader of the folder finds."""
    if not any(name.endswith(".parquet") for name in os.listdir(folder)):
        return []
    rows = duckdb.execute(f"SELECT x FROM read_parquet('{folder}/*')").fetchall()
    return sorted(row[0] for row in rows)


def unfinished(folder: Path | str) -> list[str]:
    return sorted(n for n in os.listdir(Path(folder, ".millrace")) if n.endswith(".unfinished"))


def committed(broker: Broker, hop: Hop, journals: Iterable[str]) -> list[int]:
    """The rows that were committed: row n of a journal is its first row's value plus n."""
    return sorted(
        x
        for name in journals
        for x in broker.read(name, 0)
        .rows()["x"]
        .to_pylist()[: broker.committed(hop.group, name) or 0]
    )


def make_input(broker: Broker, journals: int, rows: int) -> list[str]:
    """Journals whose rows all differ."""
    names = [f"in/{n}" for n in range(journals)]
    for number, name in enumerate(names):
        broker.create(name, SCHEMA)
        broker.append(name, column(range(number * rows, (number + 1) * rows)))
    return names


# In processes of their own.


def child_writes(
    mill: str, folder: str, point: str, armed_for: str, options: StorageOptions = NO_OPTIONS
) -> None:
    """Take the unit, recover and write a range; a fault is armed for one of both."""
    broker = EmbeddedBroker.open(mill)
    hop = parquet_hop(folder, options=options)
    lease, writer = take(broker, hop, "in/0", mill)
    if armed_for == "recovering":
        os.environ[VARIABLE] = armed(point)[VARIABLE]
    writer.recover("in/0", broker.get("in/0").id)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    publish(broker, hop, writer, "in/0", (20, None), lease)


def publish_folders(
    broker: Broker, hop: Hop, writer: SinkWriter, next_: int, lease: Lease | None = None
) -> None:
    """A range of rows whose values of `k` name three folders."""
    before = broker.committed(hop.group, "in/0")
    values = list(range(before or 0, next_))
    rows = pa.record_batch({"x": values, "k": [f"a/{x % 3}" for x in values]}, schema=KEYED)
    prepared = writer.prepare(broker.get("in/0").id, [rows], before or 0, next_)
    with broker.transaction(lease) as t:
        prepared.add_to(t)
        t.commit(hop.group, "in/0", next_, expected=before)
    prepared.finish()


def child_writes_folders(mill: str, folder: str, point: str) -> None:
    broker = EmbeddedBroker.open(mill)
    hop = parquet_hop(folder, partition_by=("k",))
    lease, writer = take(broker, hop, "in/0", mill)
    writer.recover("in/0", broker.get("in/0").id)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    publish_folders(broker, hop, writer, 20, lease)


def child_fills_up(mill: str, folder: str, told: str) -> None:
    """Write a range that no file can hold any more, then one that fits; tell what happened."""
    broker = EmbeddedBroker.open(mill)
    hop = parquet_hop(folder)
    lease, writer = take(broker, hop, "in/0", mill)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        writer.prepare(broker.get("in/0").id, [column(range(10_000))], 0, 20)
    except StorageError as error:
        Path(told).write_text(f"{unfinished(folder)} {error}", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    publish(broker, hop, writer, "in/0", (20, None), lease)
    broker.close()


def child_works(mill: str, folder: str, seed: int, options: StorageOptions = NO_OPTIONS) -> None:
    """Write ranges of all units, at random, for good."""
    broker = EmbeddedBroker.open(mill)
    hop = parquet_hop(folder, options=options)
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    journals = [each.name for each in broker.list("in")]
    while True:
        name = chance.choice(journals)
        lease, writer = take(broker, hop, name, mill)
        writer.recover(name, broker.get(name).id)
        for _ in range(3):
            at = broker.committed(hop.group, name) or 0
            end = min(at + chance.randint(1, 3), broker.end_offset(name))
            if end > at:
                rows: Any = broker.read(name, at, rows_max=end - at).rows()["x"].to_pylist()
                publish(broker, hop, writer, name, (end, rows), lease)
        broker.release(lease)
