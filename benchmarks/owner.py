"""Where one owner of journals saturates: processes that joined it publish, then read.

    .venv/bin/python benchmarks/owner.py [--joined 1 2 4 8 16] [--seconds 4] [--rows 100] \\
        [--inline BYTES]

The owner is a process of its own, with the embedded broker. Each joined process is one, too, as a
Spark worker is, and talks to it over Arrow Flight. `publish` appends `--rows` rows of 1 KB to a
journal of its own and commits an offset of a group, in one durable transaction, over and over.
`read` asks for rows of 8 journals in one call, 16 MiB at most, and begins again when it is through.

`times` is rows/s beside those of one process. CPU is in cores: what the owner uses, and what the
joined ones use together; `owner_ms` is its CPU for one call, `owner_ms_mb` for 1 MB.
The knee is the smallest number of processes that reaches 90% of the most rows/s. On a small machine
the joined processes take their CPU from the owner: when both together use all cores, the machine
is full and the owner may not be.

Tables go to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.workspace import runtime_of

BATCH_ROWS: Final = 100
ROW_BYTES: Final = 1000
SCHEMA: Final = pa.schema([("v", pa.binary())])
COMMITS_MAX: Final = 100_000
READ_JOURNALS: Final = 8
READ_ROWS: Final = 5_000
KNEE: Final = 0.9
WAIT_S: Final = 300
CONTEXT: Final = multiprocessing.get_context("spawn")

Measured = dict[str, Any]
Told = tuple[list[float], int, float]
"""Of one process: how long each call took, the rows of all, and its CPU in seconds."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def batch(count: int) -> pa.RecordBatch:
    data = np.random.default_rng(os.getpid()).bytes(count * ROW_BYTES)
    rows = [data[i * ROW_BYTES : (i + 1) * ROW_BYTES] for i in range(count)]
    return pa.record_batch([pa.array(rows, pa.binary())], schema=SCHEMA)


def own(folder: str) -> None:
    """Own the journals of a workspace until killed."""
    mr.open(folder).journals.list()
    threading.Event().wait()


def join(where: JournalAddress, inline_bytes_max: int) -> Broker:
    config = Config().with_options(
        owner_retries_max=20, owner_backoff_ms=10, journal_inline_bytes_max=inline_bytes_max
    )
    return join_journals(where, config)


def publisher(broker: Broker, number: int, count: int) -> Callable[[], int]:
    given, made, rows = f"in/{number}", f"out/{number}", batch(count)
    broker.create_many([given, made], SCHEMA)
    if not broker.end_offset(given):
        values = pa.array([b""] * COMMITS_MAX, pa.binary())
        broker.append(given, pa.record_batch([values], schema=SCHEMA))
    at: int | None = broker.committed("g", given)

    def publish() -> int:
        nonlocal at
        after = (at or 0) + 1
        with broker.transaction() as t:
            t.append(made, rows)
            t.commit("g", given, after, expected=at)
        at = after
        return count

    return publish


def reader(broker: Broker, number: int, _count: int) -> Callable[[], int]:
    # Each begins with another journal, so that not all ask for the same ranges.
    names = [f"read/{(n + number) % READ_JOURNALS}" for n in range(READ_JOURNALS)]
    at = dict.fromkeys(names, 0)

    def read() -> int:
        found = broker.read_many(ReadRequest(offsets=at))
        rows = sum(one.num_rows for one in found.values())
        at.update({name: one.next_offset for name, one in found.items()})
        if not rows:
            at.update(dict.fromkeys(names, 0))
        return rows

    return read


KINDS: Final = {"publish": publisher, "read": reader}


def work(
    kind: str,
    where: JournalAddress,
    number: int,
    asked: argparse.Namespace,
    begin: Barrier,
    told: Queue[Told],
) -> None:
    """One joined process: call again and again, and tell how it went."""
    broker = join(where, asked.inline)
    call = KINDS[kind](broker, number, asked.rows)
    call()
    begin.wait(WAIT_S)
    took, rows, cpu = list[float](), 0, time.process_time()
    until = time.perf_counter() + asked.seconds
    while (begun := time.perf_counter()) < until:
        rows += call()
        took.append(time.perf_counter() - begun)
    told.put((took, rows, time.process_time() - cpu))
    broker.close()


