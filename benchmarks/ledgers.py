"""What each ledger costs: SQLite, files in a folder, a bucket, a bucket far away, PostgreSQL.

    .venv/bin/python benchmarks/ledgers.py [--ledgers sqlite files bucket far postgres]
        [--seconds 5] [--writers 8] [--bytes 1000000] [--calls 60 180] [--only-job]

The owner is a process, and so is each writer. `far` is a bucket behind a proxy that delays every
request: 100 ms at the median, 500 ms at the 99th percentile. PostgreSQL and the S3 server (S3Proxy)
are started here and stopped at the end; rows of the PostgreSQL ledger are in a folder.

`commit_ms` are the times of one writer's transactions of ten rows, `large_ms` those of one writer
with `--bytes` each. `mb_per_s` and `owner_ms_mb` (CPU of the owner for a megabyte) are of
`--writers` writers with `--bytes` in each publish. `takeover_s` is the time from SIGKILL of the
owner to the first answer of a host that waits; with a log that is `owner_lease` and the opening.
`opening_s` is the opening alone, by a process with all modules loaded. `times` is `commit_ms_p50`
beside SQLite's. With `--calls` a job with so many calls of a second each runs on Spark as well, one
for each number, after a small one: `job_s` are the seconds of the runs, `job_times` how many times
as long the last one took as on the first ledger. With several numbers, `job_slower` is what each
call costs beside a second (0.05 is 5%), from the difference of the first and the last run, and
`job_fixed_s` is the rest: starting and ending. `--only-job` leaves out everything else.

A table goes to stderr, one JSON line for each ledger to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.postgres.postgres_kit import Postgres
from tests.s3 import s3_kit

import millrace as mr
from millrace.spark.session import start_session
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.workspace import runtime_of

SCHEMA: Final = pa.schema([("v", pa.binary())])
SMALL_ROWS: Final = 10
ROW_BYTES: Final = 1000
WAIT_S: Final = 300
SLOTS: Final = 2
"""Workers of a job."""
KINDS: Final = ("sqlite", "files", "bucket", "far", "postgres")
FORK: Final = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["millrace.workspace", "benchmarks.ledgers"])

Measured = dict[str, Any]


def rows(count: int) -> pa.Table:
    return pa.table({"v": [os.urandom(ROW_BYTES) for _ in range(count)]}, SCHEMA)


def own(environment: Mapping[str, str], path: str, ledger: str | None) -> None:
    """Own the journals, or wait for the owner to go and own them then."""
    os.environ.update(environment)
    with mr.open(path, ledger=ledger) as ws:
        while True:
            with contextlib.suppress(mr.MillraceError):
                ws.journals.list()
            time.sleep(0.02)


def write(
    environment: Mapping[str, str],
    where: JournalAddress,
    number: int,
    size: int,
    seconds: float,
    begin: Barrier,
    told: Queue[list[float]],
) -> None:
    """Publish again and again, and tell how long each took."""
    os.environ.update(environment)
    broker = join_journals(where)
    name, batch = f"w/{number}", rows(max(1, size // ROW_BYTES))
    broker.create_many([name], SCHEMA)
    broker.append(name, batch)
    begin.wait(WAIT_S)
    took, until = list[float](), time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        broker.append(name, batch)
        took.append(time.perf_counter() - begun)
    told.put(took)
    broker.close()


class Bench:
    """A workspace on one ledger, its owner, and a host that waits."""

    def __init__(self, path: str, ledger: str | None, environment: Mapping[str, str]) -> None:
        self.path, self.ledger, self.environment = path, ledger, dict(environment)
        os.environ.update(environment)
        with mr.open(path, ledger=ledger, create=True) as ws:
            ws.journals.create("a", SCHEMA)
            address = runtime_of(ws).journal_address()
        self.where = JournalAddress(
            path=address.path, token=address.token, workspace_id=address.workspace_id
        )
        self.hosts = [FORK.Process(target=own, args=(environment, path, ledger)) for _ in range(2)]
        self.hosts[0].start()
        self.reader = join_journals(self.where, mr.Config(owner_timeout="60s", gone_after="60s"))
        self.answered()
        self.hosts[1].start()

    def answered(self) -> float:
        """Ask until there is an answer; how long that took."""
        began = time.perf_counter()
        while True:
            try:
                self.reader.end_offset("a")
            except mr.MillraceError:
                assert time.perf_counter() < began + WAIT_S, "nobody answers"
                time.sleep(0.01)
            else:
                return time.perf_counter() - began

    def write(self, count: int, size: int, seconds: float) -> tuple[list[float], float, float]:
        """Times of all publishes, in order of length; seconds, and CPU of the owner."""
        owner = self.hosts[0].pid
        assert owner is not None
        begin, told = FORK.Barrier(count + 1), FORK.Queue()
        given = (size, seconds, begin, told)
        writers = [
            FORK.Process(target=write, args=(self.environment, self.where, number, *given))
            for number in range(count)
        ]
        for writer in writers:
            writer.start()
        begin.wait(WAIT_S)
        began, used = time.perf_counter(), cpu_s(owner)
        took = sorted(taken for _ in writers for taken in told.get(timeout=WAIT_S))
        passed, used = time.perf_counter() - began, cpu_s(owner) - used
        for writer in writers:
            writer.join()
        return took, passed, used

    def takeover_s(self) -> float:
        """From SIGKILL of the owner to the first answer."""
        assert self.hosts[0].pid is not None
        os.kill(self.hosts[0].pid, signal.SIGKILL)
        return self.answered()

    def opening_s(self) -> float:
        """Take over from the other host, which is killed as well, then open what is there."""
        self.end()
        with mr.open(self.path, ledger=self.ledger) as ws:
            until = time.perf_counter() + WAIT_S
            while time.perf_counter() < until:
                with contextlib.suppress(mr.MillraceError):
                    ws.journals.end_offset("a")
                    break
        began = time.perf_counter()
        with mr.open(self.path, ledger=self.ledger) as ws:
            ws.journals.end_offset("a")
            return time.perf_counter() - began

    def end(self) -> None:
        for host in self.hosts:
            if host.pid is not None:
                host.kill()
                host.join()


def cpu_s(pid: int) -> float:
    """CPU that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Path, ledger and environment of a workspace."""
    environment = {"MILLRACE_FOLDER": str(folder / "own")}
    if kind in ("sqlite", "files"):
        yield str(folder / "mill"), "files" if kind == "files" else None, environment
        return
    if kind == "postgres":
        server = Postgres.start()
        try:
            yield str(folder / "mill"), server.url, environment
        finally:
            server.end()
        return
    bucket = s3_kit.start(folder)
    try:
        os.environ.update(s3_kit.credentials(bucket.endpoint))
        s3_kit.make_bucket(bucket.endpoint)
        url = f"s3://{s3_kit.BUCKET}/mill"
        if kind == "bucket":
            yield url, None, {**environment, **s3_kit.credentials(bucket.endpoint)}
            return
        proxy = s3_kit.Proxy(bucket.port, delay_s=s3_kit.far_away(1))
        with proxy.running():
            yield url, None, {**environment, **s3_kit.credentials(proxy.endpoint)}
    finally:
        bucket.process.kill()


def measure(kind: str, asked: argparse.Namespace) -> Measured:
    folder = Path(tempfile.mkdtemp(dir="."))
    before = dict(os.environ)
    try:
        with place(kind, folder) as (path, ledger, environment):
            os.environ.update(environment)
            bench = Bench(path, ledger, environment)
            try:
                if asked.only_job:
                    bench.end()
                    return {"ledger": kind, **job_figures(path, ledger, asked.calls)}
                small, _, _ = bench.write(1, SMALL_ROWS * ROW_BYTES // 10, asked.seconds)
                large, _, _ = bench.write(1, asked.bytes, asked.seconds)
                many, passed, used = bench.write(asked.writers, asked.bytes, asked.seconds)
                megabytes = len(many) * asked.bytes / 1e6
                return {
                    "ledger": kind,
                    "commit_ms_p50": _ms(small, 0.5),
                    "commit_ms_p99": _ms(small, 0.99),
                    "large_ms_p50": _ms(large, 0.5),
                    "large_ms_p99": _ms(large, 0.99),
                    "mb_per_s": round(megabytes / passed, 1),
                    "rows_per_s": round(megabytes * 1e6 / ROW_BYTES / passed),
                    "owner_ms_mb": round(1000 * used / megabytes, 2),
                    "takeover_s": round(bench.takeover_s(), 2),
                    "opening_s": round(bench.opening_s(), 2),
                    **(job_figures(path, ledger, asked.calls) if asked.calls else {}),
                }
            finally:
                bench.end()
                bench.reader.close()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _ms(took: list[float], share: float) -> float:
    return round(1000 * took[min(len(took) - 1, int(len(took) * share))], 1)


def pay(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A call of a second."""
    time.sleep(1)
    return batch.select(["id"])


