"""Appending to journals and fetching from them, durably, and opening after a crash.

    .venv/bin/python benchmarks/journal.py [--rows N] [--open-rows N] [--open-journals N]

Rows of 1 KB in batches of 100, from 1 to 8 writers, into one journal and into one for each writer.
"append" is how long a writer waits for its answer, which comes when the rows are on disk.
"to fetch" is from the beginning of an append until a reader, who waits for it, has the rows. Then a
process is killed that has appended a million rows, and the time to open what it left is taken.

"joined" is the embedded broker owned by another process and joined over Arrow Flight, as Spark's
tasks do it; what a publish and a read cost in CPU there, on both sides, is shown by itself, and so
is how much many processes get through one owner.

`PEERS` is where other brokers stand beside: each makes the same calls in the same run. Kafka is not
among them yet; a plain file that is written and synced for each batch shows what the disk allows. A
last line has all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from typing import Any, Self

import numpy as np
import pyarrow as pa

import millrace as mr
from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.workspace import runtime_of

BATCH_ROWS = 100
ROW_BYTES = 1000
SCHEMA = pa.schema([("v", pa.binary())])
WRITERS = (1, 2, 4, 8)

Open = Callable[[str], Broker]
Queue = Any
CPU_CALLS = 500


def own(folder: str) -> None:
    """Own the journals of a workspace until killed."""
    mr.open(folder, create=True).journals.list()
    threading.Event().wait()


class Joined(JoinedBroker):
    """A client of an owner in a process of its own, which ends with it."""

    def __init__(self, folder: str) -> None:
        ws = mr.open(folder, create=True)
        self.owner = multiprocessing.get_context("spawn").Process(
            target=own, args=(folder,), daemon=True
        )
        self.owner.start()
        where = JournalAddress(path=ws.path, token=runtime_of(ws).token, workspace_id=ws.id)
        limits = Config(owner_retries_max=20, owner_backoff_ms=10)
        super().__init__(join_journals(where, limits)._caller)  # noqa: SLF001 - to be one itself
        self.list()

    @classmethod
    def start(cls, folder: str) -> Self:
        """Start an owner and join it."""
        return cls(folder)

    def close(self) -> None:
        super().close()
        self.owner.kill()
        self.owner.join()


PEERS: dict[str, Open] = {
    "embedded": EmbeddedBroker.open,
    "joined": Joined.start,
    "memory": lambda _: MemoryBroker(Config()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    broker: str
    case: str
    writers: int
    rows_per_s: float
    append_ms_p50: float
    append_ms_p99: float
    fetch_ms_p50: float
    fetch_ms_p99: float
    read_rows_per_s: float


def batch(seed: int) -> pa.RecordBatch:
    data = np.random.default_rng(seed).bytes(BATCH_ROWS * ROW_BYTES)
    rows = [data[i * ROW_BYTES : (i + 1) * ROW_BYTES] for i in range(BATCH_ROWS)]
    return pa.record_batch({"v": pa.array(rows, pa.binary())})


def percentile(times: list[float], share: float) -> float:
    return 1000 * sorted(times)[min(len(times) - 1, int(len(times) * share))]


def fetch_along(broker: Broker, name: str, total: int, here: dict[int, float]) -> None:
    """Read as rows come, noting when each batch was here."""
    at = 0
    while at < total:
        broker.wait_for_rows({name: at}, timeout_s=5)
        fetched = broker.read(name, at)
        now = time.perf_counter()
        here.update(dict.fromkeys(range(at, fetched.next_offset, BATCH_ROWS), now))
        at = fetched.next_offset


def measure(kind: str, writers: int, rows: int, *, many: bool) -> Result:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        broker = PEERS[kind](os.path.join(folder, "mill"))
        names = [f"j/{number}" for number in range(writers if many else 1)]
        broker.create_many(names, SCHEMA)
        each = max(1, rows // BATCH_ROWS // writers)
        took: list[float] = []
        # The reader follows the first journal; batches are known by their offset on both sides.
        begun: dict[int, float] = {}
        here: dict[int, float] = {}
        total = each * BATCH_ROWS * (1 if many else writers)
        reader = threading.Thread(target=fetch_along, args=(broker, names[0], total, here))

        def write(number: int) -> None:
            mine = batch(number)
            name = names[number % len(names)]
            for _ in range(each):
                start = time.perf_counter()
                done = broker.append(name, mine)
                if name == names[0]:
                    begun[done.first_offset] = start
                took.append(time.perf_counter() - start)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
        start = time.perf_counter()
        for thread in (*threads, reader):
            thread.start()
        for thread in threads:
            thread.join()
        passed = time.perf_counter() - start
        reader.join()
        start, at = time.perf_counter(), 0
        while (found := broker.read(names[0], at)).num_rows:
            at = found.next_offset
        reading = time.perf_counter() - start
        broker.close()
    fetched = [here[first] - start for first, start in begun.items()]
    return Result(
        broker=kind,
        case="a journal each" if many else "one journal",
        writers=writers,
        rows_per_s=each * writers * BATCH_ROWS / passed,
        append_ms_p50=percentile(took, 0.5),
        append_ms_p99=percentile(took, 0.99),
        fetch_ms_p50=percentile(fetched, 0.5),
        fetch_ms_p99=percentile(fetched, 0.99),
        read_rows_per_s=total / reading,
    )


def cpu_s(pid: int) -> float:
    """CPU that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_per_call() -> dict[str, list[float]]:
    """CPU in ms of a publish with a commit, and of a read: of the client and of the owner."""
    small = pa.record_batch({"v": pa.array([b"0123456789"] * 16, pa.binary())})
    found = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        broker = Joined.start(os.path.join(folder, "mill"))
        assert broker.owner.pid is not None
        both = (os.getpid(), broker.owner.pid)
        for name, rows in (("100 rows of 1 KB", batch(0)), ("16 small rows", small)):
            broker.create("in", SCHEMA)
            broker.append("in", pa.concat_batches([small] * CPU_CALLS))
            broker.create("out", SCHEMA)
            for what in ("publish", "read"):
                before = [cpu_s(pid) for pid in both]
                for i in range(CPU_CALLS):
                    if what == "publish":
                        with broker.transaction() as t:
                            t.append("out", rows)
                            t.commit("g", "in", i + 1, expected=i or None)
                    else:
                        broker.read("out", i * rows.num_rows, rows_max=rows.num_rows)
                after = [cpu_s(pid) for pid in both]
                found[f"{what}, {name}"] = [
                    1000 * (b - a) / CPU_CALLS for a, b in zip(before, after, strict=True)
                ]
            broker.delete("in")
            broker.delete("out")
        broker.close()
    return found


