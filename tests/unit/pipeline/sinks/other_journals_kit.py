"""A job that appends to a journal of another workspace, in processes that are killed in it.

A cheap function refuses some rows; the others are appended, and what was refused is a dead letter.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    QUICK,
    Bench,
    column,
    dead,
    fill,
    hop,
    map_step,
)

from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import JournalSink
from millrace.pipeline.sinks import OtherJournals

APPENDING = ("sink.journal.before_append", "sink.journal.after_append")
TARGET, PROGRESS = "captions", "jobs/an-id/j/out/progress-0"
ROWS, BATCH_ROWS, ARMING = 40, 4, 21
CONFIG = QUICK.with_options(job_turn_ms=60_000, job_publish_bytes=1)
"""Each batch is appended by itself."""
REFUSED = tuple(range(3, ROWS, 7))
EXPECTED = [-value for value in range(ROWS) if value not in REFUSED]
multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])


def refuse_some(row: dict[str, Any]) -> dict[str, Any]:
    if row["x"] == ARMING and os.environ.get("ARMED_LATER"):
        os.environ[VARIABLE] = os.environ["ARMED_LATER"]
    if row["x"] in REFUSED:
        raise ValueError("refused")
    return {"x": -row["x"]}


def job_hops() -> list[Hop]:
    function = map_step("f", refuse_some, retries=0, on_error="dead_letter", batch_rows=BATCH_ROWS)
    return [hop(function, sink=JournalSink(name="out", schema=NUMBERS, journal=TARGET))]


def bench(folder: Path, home: Broker, other: Broker, **more: Any) -> Bench:  # noqa: ANN401
    others = {"out": OtherJournals(other, PROGRESS)}
    return Bench(folder, job_hops(), CONFIG, home, others=others, **more)


def prepare(folder: str) -> None:
    """The journals of both workspaces, with the rows of the job."""
    home, other = EmbeddedBroker.open(f"{folder}/mill"), EmbeddedBroker.open(f"{folder}/other")
    fill(home, range(ROWS))
    other.create(TARGET, NUMBERS)
    home.close()
    other.close()


def run_job(folder: str, point: str | None, later: str | None) -> None:
    """Run the job to its end, or die at a point: the first time, or in the middle."""
    home, other = EmbeddedBroker.open(f"{folder}/mill"), EmbeddedBroker.open(f"{folder}/other")
    for lease in home.leases(hops.ROOT):
        home.fence(lease.name)  # As a runner does that knows the workers before it to be dead.
    started = bench(Path(folder), home, other).start()
    if point is not None:
        os.environ[VARIABLE] = point
    if later is not None:
        os.environ["ARMED_LATER"] = later
    started.run()
    home.close()
    other.close()


def judge(home: Broker, other: Broker) -> None:
    """Each row is in the journal once and in order, and each refused one is one dead letter."""
    assert column(other, TARGET) == EXPECTED
    assert [letter["row"]["x"] for letter in dead(home, "f")] == list(REFUSED)
    (source,) = home.list(hops.output_prefix(JOB, "src"))
    assert home.backlog(hops.step_root(JOB, "out"), source.name) == 0


def in_memory() -> tuple[MemoryBroker, MemoryBroker]:
    home, other = MemoryBroker(), MemoryBroker()
    fill(home, range(ROWS))
    other.create(TARGET, NUMBERS)
    return home, other
