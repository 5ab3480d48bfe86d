"""Coordinated reads: rows/s from journals to visible, and how long a commit takes to be seen.

    .venv/bin/python benchmarks/reads.py [--rows N] [--parts rows order many latency spark]

`rows`: everything lies in embedded journals when the session opens; the clock runs from opening
until all rows have been handed out in checkpoints, read by their members and committed. Members are
threads of this process. Rows are keyed, 100 B or 1 KB, in one journal or in 1,000, and commit
themselves (tx 0) or come in transactions of 1, 10 or 1,000 rows, each over two journals where there
are two.

`order`: rows over 1,000 journals beside the same rows in one: interleaved, so that each row follows
one of another journal by its clock, and one journal after the other, as a backfill writes them. All
are in one workspace. Each case is read once before, which does not count, and one journal is read
before and after the others. `ratio` is over the mean of these two, by rows for each second of CPU;
`ratio_by_clock` is the same by the clock, which other work on the machine disturbs.

`many`: 1,000, 10,000 and 100,000 journals with 5 rows each, on 10 members, of producers that write
to 1, 2 and 5 journals in a transaction: how long opening takes and reading everything, memory of
the process, bytes of the first checkpoint and of a later one, streams.

`latency`: one writer appends transactions at half the rate that reading reaches; from the return
of its ACK until the checkpoint that shows it was read.

`spark`: the peer, in the same run. Spark Structured Streaming takes the same rows in, repartitions
them by key and drops them (`Trigger.AvailableNow`, `noop`, as many tasks as cores). It reads them
from Parquet files: its connector to Kafka could not be had for this version of Spark, and files are
what it reads fastest. Its session is warm, a first query has run. `ratio` is Millrace's rows/s over
Spark's; Millrace's time includes opening, reading by members and committing each checkpoint.

Tables go to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.journal.core.clocks import clock_at
from millrace.journal.core.row_format import Flag, stamped_schema
from millrace.reads.api import ReadSession
from millrace.reads.model.checkpoint import Checkpoint
from millrace.spark.session import start_session

SCHEMA: Final = pa.schema([("key", pa.int64()), ("value", pa.binary())])
STAMPED: Final = stamped_schema(SCHEMA)
APPEND_ROWS: Final = 20_000
LONG_S: Final = 120.0
Measured = dict[str, Any]


def stamped(
    first: int, rows: int, width: int, tx: int, producer: int, hints: Sequence[int]
) -> pa.RecordBatch:
    """Rows with clocks from `first` on; an ACK behind every `tx` of them, unless it is 0."""
    step = tx + 1 if tx else 1
    total = rows // tx * step if tx else rows
    places = np.arange(total)
    is_ack = (places % step == tx) if tx else np.zeros(total, bool)
    clocks = (places + first).astype(np.uint64)
    flags = np.where(is_ack, Flag.ACK, Flag.CONTINUE if tx else Flag.OUTSIDE).astype(np.uint8)
    lengths = np.where(is_ack, len(hints), 0)
    named = pa.ListArray.from_arrays(
        pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32)),
        pa.array(np.tile(np.array(hints, np.int64), int(is_ack.sum()))),
        mask=pa.array(~is_ack),
    )
    values = random_values(total, width - 8)
    keys = pa.array((places * 2654435761) % 1_000_003, mask=is_ack)
    arrays = [
        pa.array(np.full(total, producer, np.int64)),
        pa.array(clocks),
        pa.array(flags),
        named,
        pa.nulls(total, pa.binary()),
        pa.nulls(total, STAMPED.field("_mr_timestamp").type),
        keys,
        values,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=STAMPED)


def random_values(rows: int, width: int) -> pa.Array:
    """Bytes that nothing can be left out of, in whatever form they are kept."""
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(width))
    content = pa.py_buffer(np.random.default_rng(rows).bytes(rows * width))
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, content])


def fill(broker: Broker, rows: int, journals: int, width: int, tx: int) -> int:
    """Write rows; how many there are. A transaction is in two journals where there are two."""
    names = [f"bench/{n:06d}" for n in range(journals)]
    infos = broker.create_many(names, SCHEMA)
    each = max(tx or 1, rows // journals)
    each -= each % (tx or 1)
    written = 0
    begin = clock_at(time.time_ns() - 3_600_000_000_000)
    for place, info in enumerate(infos):
        partner = infos[place ^ 1] if (place ^ 1) < len(infos) and tx else None
        # Both journals of a pair are written by one producer with the same clocks of ACKs.
        producer = 1 + place // 2 if tx else 1 + place
        clock = int(begin)
        left = each
        while left:
            count = min(left, APPEND_ROWS - APPEND_ROWS % (tx or 1) or tx)
            hints = [partner.id] if partner is not None else []
            batch = stamped(clock, count, width, tx, producer, hints)
            broker.append_stamped(info.name, batch)
            clock += batch.num_rows
            written += count
            left -= count
    return written


@contextmanager
def workspace() -> Iterator[mr.Workspace]:
    folder = tempfile.mkdtemp(prefix="reads-")
    try:
        with mr.open(folder) as ws:
            yield ws
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def a_read(name: str, prefix: str = "bench") -> mr.CoordinatedRead:
    return mr.CoordinatedRead(name, [mr.Binding(name="all", prefix=prefix, key="key")])


def drain(session: ReadSession, wanted: int) -> tuple[int, int, list[Checkpoint]]:
    """Read and commit everything; rows, bytes of all checkpoints, and the first few."""
    rows, size = 0, 0
    first: list[Checkpoint] = []
    while rows < wanted:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None, f"{rows} of {wanted} rows after {LONG_S} s"
        if len(first) < 2:
            first.append(checkpoint)
        for member in range(session.members):
            rows += sum(batch.num_rows for batch in session.batches(member, checkpoint))
        size += 1
        session.commit(checkpoint)
    assert rows == wanted, (rows, wanted)
    return rows, size, first


def measure_rows(rows: int, width: int, journals: int, tx: int, members: int) -> Measured:
    with workspace() as ws:
        written = fill(broker_of(ws.journals), rows, journals, width, tx)
        broker_of(ws.journals).tidy()
        cpu, begun = time.process_time(), time.perf_counter()
        with ws.reads(a_read("rows"), members=members) as session:
            opened = time.perf_counter() - begun
            _, checkpoints, _ = drain(session, written)
            took = time.perf_counter() - begun
            used = time.process_time() - cpu
    return {
        "benchmark": "reads",
        "part": "rows",
        "case": f"{width} B, {journals:,} journals, tx {tx}, {members} members",
        "rows": written,
        "rows_per_s": round(written / took),
        "rows_per_cpu_s": round(written / used),
        "open_s": round(opened, 3),
        "checkpoints": checkpoints,
    }


def fill_ordered(
    broker: Broker, prefix: str, rows: int, journals: int, *, is_interleaved: bool
) -> int:
    """Write rows with clocks that differ; how many there are."""
    infos = broker.create_many([f"{prefix}/{n:06d}" for n in range(journals)], SCHEMA)
    each = rows // journals
    begin = clock_at(time.time_ns() - 3_600_000_000_000)
    for place, info in enumerate(infos):
        first = begin + (place if is_interleaved else place * each)
        step = journals if is_interleaved else 1
        for at in range(0, each, APPEND_ROWS):
            count = min(APPEND_ROWS, each - at)
            batch = stamped(1, count, 100, 0, 1 + place, [])
            clocks = first + (at + np.arange(count)) * step
            field = batch.schema.field("_mr_clock")
            index = batch.schema.get_field_index("_mr_clock")
            batch = batch.set_column(index, field, pa.array(clocks.astype(np.uint64)))
            broker.append_stamped(info.name, batch)
    return each * journals


ORDERS: Final = {
    "one": "one journal",
    "interleaved": "interleaved, 1,000 journals",
    "after": "one after the other, 1,000 journals",
}
"""The cases of `order` by the prefix of their journals."""


def measure_order(rows: int) -> list[Measured]:
    """One journal and a thousand of them in two orders, each warm; then one journal again."""
    with workspace() as ws:
        broker, written = broker_of(ws.journals), {}
        for prefix in ORDERS:
            journals, is_interleaved = 1 if prefix == "one" else 1000, prefix == "interleaved"
            written[prefix] = fill_ordered(
                broker, prefix, rows, journals, is_interleaved=is_interleaved
            )
        broker.tidy()
        for prefix in ORDERS:
            read_order(ws, prefix, f"warm-{prefix}", written[prefix])
        found = [
            read_order(ws, prefix, f"read-{number}", written[prefix])
            for number, prefix in enumerate([*ORDERS, "one"])
        ]
    by_cpu = (found[0]["rows_per_cpu_s"] + found[-1]["rows_per_cpu_s"]) / 2
    by_clock = (found[0]["rows_per_s"] + found[-1]["rows_per_s"]) / 2
    for each in found:
        each["ratio"] = round(each["rows_per_cpu_s"] / by_cpu, 2)
        each["ratio_by_clock"] = round(each["rows_per_s"] / by_clock, 2)
    return found


def read_order(ws: mr.Workspace, prefix: str, name: str, rows: int) -> Measured:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu, begun = time.process_time(), time.perf_counter()
    with ws.reads(a_read(name, prefix), members=1) as session:
        _, checkpoints, _ = drain(session, rows)
        took, used = time.perf_counter() - begun, time.process_time() - cpu
    return {
        "benchmark": "reads",
        "part": "order",
        "case": ORDERS[prefix],
        "rows": rows,
        "rows_per_s": round(rows / took),
        "rows_per_cpu_s": round(rows / used),
        "page_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
        "checkpoints": checkpoints,
    }


def measure_many(journals: int, members: int = 10) -> Measured:
    """Very many journals with five rows each."""
    with workspace() as ws:
        written = fill_groups(broker_of(ws.journals), journals)
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, begun = time.process_time(), time.perf_counter()
        with ws.reads(a_read("many"), members=members) as session:
            opened = time.perf_counter() - begun
            _, checkpoints, first = drain(session, written)
            took, used = time.perf_counter() - begun, time.process_time() - cpu
            later = fill_some(broker_of(ws.journals), 100)
            _, _, last = drain(session, later)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "benchmark": "reads",
        "part": "many",
        "case": f"{journals:,} journals of 5 rows, {members} members",
        "rows": written,
        "open_s": round(opened, 2),
        "all_read_s": round(took, 2),
        "all_read_cpu_s": round(used, 2),
        "rows_per_s": round(written / took),
        "checkpoints": checkpoints,
        "first_delta_bytes": len(first[0].to_bytes()),
        "later_delta_bytes": len(last[0].to_bytes()),
        "streams": members + members**2,
        "peak_mib": peak // 1024,
        "grew_mib": (peak - base) // 1024,
    }


def fill_groups(broker: Broker, journals: int) -> int:
    """Transactions over 1, 2 and 5 journals in turn, five rows a journal."""
    names = [f"bench/{n:06d}" for n in range(journals)]
    infos = broker.create_many(names, SCHEMA)
    place, producer = 0, 0
    clock = clock_at(time.time_ns() - 3_600_000_000_000)
    with ThreadPoolExecutor(16) as pool:  # Appends of several threads share a commit.
        while place < journals:
            size = min((1, 2, 5)[producer % 3], journals - place)
            group = infos[place : place + size]
            for info in group:
                hints = [each.id for each in group if each is not info]
                rows = stamped(clock, 5, 100, 5, producer + 1, hints)
                pool.submit(broker.append_stamped, info.name, rows)
            place, producer = place + size, producer + 1
    return 5 * journals


def fill_some(broker: Broker, journals: int) -> int:
    clock = clock_at(time.time_ns())
    for n in range(journals):
        broker.append_stamped(f"bench/{n:06d}", stamped(clock, 5, 100, 5, 1_000_000 + n, []))
    return 5 * journals


def measure_latency(tx: int, per_s: float, seconds: float) -> Measured:
    """From the return of an append with its ACK until its checkpoint was read."""
    with workspace() as ws:
        broker = broker_of(ws.journals)
        broker.create("bench/0", SCHEMA)
        said: list[tuple[int, float]] = []
        done = threading.Event()

        def write() -> None:
            clock = int(clock_at(time.time_ns()))
            count = 0
            begun = time.perf_counter()
            while time.perf_counter() - begun < seconds:
                broker.append_stamped("bench/0", stamped(clock, tx, 100, tx, 1, []))
                clock += tx + 1
                count += tx
                said.append((count, time.perf_counter()))
                ahead = begun + len(said) / per_s - time.perf_counter()
                if ahead > 0:
                    time.sleep(ahead)
            done.set()

        seen: list[tuple[int, float]] = []
        with ws.reads(a_read("latency"), members=1) as session:
            writer = threading.Thread(target=write)
            writer.start()
            rows = 0
            while not (done.is_set() and rows == said[-1][0]):
                checkpoint = session.next_checkpoint(0.5)
                if checkpoint is None:
                    continue
                rows += sum(batch.num_rows for batch in session.batches(0, checkpoint))
                seen.append((rows, time.perf_counter()))
                session.commit(checkpoint)
            writer.join()
    waits = []
    place = 0
    for count, at in said:
        while seen[place][0] < count:
            place += 1
        waits.append((seen[place][1] - at) * 1000)
    return {
        "benchmark": "reads",
        "part": "latency",
        "case": f"transactions of {tx} rows, {per_s:.0f}/s",
        "ms_p50": round(float(np.percentile(waits, 50)), 2),
        "ms_p99": round(float(np.percentile(waits, 99)), 2),
        "transactions": len(said),
    }


def measure_spark(rows: int, width: int) -> Measured:
    """Millrace and Spark over the same rows."""
    mine = measure_rows(rows, width, 1, 0, 2)
    folder = tempfile.mkdtemp(prefix="reads-spark-")
    spark = start_session()
    try:
        write_files(folder, rows, width)
        times = []
        for turn in ("warm", "measured", "again"):
            begun = time.perf_counter()
            stream_through(spark, folder, os.path.join(folder, turn))
            times.append(time.perf_counter() - begun)
        took = min(times[1:])
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "benchmark": "reads",
        "part": "spark",
        "case": f"{width} B, {rows:,} rows, 2 members, 2 tasks",
        "millrace_rows_per_s": mine["rows_per_s"],
        "spark_rows_per_s": round(rows / took),
        "ratio": round(mine["rows_per_s"] / (rows / took), 2),
    }


def write_files(folder: str, rows: int, width: int) -> None:
    """The same rows as Parquet, in as many files as there would be appends."""
    target = os.path.join(folder, "rows")
    os.makedirs(target)
    for number, begin in enumerate(range(0, rows, APPEND_ROWS * 10)):
        count = min(APPEND_ROWS * 10, rows - begin)
        batch = stamped(begin + 1, count, width, 0, 1, [])
        table = pa.table(
            {"key": batch["key"], "clock": batch["_mr_clock"], "value": batch["value"]}
        )
        table = table.set_column(1, "clock", table["clock"].cast(pa.int64()))
        pq.write_table(table, os.path.join(target, f"{number:04d}.parquet"), compression="none")


def stream_through(spark: SparkSession, folder: str, checkpoint: str) -> None:
    """One streaming query over all files."""
    frame = spark.readStream.schema("key long, clock long, value binary").parquet(
        os.path.join(folder, "rows")
    )
    query = (
        frame.repartition(2, "key")
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def cases(rows: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Rows, width, journals, rows of a transaction, members."""
    for members in (1, 2, 4):
        yield rows, 100, 1, 0, members
    yield rows // 4, 1000, 1, 0, 1
    yield rows // 4, 1000, 1, 0, 2
    for tx in (0, 1000):
        yield rows, 100, 1000, tx, 1
    for tx in (1, 10, 1000):
        yield rows // (10 if tx == 1 else 1), 100, 2, tx, 1
    yield rows, 100, 2, 1000, 2


def show(found: list[Measured]) -> None:
    console = Console(stderr=True)
    table = Table(*[key for key in found[0] if key not in ("benchmark", "part")])
    for each in found:
        table.add_row(
            *[
                f"{v:,}" if isinstance(v, int) else str(v)
                for k, v in each.items()
                if k not in ("benchmark", "part")
            ]
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--journals", nargs="+", type=int, default=[1_000, 10_000, 100_000])
    every = ["rows", "order", "many", "latency", "spark"]
    parser.add_argument("--parts", nargs="+", default=every, choices=every)
    asked = parser.parse_args()
    for part in asked.parts:
        if part == "rows":
            found = [measure_rows(*case) for case in cases(asked.rows)]
        elif part == "order":
            found = measure_order(asked.rows)
        elif part == "many":
            found = [measure_many(count) for count in asked.journals]
        elif part == "latency":
            found = [measure_latency(tx, 100, 5) for tx in (1, 10, 1000)]
        else:
            found = [measure_spark(asked.rows, 100), measure_spark(asked.rows // 4, 1000)]
        show(found)
        for each in found:
            print(json.dumps(each))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
