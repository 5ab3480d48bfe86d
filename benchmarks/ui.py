"""How long pages take, cold and warm, on a large workspace; and what looking costs what runs.

python benchmarks/ui.py [--rounds 5] [--small]

The workspace has 1M records of calls and 1M charges, 100,000 journals, 500 jobs, 10,000 runs, two
stages of 100,000 partitions and a coordinated read of 2,000 journals. Each round starts a server
and asks for every page once: the first time a page is made is the time that counts. The peer of the
last measure is the same work with no page open.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import millrace as mr
from millrace.ids import AttemptId, QueryId, StageId
from millrace.journal.broker import Broker
from millrace.metrics.process_metrics import COMMIT_REQUESTS, COMMIT_SECONDS
from millrace.pipeline.core import hops, job_events
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobPart, JobRecord
from millrace.pipeline.paid import call_records, charges
from millrace.shuffle import runs
from millrace.shuffle.manifest import Choice, Manifest
from millrace.storage.local import LocalStore
from millrace.workspace import runtime_of

JOB = "captions"
UNITS = 16
_BLOCK_S = 1.0
_ASKED_FIRST = 20
ROWS = pa.schema([("n", pa.int64())])
PAGES = (
    "/",
    "/runs",
    "/runs?at=5000",
    "/runs/{run}",
    "/runs/{wide}",
    "/runs/{wide}/stages/0",
    "/compare?a={wide}&b={run}",
    "/jobs",
    f"/jobs/{JOB}",
    f"/jobs/{JOB}/steps/caption",
    "/journals",
    "/journals?at=50000",
    "/journals?order=rows",
    "/journal/many/00042",
    "/reads",
    "/reads/totals",
    "/workspace",
    "/ask",
)


def make_journals(broker: Broker, count: int) -> None:
    for begin in range(0, count, 5_000):
        names = [f"many/{n:05}" for n in range(begin, min(begin + 5_000, count))]
        broker.create_many(names, ROWS)
    broker.append("many/00042", pa.table({"n": list(range(1_000))}))


def make_jobs(broker: Broker, count: int) -> None:
    """Jobs that ran once and are at rest."""
    for number in range(count):
        name = f"other{number:04}"
        broker.create(hops.runs_journal(name), job_events.SCHEMA)
        started = JobEvent(
            at_us=time.time_ns() // 1000,
            run=1,
            happened=JobEventKind.STARTED,
            detail={RECORDED: JobRecord(name).to_json()},
        )
        broker.append(hops.runs_journal(name), job_events.to_rows([started]))


def make_read(ws: mr.Workspace, journals: int) -> None:
    """A coordinated read of many journals, with a checkpoint that a session committed."""
    names = [f"shop/{n:05}" for n in range(journals)]
    broker = runtime_of(ws).joined_broker()
    broker.create_many(names, ROWS)
    for name in names[:50]:
        broker.append(name, pa.table({"n": list(range(100))}))
    read = mr.CoordinatedRead("totals", [mr.Binding(name="shops", prefix="shop", key=["n"])])
    with ws.reads(read, members=2) as session:
        while (checkpoint := session.next_checkpoint(timeout=5)) is not None:
            for member in range(2):
                session.read(member, checkpoint)
            session.commit(checkpoint)


def record() -> JobRecord:
    reads = (hops.output_prefix(JOB, "videos"),)
    return JobRecord(
        JOB,
        (
            JobPart(name="videos", kind="source"),
            JobPart(
                name="caption",
                kind="map",
                inputs=("videos",),
                prefixes=reads,
                expensive=True,
                depth=1,
            ),
        ),
    )


def make_calls(broker: Broker, count: int) -> None:
    """A job with so many records of calls, over a few units."""
    broker.create(hops.runs_journal(JOB), job_events.SCHEMA)
    started = JobEvent(
        at_us=time.time_ns() // 1000,
        run=1,
        happened=JobEventKind.STARTED,
        detail={RECORDED: record().to_json()},
    )
    broker.append(hops.runs_journal(JOB), job_events.to_rows([started]))
    each = count // UNITS
    for unit in range(UNITS):
        source = hops.output_journal(JOB, "videos", unit)
        info = broker.create(source, ROWS)
        name = hops.calls_journal(JOB, "caption", info.id)
        schema = call_records.SCHEMA
        broker.create(name, schema)
        broker.create(hops.output_journal(JOB, "caption", unit), ROWS)
        for begin in range(0, each, 20_000):
            rows = min(20_000, each - begin)
            numbers = np.arange(begin, begin + rows)
            broker.append(source, pa.table({"n": numbers}))
            broker.append(name, call_rows(schema, numbers))
    broker.create(hops.charges_journal(JOB, "caption"), charges.SCHEMA)
    for begin in range(0, count, 20_000):
        numbers = np.arange(begin, min(begin + 20_000, count))
        broker.append(hops.charges_journal(JOB, "caption"), charge_rows(numbers))


def call_rows(schema: pa.Schema, numbers: np.ndarray[Any, Any]) -> pa.Table:
    now = time.time_ns() // 1000
    given = {
        "at_us": now + numbers * 1_000,
        "first": numbers,
        "next": numbers + 1,
        "calls": np.ones_like(numbers),
        "total_calls": numbers + 1,
    }
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(pa.array(given[field.name], field.type))
        elif field.name == "kind":
            columns.append(pa.array(["intent"] * len(numbers)))
        elif pa.types.is_binary(field.type):
            columns.append(pa.array([b""] * len(numbers), field.type))
        elif field.nullable:
            columns.append(pa.nulls(len(numbers), field.type))
        else:
            columns.append(pa.array(np.zeros_like(numbers)).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def charge_rows(numbers: np.ndarray[Any, Any]) -> pa.Table:
    now = time.time_ns() // 1000
    given: dict[str, Any] = {
        "at_us": now + numbers * 1_000,
        "offset": numbers,
        "attempt": np.ones_like(numbers),
        "nano_usd": np.full_like(numbers, 250_000),
        "latency_us": 400_000 + numbers % 1_000 * 100,
        "error": ["TimeoutError" if n % 1_000 == 0 else "" for n in numbers.tolist()],
    }
    columns = []
    for field in charges.SCHEMA:
        other = [""] * len(numbers) if pa.types.is_string(field.type) else np.zeros_like(numbers)
        columns.append(pa.array(given.get(field.name, other), field.type))
    return pa.Table.from_arrays(columns, schema=charges.SCHEMA)


def make_runs(store: LocalStore, count: int, partitions: int) -> tuple[int, int]:
    """Small runs, and two with very many partitions; the numbers of a small and a wide one."""
    wide = 0
    made = random.Random(1)  # noqa: S311 - sizes of an example
    for number in range(count):
        run = runs.begin_run(store, plan=f"plan {number % 7}", about={"stages": 1}, now_ms=number)
        is_wide = number in (count // 2, count // 2 + 1)
        parts = partitions if is_wide else 8
        sizes = tuple(made.randrange(1, 10_000) for _ in range(parts))
        chosen = tuple(choice(run.query_id, n) for n in range(1_000 if is_wide else 1))
        decided = Manifest(
            query_id=run.query_id,
            stage_id=StageId(0),
            created_at_ms=number + 5,
            partitions=parts,
            partitioner={"kind": "hash", "keys": ["n"], "partitions": parts},
            schema=ROWS,
            chosen=chosen,
            partition_rows=sizes,
            partition_bytes=sizes,
        )
        runs.write_manifest(store, decided, sync=False)
        runs.end_run(store, run.query_id)
        wide = run.query_id if is_wide else wide
    return count - 3, wide


def choice(query_id: QueryId, number: int) -> Choice:
    attempt = AttemptId.of(query_id, 0, number, 1)
    return Choice(
        map_task=attempt.task.map_task,
        attempt=attempt,
        folder=None,
        content="0" * 16,
        rows=1,
        bytes=1,
    )


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port, and the id of the process."""
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("millrace")), "ui", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found, "no address was printed"
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(30)


