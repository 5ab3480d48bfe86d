"""Followers of one journal that share one read, against each reading on its own.

    .venv/bin/python benchmarks/live.py [--rows 2000000] [--followers 1 4 16] [--row-bytes 100]

One journal of an embedded broker is followed from its first row to its last by so many followers, a
thread each, as an owner serves them. Their ranges of keys tile the key space, so that together they
get every row once. `shared` is one ring: a row is read and hashed once. The peer is what each would
do without it: read the whole journal, hash it, keep its own range. Rows/s are those of the journal,
times are the best of several runs; a ratio above 1 means that sharing is faster.

A table goes to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millrace.config import Config
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.keys.key_ranges import WHOLE, KeyRange, tile, unsigned
from millrace.keys.spark_hash import hash32
from millrace.reads.live.follow_requests import FollowRequest
from millrace.reads.live.follower import Following
from millrace.reads.live.live_reads import LiveReads

NAME: Final = "followed"
RUNS: Final = 5
BATCH_ROWS: Final = 20_000
SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.binary())])
CONFIG: Final = Config()

Took = tuple[float, float]
"""Seconds that passed, and of CPU."""


def fill(broker: EmbeddedBroker, rows: int, row_bytes: int) -> None:
    rng = np.random.default_rng(1)
    broker.create(NAME, SCHEMA)
    for begin in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - begin)
        keys = pa.array(rng.integers(0, 2**62, count))
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * row_bytes)
        data = pa.py_buffer(rng.bytes(count * row_bytes))
        values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])
        broker.append(NAME, pa.record_batch([keys, values], schema=SCHEMA))


def alone(broker: EmbeddedBroker, mine: KeyRange) -> int:
    """Read the whole journal, keep one's own rows."""
    at, found = 0, 0
    while True:
        fetched = broker.read(
            NAME,
            at,
            rows_max=CONFIG.live_read_rows_max,
            bytes_max=CONFIG.live_read_bytes_max,
        )
        if fetched.next_offset == at:
            return found
        at = fetched.next_offset
        if mine == WHOLE:
            found += fetched.num_rows
            continue
        for batch in fetched.batches:
            mask = mine.mask(unsigned(hash32(batch, "k")))
            found += batch.filter(pa.array(mask)).num_rows


def shared(following: Following) -> int:
    found = 0
    while not following.is_done:
        fetched = following.next(1)
        found += 0 if fetched is None else fetched.num_rows
    following.close()
    return found


def together(works: list[Callable[[], int]], rows: int) -> Took:
    """Run each in a thread; all of them together must find every row once."""
    found = [0] * len(works)
    begin = threading.Barrier(len(works) + 1)

    def run(number: int) -> None:
        begin.wait()
        found[number] = works[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    begin.wait()
    begun, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begun, time.process_time() - cpu
    assert sum(found) == rows, (found, rows)
    return took


def measure(broker: EmbeddedBroker, count: int, rows: int) -> dict[str, object]:
    live = LiveReads(broker, CONFIG)
    ours, peers = [], []
    for _ in range(RUNS):
        followers = [
            Following(live, FollowRequest(prefix=NAME, keys=("k",), range=each, until_end=True))
            for each in tile(count)
        ]
        ours.append(together([lambda f=each: shared(f) for each in followers], rows))  # type: ignore[misc]
        peers.append(together([lambda r=each: alone(broker, r) for each in tile(count)], rows))  # type: ignore[misc]
    mine, peer = min(ours), min(peers)
    return {
        "case": f"{count} followers",
        "followers": count,
        "shared_rows_per_s": round(rows / mine[0]),
        "alone_rows_per_s": round(rows / peer[0]),
        "shared_cpu_s": round(min(cpu for _, cpu in ours), 3),
        "alone_cpu_s": round(min(cpu for _, cpu in peers), 3),
        "ratio": round(peer[0] / mine[0], 2),
        "cpu_ratio": round(min(cpu for _, cpu in peers) / min(cpu for _, cpu in ours), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--row-bytes", type=int, default=100)
    parser.add_argument("--followers", nargs="+", type=int, default=[1, 4, 16])
    asked = parser.parse_args()
    folder = tempfile.mkdtemp(dir=".")
    try:
        broker = EmbeddedBroker.open(folder, CONFIG)
        fill(broker, asked.rows, asked.row_bytes)
        table = Table(title=f"one journal of {asked.rows:,} rows of {asked.row_bytes} bytes")
        for number, count in enumerate(asked.followers):
            found = measure(broker, count, asked.rows)
            print(json.dumps({"benchmark": "live", **found}), flush=True)
            if not number:
                for name in found:
                    table.add_column(name)
            table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in found.values()))
        Console(stderr=True, width=160).print(table)
        broker.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()


if __name__ == "__main__":
    main()
