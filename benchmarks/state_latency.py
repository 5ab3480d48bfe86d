"""How long it takes from the append of a row to the changed total of its key, at a steady rate.

    .venv/bin/python benchmarks/state_latency.py [--rate 1000] [--seconds 20] [--keys 1000000]

Rows are appended to two journals, `key_by` and `aggregate` run in worker threads over the broker of
this process, and each total has the time at which its last row was appended. A reader looks for new
totals every 2 ms. Spark has no part in it: beside this, a worker in a task asks the owner of the
journals over the network of its host. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_model import JournalSource
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.steps import Step
from millrace.pipeline.run.job_journals import ensure_journals
from millrace.pipeline.worker.worker import Worker, WorkerSettings

JOB: Final = "latency"
SCHEMA: Final = pa.schema([("k", pa.int64()), ("at_us", pa.int64())])
JOURNALS: Final = 2
WORKERS: Final = 2
TICKS: Final = 50
"""Appends in a second."""
WARM_S: Final = 5.0


def now_us() -> int:
    return time.time_ns() // 1000


def started(broker: Broker, config: Config, folder: Path) -> list[Worker]:
    graph = JobGraph(JOB, config)
    source = JournalSource(name="rows", schema=SCHEMA, journals=("rows/",))
    graph.add(source)
    by_key = Step(graph, source, lambda *_: None).key_by("k", partitions=JOURNALS)  # type: ignore[arg-type]
    by_key.aggregate("totals", "upserts", n="count(*)", at="max(at_us)")
    ensure_journals(broker, graph.hops)
    lease = broker.acquire(hops.run_lease(JOB), "benchmark", lease_ms=3_600_000)
    settings = [
        WorkerSettings(
            config=config,
            holder=f"worker {number}",
            run_epoch=lease.epoch,
            time_zone="UTC",
            workspace=str(folder / "mill"),
            scratch=str(folder / "scratch"),
            job_id="one",
        )
        for number in range(WORKERS)
    ]
    return [Worker(broker, graph.hops, each) for each in settings]


def append(broker: Broker, keys: np.ndarray, at_us: int) -> None:
    for number, some in enumerate(np.array_split(keys, JOURNALS)):
        rows = pa.table([some, np.full(len(some), at_us)], schema=SCHEMA)
        broker.append(f"rows/{number}", rows)


def look(broker: Broker, begun_us: int, over: threading.Event, waits_us: list[int]) -> None:
    """Note how old each new total is when it can be read."""
    journals = [hops.output_journal(JOB, "totals", number) for number in range(JOURNALS)]
    at = {name: int(broker.end_offset(name)) for name in journals}
    while not over.wait(0.002):
        for name in journals:
            fetched = broker.read(name, at[name])
            at[name] = int(fetched.next_offset)
            if fetched.num_rows:
                times = fetched.rows()["at"].to_numpy()
                waits_us += (now_us() - times[times >= begun_us]).tolist()


def run(broker: Broker, folder: Path, given: argparse.Namespace) -> list[int]:
    chance, waits_us, over = np.random.default_rng(1), list[int](), threading.Event()
    for number in range(JOURNALS):
        broker.create(f"rows/{number}", SCHEMA)
    workers = started(broker, Config(), folder)
    append(broker, chance.permutation(given.keys), 0)
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    inputs = [
        (hops.step_root(JOB, step), info.name)
        for step, prefix in (("key_by", "rows"), ("totals", hops.output_prefix(JOB, "key_by")))
        for info in broker.list(prefix)
    ]
    while any(position.backlog for position in broker.positions(inputs)):
        time.sleep(0.1)
    begun = time.monotonic()
    args = (broker, now_us() + int(WARM_S * 1e6), over, waits_us)
    reader = threading.Thread(target=look, args=args)
    reader.start()
    for tick in range(int(TICKS * (WARM_S + given.seconds))):
        time.sleep(max(0.0, begun + tick / TICKS - time.monotonic()))
        append(broker, chance.integers(0, given.keys, given.rate // TICKS), now_us())
    time.sleep(1)
    over.set()
    for worker in workers:
        worker.stop()
    for thread in (reader, *threads):
        thread.join()
    return waits_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--keys", type=int, default=1_000_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-latency-"))
    broker = EmbeddedBroker.open(str(folder / "mill"))
    try:
        waits_us = run(broker, folder, given)
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)
    p50, p99 = np.percentile(waits_us, [50, 99]) / 1000
    found = {"rate": given.rate, "keys": given.keys, "totals": len(waits_us)}
    print(json.dumps(found | {"p50_ms": round(float(p50), 1), "p99_ms": round(float(p99), 1)}))


if __name__ == "__main__":
    main()
