"""Opening a workspace's journals after their owner was killed while it appended.

    .venv/bin/python benchmarks/open.py [--rows 1000000] [--journals 1 100000] [--row-bytes 50]

A process owns the journals, spreads the rows over them and goes on appending until it is killed
with SIGKILL. `open_s` is from `millrace.open` in another process until the first rows are read,
goal under 5 s; `open_cpu_s` is its CPU alone, which other work on the machine changes less;
`append_s` is the first append behind that. Beside it the same after an orderly close: `ratio` is
what the crash costs. Every row that was acknowledged must be there.

Rows of 50 bytes in 100,000 journals just fit into what may wait in the ledger
(`Config.journal_waiting_total_bytes_max`). With more bytes the filling becomes slow: every commit
then moves small journals out into files of their own.

The table goes to stderr, one JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace.journal.api import broker_of

SCHEMA: Final = pa.schema([("v", pa.binary())])
WRITERS: Final = 4
TOGETHER: Final = 20
"""Journals of one transaction."""
APPEND_ROWS_MAX: Final = 1_000
GOAL_S: Final = 5
FILL_S_MAX: Final = 1_800
SAY_S: Final = 5
CONTEXT: Final = multiprocessing.get_context("spawn")

Counter = Any
"""A number shared by two processes; multiprocessing has no type for it."""
Measured = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def journal(number: int) -> str:
    return f"j/{number // 1000}/{number}"


def batch(rows: int, row_bytes: int) -> pa.RecordBatch:
    data = np.random.default_rng(rows).bytes(rows * row_bytes)
    values = [data[i * row_bytes : (i + 1) * row_bytes] for i in range(rows)]
    return pa.record_batch([pa.array(values, pa.binary())], schema=SCHEMA)


def fill(folder: str, rows: int, journals: int, row_bytes: int, acked: Counter) -> None:
    """Own the journals, append the rows, and go on appending until killed."""
    broker = broker_of(mr.open(folder, create=True).journals)
    names = [journal(number) for number in range(journals)]
    for begin in range(0, journals, 10_000):
        broker.create_many(names[begin : begin + 10_000], SCHEMA)
    say(f"made {journals:,} journals")
    mine = batch(min(rows // journals, APPEND_ROWS_MAX), row_bytes)
    groups = [names[at : at + TOGETHER] for at in range(0, journals, TOGETHER)]

    def append(first: int) -> None:
        for some in itertools.cycle(groups[first:] + groups[:first]):
            with broker.transaction() as t:
                for name in some:
                    t.append(name, mine)
            with acked.get_lock():
                acked.value += mine.num_rows * len(some)

    # Writers begin a part of the journals apart, so that all are filled after one round.
    firsts = [len(groups) * number // WRITERS for number in range(WRITERS)]
    threads = [threading.Thread(target=append, args=(first,)) for first in firsts]
    for thread in threads:
        thread.start()


def filled_and_killed(folder: str, rows: int, journals: int, row_bytes: int) -> int:
    """Have journals filled and their owner killed; the rows that it saw acknowledged."""
    acked: Counter = CONTEXT.Value("q", 0)
    child = CONTEXT.Process(target=fill, args=(folder, rows, journals, row_bytes, acked))
    child.start()
    until, said = time.monotonic() + FILL_S_MAX, time.monotonic()
    while acked.value < rows:
        assert child.is_alive(), "whoever fills the journals ended"
        assert time.monotonic() < until, "filling the journals takes too long"
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            say(f"{acked.value:,} of {rows:,} rows")
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL, child.exitcode
    return int(acked.value)


def open_once(folder: str, first: str, row_bytes: int) -> tuple[float, float, float]:
    """Seconds until the first read, of its CPU, and of the first append."""
    begun, used = time.perf_counter(), time.process_time()
    ws = mr.open(folder)
    assert ws.journals.read(first, 0).num_rows > 0
    opened, used = time.perf_counter() - begun, time.process_time() - used
    begun = time.perf_counter()
    ws.journals.append(first, batch(1, row_bytes))
    appended = time.perf_counter() - begun
    ws.close()
    return opened, used, appended


def count(folder: str, journals: int) -> int:
    with mr.open(folder) as ws:
        names = [journal(number) for number in range(journals)]
        found = 0
        for begin in range(0, journals, 10_000):
            asked = [("nobody", name) for name in names[begin : begin + 10_000]]
            found += sum(position.backlog for position in broker_of(ws.journals).positions(asked))
    return found


def measure(rows: int, journals: int, row_bytes: int) -> Measured:
    top = tempfile.mkdtemp(dir=".")
    folder, first = os.path.join(top, "mill"), journal(0)
    try:
        begun = time.perf_counter()
        acked = filled_and_killed(folder, rows, journals, row_bytes)
        say(f"filled and killed after {time.perf_counter() - begun:.0f} s")
        opened, used, appended = open_once(folder, first, row_bytes)
        clean, _, _ = open_once(folder, first, row_bytes)
        found = count(folder, journals)
        assert found >= acked + 2, f"{acked + 2:,} rows were acknowledged, {found:,} are there"
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return {
        "case": f"{rows:,} rows, {journals:,} journals",
        "open_s": round(opened, 3),
        "open_cpu_s": round(used, 3),
        "append_s": round(appended, 4),
        "clean_open_s": round(clean, 3),
        "ratio": round(opened / clean, 2),
        "rows_found": found,
        "goal_s": GOAL_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--journals", nargs="+", type=int, default=[1, 100_000])
    parser.add_argument("--row-bytes", type=int, default=50)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # What is imported on the way is not measured.
        with mr.open(folder) as ws:
            ws.journals.create(journal(0), SCHEMA)
            ws.journals.append(journal(0), batch(1, 1))
        open_once(folder, journal(0), 1)
    found = []
    for journals in asked.journals:
        found.append(measure(asked.rows, journals, asked.row_bytes))
        print(json.dumps({"benchmark": "open", **found[-1]}), flush=True)
    table = Table(*found[0], title="opening after a crash")
    for one in found:
        table.add_row(*(str(value) for value in one.values()))
    Console(stderr=True, width=160).print(table)


if __name__ == "__main__":
    main()
