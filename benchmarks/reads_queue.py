"""A queue of coordinated reads: rows in, visible rows out, beside plain Arrow files.

    .venv/bin/python benchmarks/reads_queue.py [--rows 2000000] [--profile read]

Rows of 100 B and 1 KB, of 1, 1,000 and 10,000 tags, in messages of about 1 MiB. "one stream" comes
by clock, as one slice sends it; "two streams" have to be merged. "half" shows every other producer,
so that each block is visible in part. The peer writes the same batches to one IPC file, flushes
nothing, and reads them back mapped: no visibility, no order, no freeing. What is read is looked at
once, its clocks summed up, on both sides. The last line has all of it as JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millrace.config import GIB, Config
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible, Windows
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits
from millrace.reads.queue.queue_messages import Flush, QueueRows
from millrace.reads.queue.segment_files import SegmentFiles

ROUNDS = 3
MESSAGE_BYTES = 1 << 20
FLUSH_EVERY = 16
PRODUCERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    row_bytes: int
    tags: int
    streams: int = 1
    is_half: bool = False

    @property
    def name(self) -> str:
        how = "two streams" if self.streams == 2 else "one stream"
        return f"{self.row_bytes} B, {self.tags:,} tags, {how}{', half' if self.is_half else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    benchmark: str
    case: str
    rows: int
    in_rows_per_s: int
    out_rows_per_s: int
    release_s: float
    peer_in_rows_per_s: int
    peer_out_rows_per_s: int


CASES = [
    Case(row_bytes=100, tags=1),
    Case(row_bytes=100, tags=1_000),
    Case(row_bytes=100, tags=10_000),
    Case(row_bytes=100, tags=1, is_half=True),
    Case(row_bytes=100, tags=1_000, is_half=True),
    Case(row_bytes=100, tags=1_000, streams=2),
    Case(row_bytes=1_000, tags=1),
    Case(row_bytes=1_000, tags=1_000),
    Case(row_bytes=1_000, tags=1_000, streams=2),
]


def messages(case: Case, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of streams in turn; each stream by clock, clocks of all mixed."""
    random = np.random.default_rng(1)
    each = MESSAGE_BYTES // case.row_bytes
    text = case.row_bytes - 32 - 16 - 4
    offsets = np.zeros(case.tags, np.int64)
    for number in range(rows // each):
        stream = number % case.streams
        mine = np.arange(stream, case.tags, case.streams)
        tag = mine[random.integers(0, len(mine), each)]
        clock = (number // case.streams * each + np.arange(each)) * case.streams + stream + 1
        order = np.argsort(tag, kind="stable")
        firsts = np.flatnonzero(np.diff(tag[order], prepend=-1))
        rank = np.arange(each) - np.repeat(firsts, np.diff(firsts, append=each))
        offset = np.empty(each, np.int64)
        offset[order] = offsets[tag[order]] + rank
        offsets += np.bincount(tag, minlength=case.tags)
        value = pa.Array.from_buffers(
            pa.string(),
            each,
            [
                None,
                pa.py_buffer(np.arange(0, (each + 1) * text, text, dtype=np.int32)),
                pa.py_buffer(random.integers(97, 122, each * text, dtype=np.uint8)),
            ],
        )
        columns = {
            "_mr_tag": pa.array(tag),
            "_mr_producer": pa.array(random.integers(1, PRODUCERS + 1, each)),
            "_mr_clock": pa.array(clock.astype(np.uint64)),
            "_mr_offset": pa.array(offset),
            "id": pa.array(clock),
            "price": pa.array(random.random(each)),
            "value": value,
        }
        yield stream, pa.record_batch(columns)


def pairs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    producers = np.arange(1, (1 if case.is_half else PRODUCERS) + 1)
    return np.repeat(np.arange(case.tags), len(producers)), np.tile(producers, case.tags)


def visible(case: Case) -> Visible:
    tag, producer = pairs(case)
    above, upto = np.zeros(len(tag), np.uint64), np.full(len(tag), 2**62, np.uint64)
    return Visible(Windows(tag, producer, above, upto), RolledBack.empty())


def look_at(batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        assert batch.column("_mr_clock").to_numpy().sum() > 0
    return rows


def fill(queue: Queue, sent: list[tuple[int, pa.RecordBatch]], streams: int) -> None:
    numbers = [0] * streams
    for stream, batch in sent:
        numbers[stream] += 1
        queue.handle(stream, QueueRows(numbers[stream], batch))
        if numbers[stream] % FLUSH_EVERY == 0:
            queue.handle(stream, Flush(numbers[stream]))
    for stream in range(streams):
        queue.handle(stream, Flush(numbers[stream] + 1))


def with_queue(case: Case, sent: list[tuple[int, pa.RecordBatch]]) -> tuple[float, float, float]:
    folder = tempfile.mkdtemp(dir=".")
    limits = QueueLimits.of(Config().with_options(reads_disk_bytes_max=64 * GIB))
    queue = Queue(SegmentFiles(folder), limits, case.streams, [BindingOrder()])
    started = time.perf_counter()
    fill(queue, sent, case.streams)
    filled = time.perf_counter()
    rows = look_at(queue.batches(visible(case)))
    read = time.perf_counter()
    tag, producer = pairs(Case(row_bytes=case.row_bytes, tags=case.tags))
    ones = np.ones(len(tag), np.int64)
    shown = ShownClock(tag, producer, np.full(len(tag), 2**62, np.uint64), -ones, ones)
    queue.release(shown, RolledBack.empty())
    released = time.perf_counter()
    assert queue.stats().blocks == 0
    shutil.rmtree(folder)
    return filled - started, (read - filled) / rows, released - read


def with_plain_file(sent: list[tuple[int, pa.RecordBatch]]) -> tuple[float, float]:
    folder = Path(tempfile.mkdtemp(dir="."))
    path = str(folder / "plain.ipc")
    started = time.perf_counter()
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, sent[0][1].schema) as writer:
        for _, batch in sent:
            writer.write_batch(batch)
    filled = time.perf_counter()
    with pa.memory_map(path) as file:
        rows = look_at(pa.ipc.open_stream(file))
    read = time.perf_counter()
    shutil.rmtree(folder)
    return filled - started, (read - filled) / rows


def measure(case: Case, rows: int) -> Result:
    sent = list(messages(case, rows))
    total = sum(batch.num_rows for _, batch in sent)
    mine, peer = [], []
    for _ in range(ROUNDS):
        peer.append(with_plain_file(sent))
        mine.append(with_queue(case, sent))
    return Result(
        benchmark="reads_queue",
        case=case.name,
        rows=total,
        in_rows_per_s=int(total / statistics.median(each[0] for each in mine)),
        out_rows_per_s=int(1 / statistics.median(each[1] for each in mine)),
        release_s=round(statistics.median(each[2] for each in mine), 4),
        peer_in_rows_per_s=int(total / statistics.median(each[0] for each in peer)),
        peer_out_rows_per_s=int(1 / statistics.median(each[1] for each in peer)),
    )


def profile(case: Case, rows: int) -> None:
    sent = list(messages(case, rows))
    with cProfile.Profile() as found:
        with_queue(case, sent)
    pstats.Stats(found).sort_stats("tottime").print_stats(18)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--profile", help="show where time goes in cases with this in their name")
    options = parser.parse_args()
    table = Table("case", "in /s", "out /s", "release s", "file in /s", "file out /s")
    results = []
    for case in CASES:
        rows = options.rows if case.row_bytes == 100 else options.rows // 4
        if options.profile:
            if options.profile in case.name:
                profile(case, rows)
            continue
        found = measure(case, rows)
        results.append(asdict(found))
        values = (found.in_rows_per_s, found.out_rows_per_s, found.release_s)
        peer = (found.peer_in_rows_per_s, found.peer_out_rows_per_s)
        table.add_row(found.case, *(f"{value:,}" for value in (*values, *peer)))
    if results:
        Console(width=120).print(table)
        print(json.dumps(results))


if __name__ == "__main__":
    main()