def ask(port: int, path: str) -> float:
    """Seconds until a page was here."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, (path, answer.status)
    connection.close()
    return time.perf_counter() - began


def cpu_of(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(folder: Path, pages: list[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds, and those of CPU, of each page, asked once of each of so many fresh servers."""
    took: dict[str, list[tuple[float, float]]] = {page: [] for page in pages}
    order = random.Random(2)  # noqa: S311 - an order
    for _ in range(rounds):
        shuffled = order.sample(pages, len(pages))
        with server(folder) as (port, process):
            for page in shuffled:
                cpu = cpu_of(process)
                seconds = ask(port, page)
                took[page].append((seconds, cpu_of(process) - cpu))
    return took


def appends(broker: Broker, seconds: float) -> tuple[int, float]:
    """How many commits an owner makes, and what each takes of its process."""
    rows = pa.table({"n": list(range(100))})
    commits, until, cpu = 0, time.monotonic() + seconds, time.process_time()
    while time.monotonic() < until:
        broker.append("busy", rows)
        commits += 1
    return commits, (time.process_time() - cpu) / commits


def overhead(folder: Path, rounds: int) -> dict[str, object]:
    """How much more CPU a commit takes in its owner's process, by an open page and by counting.

    A page asks once a second, which no measurement sees beside what else a machine does. So pages
    are asked for without a pause in every second block, and what that costs is divided by how many.
    """
    spawned = multiprocessing.get_context("spawn")
    asked, more, alone, rates = spawned.Value("q", 0), [], [], []
    with mr.open(folder) as ws, server(folder) as (port, _):
        broker = runtime_of(ws).joined_broker()
        broker.create("busy", ROWS)
        appends(broker, _BLOCK_S)
        looker = spawned.Process(target=look, args=(port, asked), daemon=True)
        looker.start()
        try:
            while asked.value < _ASKED_FIRST:
                time.sleep(0.1)
            for _ in range(rounds):
                os.kill(looker.pid or 0, signal.SIGSTOP)
                alone.append(appends(broker, _BLOCK_S)[1])
                os.kill(looker.pid or 0, signal.SIGCONT)
                before = asked.value
                watched = appends(broker, _BLOCK_S)[1]
                rates.append((asked.value - before) / _BLOCK_S)
                more.append(watched / alone[-1] - 1)
        finally:
            looker.kill()
            looker.join(60)
    commit_us = float(np.median(alone)) * 1e6
    each = np.array(more) / np.array(rates)
    return {
        "commit_us": round(commit_us, 1),
        "pages_per_s": round(float(np.median(rates)), 1),
        "watched": with_interval(each),
        "counted": round(counting_us() / commit_us, 5),
    }


