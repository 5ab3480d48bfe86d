"""Processes that work on a job whose function ends them at one row; one follows the other.

A judge reads the file that the function appends to. The oracle is the same job with a function that
raises at that row instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.unit.pipeline.worker.worker_kills_kit import in_child, lines
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    QUICK,
    Bench,
    fill,
    function_sink,
    hop,
    map_step,
    write_line,
)

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import Map

ROWS = 20
GUILTY = 6
BATCH_ROWS = 8
PAID_ROWS = 3
CONCURRENCY = 3
PROCESSES_MAX = 20
CONFIG = QUICK.with_options(job_turn_ms=60_000)
"""A lease lasts a minute: no test would wait for that of a dead worker."""
Row = dict[str, Any]


def refuse() -> None:
    raise ValueError("no")


WAYS: dict[str, Callable[[], Any]] = {
    "raise": refuse,
    "_exit": partial(os._exit, 0),
    "segmentation fault": partial(ctypes.string_at, 0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job, and what its function does at the guilty row."""

    folder: str
    kind: str = "row"
    way: str = "kill"
    expensive: bool = True
    on_error: str = "dead_letter"
    on_doubt: str = "retry"
    retries: int = 1
    guilty: int = GUILTY
    loses_host: bool = False
    """Whether what a process left on its host is never found."""

    def call(self, row: Row) -> Row:
        write_line(f"{self.folder}/calls.log", f"{row['x']}")
        if row["x"] == self.guilty:
            WAYS[self.way]()
        return {"x": -row["x"]}

    async def call_async(self, row: Row) -> Row:
        await asyncio.sleep(0.001 * (row["x"] % 3))
        made = self.call(row)
        await asyncio.sleep(0.001 * (row["x"] % 2))
        return made

    def call_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = [self.call(row)["x"] for row in batch.to_pylist()]
        return pa.record_batch({"x": pa.array(made, pa.int64())})

    def send(self, row: Row) -> None:
        self.call(row)

    def step(self) -> Map:
        functions: dict[str, Callable[..., Any]] = {
            "row": self.call,
            "timed": self.call,
            "fused": self.call,
            "front": self.call,
            "async": self.call_async,
            "batch": self.call_batch,
        }
        return map_step(
            "f",
            functions[self.kind],
            rows="batch" if self.kind == "batch" else "row",
            is_async=self.kind == "async",
            expensive=self.expensive,
            batch_rows=BATCH_ROWS,
            retries=self.retries,
            on_error=self.on_error,
            on_doubt=self.on_doubt,
            concurrency=CONCURRENCY if self.kind == "async" else 1,
            timeout=60 if self.kind == "timed" else None,
        )

    def hops(self) -> list[Hop]:
        if self.kind == "sink":
            options: dict[str, Any] = {
                "batch_rows": BATCH_ROWS,
                "retries": self.retries,
                "on_error": self.on_error,
            }
            return [hop(sink=function_sink("f", self.send, **options))]
        if self.kind == "fused":
            return [hop(map_step("twice", twice), self.step())]
        if self.kind == "front":
            paying = map_step("pay", self.pay, expensive=True, batch_rows=PAID_ROWS)
            return [hop(self.step(), paying)]
        return [hop(self.step())]

    def pay(self, row: Row) -> Row:
        """A paid call behind the function."""
        write_line(f"{self.folder}/paid.log", f"{row['x']}")
        return row

    def calls(self, log: str = "calls.log") -> Counter[int]:
        return Counter(int(line) for line in lines(Path(self.folder) / log))


def twice(row: Row) -> list[Row]:
    """Two rows of one, of which the second may be the guilty one."""
    return [{"x": row["x"] + ROWS}, {"x": row["x"]}]


def begin(plan: Plan) -> None:
    """The journals of the job with its rows, and its run."""
    broker = EmbeddedBroker.open(f"{plan.folder}/mill")
    fill(broker, range(ROWS))
    Bench(Path(plan.folder), plan.hops(), CONFIG, broker).start()
    broker.close()


def work(plan: Plan) -> None:
    """One worker of the run."""
    broker = EmbeddedBroker.open(f"{plan.folder}/mill")
    (lease,) = broker.leases(hops.run_lease(JOB))
    bench = Bench(Path(plan.folder), plan.hops(), CONFIG, broker, epoch=lease.epoch)
    bench.run()
    broker.close()


def work_to_the_end(plan: Plan) -> list[int]:
    """Start workers until one ends by itself; how the others ended."""
    begin(plan)
    died: list[int] = []
    while (code := in_child(work, plan)) != 0 or (plan.way == "_exit" and not is_done(plan)):
        died.append(code)
        assert len(died) < PROCESSES_MAX, "the job does not come to an end"
        if plan.loses_host:
            shutil.rmtree(Path(plan.folder) / hops.ROOT / JOB / "calls")
            fence_workers(plan)
    return died


def is_done(plan: Plan) -> bool:
    broker = opened(plan)
    (lease,) = broker.leases(hops.run_lease(JOB))
    try:
        return Bench(Path(plan.folder), plan.hops(), CONFIG, broker, epoch=lease.epoch).is_done()
    finally:
        broker.close()


def fence_workers(plan: Plan, step: str = "f") -> None:
    """Their leases run out."""
    broker = opened(plan)
    for lease in broker.leases(hops.step_root(JOB, step)):
        broker.fence(lease.name)
    broker.close()


def opened(plan: Plan) -> EmbeddedBroker:
    return EmbeddedBroker.open(f"{plan.folder}/mill")