def measure(
    kind: str, where: JournalAddress, owner: int, count: int, asked: argparse.Namespace
) -> Measured:
    begin = CONTEXT.Barrier(count + 1)
    told: Queue[Told] = CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=work, args=(kind, where, number, asked, begin, told))
        for number in range(count)
    ]
    for process in processes:
        process.start()
    begin.wait(WAIT_S)
    begun, used = time.perf_counter(), cpu_s(owner)
    answers = [told.get(timeout=WAIT_S) for _ in processes]
    passed, used = time.perf_counter() - begun, cpu_s(owner) - used
    for process in processes:
        process.join()
    rows = sum(rows for _, rows, _ in answers)
    times = sorted(taken for took, _, _ in answers for taken in took)
    return {
        "case": f"{kind}, {count} joined",
        "joined": count,
        "rows_per_s": round(rows / passed),
        "calls_per_s": round(len(times) / passed, 1),
        "ms_p50": round(1000 * times[len(times) // 2], 2),
        "ms_p99": round(1000 * times[min(len(times) - 1, int(len(times) * 0.99))], 2),
        "owner_cpu": round(used / passed, 2),
        "owner_ms": round(1000 * used / len(times), 2),
        "owner_ms_mb": round(1000 * used / (rows * ROW_BYTES / 1e6), 2),
        "joined_cpu": round(sum(cpu for _, _, cpu in answers) / passed, 2),
    }


def cpu_s(pid: int) -> float:
    """CPU that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def knee(found: Sequence[Measured]) -> int:
    """The fewest joined processes with nearly the most rows per second."""
    most = max(one["rows_per_s"] for one in found)
    return next(int(one["joined"]) for one in found if one["rows_per_s"] >= KNEE * most)


def fill(broker: Broker) -> None:
    """Rows for the readers."""
    names = [f"read/{number}" for number in range(READ_JOURNALS)]
    broker.create_many(names, SCHEMA)
    rows = pa.Table.from_batches([batch(BATCH_ROWS)] * (READ_ROWS // BATCH_ROWS))
    for name in names:
        broker.append(name, rows)


def start_owner(folder: str) -> tuple[BaseProcess, JournalAddress]:
    ws = mr.open(folder, create=True)
    where = JournalAddress(path=ws.path, token=runtime_of(ws).token, workspace_id=ws.id)
    process = CONTEXT.Process(target=own, args=(folder,))
    process.start()
    # Nobody else may call first, or it would be the owner.
    while not os.path.exists(os.path.join(folder, "owner.json")):
        assert process.is_alive(), "the owner ended"
        time.sleep(0.02)
    return process, where


def show(part: str, found: list[Measured]) -> None:
    first, at = found[0]["rows_per_s"], knee(found)
    table = Table(*found[0], "times", title=part)
    for one in found:
        one["times"] = round(one["rows_per_s"] / first, 2)
        print(json.dumps({"benchmark": "owner", "part": part, **one}), flush=True)
        table.add_row(*(str(value) for value in one.values()))
    Console(stderr=True, width=160).print(table)
    best = next(one for one in found if one["joined"] == at)
    say(f"{part}: the knee is at {at} joined, {best['rows_per_s']:,} rows/s")
    print(json.dumps({"benchmark": "owner", "part": part, "case": "knee", "joined": at}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--joined", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--parts", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rows", type=int, default=BATCH_ROWS, help="of one publish")
    parser.add_argument(
        "--inline",
        type=int,
        default=Config().journal_inline_bytes_max,
        help="rows of a larger publish are written by the joined process itself",
    )
    asked = parser.parse_args()
    folder = tempfile.mkdtemp(dir=".")
    owner, where = start_owner(os.path.join(folder, "mill"))
    try:
        assert owner.pid is not None
        client = join(where, asked.inline)
        fill(client)
        client.close()
        for part in asked.parts:
            found = []
            for count in sorted(asked.joined):
                found.append(measure(part, where, owner.pid, count, asked))
                say(json.dumps(found[-1]))
            show(part, found)
    finally:
        owner.kill()
        owner.join()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