def work(where: JournalAddress, seconds: float, number: int, begin: Barrier, out: Queue) -> None:
    """A worker in a process of its own: it appends to its journal until its time is over."""
    client = join_journals(where)
    mine, took = batch(number), []
    client.create(f"w/{number}", SCHEMA)
    begin.wait()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        client.append(f"w/{number}", mine)
        took.append(time.perf_counter() - start)
    out.put(took)
    client.close()


def saturate(workers: int, seconds: float) -> tuple[float, float, float]:
    """Rows per second, p50 and p99 of an append, of many processes that joined one owner."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        broker = Joined.start(os.path.join(folder, "mill"))
        ws = mr.open(os.path.join(folder, "mill"))
        where = JournalAddress(path=ws.path, token=runtime_of(ws).token, workspace_id=ws.id)
        begin, out = spawn.Barrier(workers), spawn.Queue()
        processes = [
            spawn.Process(target=work, args=(where, seconds, n, begin, out)) for n in range(workers)
        ]
        for process in processes:
            process.start()
        took = [each for _ in processes for each in out.get()]
        for process in processes:
            process.join()
        broker.close()
    rate = len(took) * BATCH_ROWS / seconds
    return rate, percentile(took, 0.5), percentile(took, 0.99)


def plain_file(rows: int) -> float:
    """Rows per second of a file that is synced after each batch: what the disk allows."""
    data = b"x" * (BATCH_ROWS * ROW_BYTES)
    with tempfile.NamedTemporaryFile(dir=".") as file:
        start = time.perf_counter()
        for _ in range(rows // BATCH_ROWS):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return rows / (time.perf_counter() - start)


def fill_and_die(folder: str, rows: int, journals: int) -> None:
    broker = EmbeddedBroker.open(folder)
    names = [f"j/{number}" for number in range(journals)]
    for begin in range(0, journals, 10_000):
        broker.create_many(names[begin : begin + 10_000], SCHEMA)
    mine = batch(1)
    threads = [
        threading.Thread(
            target=lambda n: [
                broker.append(names[n], mine) for _ in range(rows // BATCH_ROWS // 4)
            ],
            args=(number % journals,),
        )
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


def open_after_crash(rows: int, journals: int) -> float:
    folder = tempfile.mkdtemp(dir=".")
    try:
        child = multiprocessing.get_context("spawn").Process(
            target=fill_and_die, args=(folder, rows, journals)
        )
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, child.exitcode
        start = time.perf_counter()
        broker = EmbeddedBroker.open(folder)
        passed = time.perf_counter() - start
        found = sum(broker.backlog("g", f"j/{n}") for n in range(min(4, journals)))
        assert found == 4 * (rows // BATCH_ROWS // 4) * BATCH_ROWS, found
        broker.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return passed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", nargs="*", type=int, default=(1, 2, 4, 8, 16, 32))
    parser.add_argument("--seconds", type=float, default=5, help="of each number of workers")
    parser.add_argument("--brokers", nargs="+", choices=PEERS, default=[*PEERS])
    parser.add_argument("--writers", nargs="+", type=int, default=WRITERS)
    parser.add_argument("--open-rows", type=int, default=1_000_000)
    parser.add_argument("--open-journals", type=int, default=100_000)
    asked = parser.parse_args()
    ceiling = plain_file(min(asked.rows, 50_000))
    print(f"a plain file, synced after each batch: {ceiling:,.0f} rows/s")
    heads = ("broker", "case", "writers", "rows/s", "append ms", "to fetch ms", "read rows/s")
    print("{:9} {:15} {:>7} {:>9} {:>15} {:>15} {:>11}".format(*heads))
    results = []
    for kind in asked.brokers:
        for many in (False, True):
            for writers in asked.writers:
                if many and writers == 1:
                    continue
                r = measure(kind, writers, asked.rows, many=many)
                results.append(r)
                appends = f"{r.append_ms_p50:.2f} / {r.append_ms_p99:.1f}"
                fetches = f"{r.fetch_ms_p50:.2f} / {r.fetch_ms_p99:.1f}"
                print(
                    f"{r.broker:9} {r.case:15} {r.writers:7} {r.rows_per_s:9,.0f} {appends:>15} "
                    f"{fetches:>15} {r.read_rows_per_s:11,.0f}",
                    flush=True,
                )
    used = cpu_per_call()
    for what, (client, owner) in used.items():
        print(f"joined, CPU of a {what}: client {client:.2f} ms, owner {owner:.2f} ms")
    joined = {workers: saturate(workers, asked.seconds) for workers in asked.workers}
    for workers, (rate, p50, p99) in joined.items():
        print(
            f"joined, {workers} processes: {rate:,.0f} rows/s, append {p50:.2f} / {p99:.1f} ms",
            flush=True,
        )
    opened = open_after_crash(asked.open_rows, asked.open_journals)
    print(
        f"open after a crash, {asked.open_rows:,} rows, {asked.open_journals:,} journals: "
        f"{opened:.2f} s"
    )
    found = {
        "plain_file": ceiling,
        "open_s": opened,
        "joined_cpu_ms": used,
        "joined_workers": joined,
        "results": [asdict(r) for r in results],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