def job_figures(path: str, ledger: str | None, counts: Sequence[int]) -> Measured:
    """Jobs whose calls take a second each, so many on two slots; the runs alone."""
    spark = start_session("ledgers", cores=SLOTS)
    out = tempfile.mkdtemp(dir=".")
    took: list[float] = []
    try:
        with mr.open(path, spark, ledger=ledger) as ws:
            # The first one warms Spark's Python processes.
            for number, calls in enumerate((SLOTS, *counts)):
                job = ws.job(f"paid-{number}")
                rows = spark.range(0, calls, 1, SLOTS)
                paid = job.source("rows", rows).map(
                    "pay", pay, schema="id bigint", expensive=True, batch_rows=1, version="1"
                )
                paid.sink_parquet(os.path.join(out, f"rows-{number}"))
                took.append(round(float(job.run().seconds), 2))
    finally:
        spark.stop()
        shutil.rmtree(out, ignore_errors=True)
    figures: Measured = {"job_s": took[1:]}
    if len(counts) > 1:
        call_s = (took[-1] - took[1]) / (counts[-1] - counts[0]) * SLOTS
        figures["job_slower"] = round(call_s - 1, 3)
        figures["job_fixed_s"] = round(took[1] - counts[0] / SLOTS * call_s, 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, nargs="*", default=[])
    parser.add_argument("--only-job", action="store_true")
    asked = parser.parse_args()
    found: list[Measured] = []
    for kind in asked.ledgers:
        one = measure(kind, asked)
        beside = (found or [one])[0]
        if not asked.only_job:
            one["times"] = round(one["commit_ms_p50"] / beside["commit_ms_p50"], 2)
        if asked.calls:
            one["job_times"] = round(one["job_s"][-1] / beside["job_s"][-1], 3)
        found.append(one)
        print(json.dumps({"benchmark": "ledgers", **one}), flush=True)
    table = Table(*found[0], title=f"{asked.writers} writers of {asked.bytes / 1e6:g} MB")
    for one in found:
        table.add_row(*(str(value) for value in one.values()))
    Console(stderr=True, width=180).print(table)


if __name__ == "__main__":
    main()