def counting_us() -> float:
    """CPU of what a commit counts: the seconds that it took, and its requests."""
    count, cpu = 100_000, time.process_time()
    for _ in range(count):
        COMMIT_SECONDS.note(0.001)
        COMMIT_REQUESTS.add()
    return (time.process_time() - cpu) / count * 1e6


def with_interval(values: npt.NDArray[np.float64]) -> list[float]:
    """The median, and what it lies between with 95 %, by drawing the values again."""
    drawn = np.random.default_rng(4).choice(values, (2_000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return [round(float(value), 5) for value in (np.median(values), low, high)]


def look(port: int, asked: Any) -> None:  # noqa: ANN401 - a number that processes share
    """Ask for a page, again and again."""
    while True:
        ask(port, "/journal/busy")
        asked.value += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a hundredth of it, to try this out")
    parser.add_argument("--overhead", type=int, default=20, help="rounds of it")
    parser.add_argument("--only-overhead", action="store_true")
    given = parser.parse_args()
    part = 100 if given.small else 1
    folder = Path(tempfile.mkdtemp(prefix="mr-ui-"))
    try:
        if given.only_overhead:
            mr.open(folder / "mill", create=True).close()
            print(json.dumps(overhead(folder / "mill", given.overhead)))
            return
        with mr.open(folder / "mill") as ws:
            broker = runtime_of(ws).joined_broker()
            make_journals(broker, 100_000 // part)
            make_calls(broker, 1_000_000 // part)
            make_jobs(broker, 500 // part)
            make_read(ws, 2_000 // part)
            run, wide = make_runs(LocalStore(ws.path), 10_000 // part, 100_000 // part)
        pages = [page.format(run=run, wide=wide) for page in PAGES]
        if given.small:
            pages = [page for page in pages if "at=" not in page]
        took = timed(folder / "mill", pages, given.rounds)
        every = sorted(seconds for each in took.values() for seconds, _ in each)
        used = sorted(cpu for each in took.values() for _, cpu in each)
        for page, each in took.items():
            walls, cpus = ([pair[n] * 1000 for pair in each] for n in (0, 1))
            print(f"{page:32} longest {max(walls):6.0f} ms, CPU {sum(cpus) / len(cpus):5.0f} ms")
        cost = overhead(folder / "mill", given.overhead)
        result = {
            "benchmark": "ui",
            "pages": len(pages),
            "rounds": given.rounds,
            "median_ms": round(every[len(every) // 2] * 1000, 1),
            "p95_ms": round(every[int(len(every) * 0.95)] * 1000, 1),
            "max_ms": round(every[-1] * 1000, 1),
            "cpu_p95_ms": round(used[int(len(used) * 0.95)] * 1000, 1),
            "overhead": cost,
            "load": round(os.getloadavg()[0], 1),
        }
        print(json.dumps(result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
