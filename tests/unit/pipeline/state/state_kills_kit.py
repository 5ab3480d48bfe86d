"""Processes that run a job with state and are killed in it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.unit.pipeline.state.state_kit import STATE_CONFIG, bench, give

from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.values import Publish, Published
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop

KILLED = -signal.SIGKILL
ROWS = 600
CONFIG = STATE_CONFIG.with_options(
    job_turn_ms=60_000, job_snapshot_changes=50, journal_read_rows_max=40
)
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.unit.pipeline.state.state_kills_kit"])
Hops = Callable[[], list[Hop]]


class ArmingBroker(EmbeddedBroker):
    """Arms a fault before a transaction of the middle."""

    point: str | None = None
    after = 0

    def publish(self, request: Publish) -> Published:
        self.after -= 1
        if self.point is not None and self.after <= 0:
            os.environ[VARIABLE] = self.point
        return super().publish(request)


def prepare(folder: Path, rows: Mapping[str, tuple[pa.Table, int]]) -> None:
    """The sources of a job, with their rows over so many journals."""
    broker = EmbeddedBroker.open(str(folder / "mill"))
    fill_sources(broker, rows)
    broker.close()


def fill_sources(broker: Broker, rows: Mapping[str, tuple[pa.Table, int]]) -> None:
    for name, (table, partitions) in rows.items():
        give(broker, table, partitions, name)


def run_job(folder: str, made: Hops, point: str | None, after: int, kill_ms: float | None) -> None:
    """Run the job to its end, or die."""
    broker = ArmingBroker.open(f"{folder}/mill")
    for lease in broker.leases(hops.ROOT):
        broker.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    job = bench(Path(folder), made(), CONFIG, broker=broker).start()
    broker.point, broker.after = point, after
    if kill_ms is not None:
        threading.Timer(kill_ms / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
    job.run(workers=2)
    if kill_ms is not None:
        os._exit(0)
    broker.close()


def in_child(
    folder: Path, made: Hops, point: str | None = None, after: int = 0, kill_ms: float | None = None
) -> int:
    """Run the job in a process of its own; its exit code."""
    child = _FORK.Process(target=run_job, args=(str(folder), made, point, after, kill_ms))
    child.start()
    child.join(90)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def killed_at_random(folder: Path, made: Hops, seed: int, kills: int = 6) -> int:
    """Kill the job again and again, then let it end; how often it was killed."""
    chance, killed = np.random.default_rng(seed), 0
    for _ in range(kills):
        killed += in_child(folder, made, kill_ms=float(chance.uniform(20, 400))) == KILLED
    assert in_child(folder, made) == 0
    return killed
