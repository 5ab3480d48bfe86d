"""A job some of whose rows are refused, in this process and in processes that are killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    Bench,
    fill,
    filter_step,
    function_sink,
    hop,
    map_step,
    select_step,
    write_line,
)

from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobPart, JobRecord
from millrace.pipeline.letters.letter_retries import retry_dead_letters
from millrace.pipeline.report.run_history import RunHistory

Row = dict[str, Any]
ROWS = 30
CHUNK = 3


class Refuser:
    """Refuses some rows, until it is mended."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name

    def __call__(self, row: Row) -> Row:
        write_line(f"{self._folder}/{self._name}.log", str(row["x"]))
        if not os.path.exists(f"{self._folder}/mended"):
            if row["x"] % 7 == 0:
                raise ValueError("seven")
            if row["x"] % 5 == 0:
                raise LookupError("five")
        return {"x": -row["x"]}


def refusing_hop(folder: Path) -> Hop:
    """A filter, a cheap step and a paid one in one hop; both refuse some rows."""
    cheap = map_step("cheap", Refuser(str(folder), "cheap"), retries=0, on_error="dead_letter")
    paid = map_step(
        "pay", Refuser(str(folder), "pay"), expensive=True, retries=0, on_error="dead_letter"
    )
    # Other rows than those that the step before refuses.
    back = select_step("1 - x AS x", schema=NUMBERS, name="back")
    return hop(filter_step("x > 0"), cheap, back, paid)


def sink_hop(folder: Path) -> Hop:
    """A sink that refuses some rows."""
    return hop(
        sink=function_sink("send", Refuser(str(folder), "send"), retries=0, on_error="dead_letter")
    )


def bench_of(folder: Path, job_hop: Hop, broker: Broker) -> Bench:
    """The job, with the record that its first run makes."""
    fill(broker, range(ROWS))
    bench = Bench(folder, [job_hop], broker=broker).start()
    part = JobPart(
        name=job_hop.name,
        kind="map",
        inputs=("src",),
        prefixes=job_hop.inputs,
        fused=tuple(step.name for step in job_hop.steps if step.name != job_hop.name),
        expensive=True,
        depth=1,
    )
    record = JobRecord(JOB, (JobPart(name="src", kind="DataFrame"), part))
    started = JobEvent(
        at_us=1,
        run=bench.epoch,
        happened=JobEventKind.STARTED,
        detail={RECORDED: record.to_json()},
    )
    RunHistory.open(broker, JOB).add(started)
    return bench


def mend(folder: Path) -> None:
    """From now on no row is refused."""
    (folder / "mended").touch()


def child_retries(folder: str, fault: str) -> None:
    """Retry all dead letters in a process that may be killed in it."""
    os.environ[VARIABLE] = fault
    broker = EmbeddedBroker.open(f"{folder}/mill")
    for lease in broker.leases("jobs"):
        broker.fence(lease.name)  # As a runner does that knows the holder to be dead.
    retry_dead_letters(broker, JOB, rows_max=CHUNK)
    broker.close()
