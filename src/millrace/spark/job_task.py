"""What a Spark task does for a job: it is a worker, until its time is up or the run is over.

Invariant: each attempt of a task is a worker under a name of its own. A second copy of a task is
one worker more, which takes other units or waits; leases keep it from doing anything twice.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import Retriable
from millrace.faults import fault
from millrace.identity.versions import check_versions
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.worker.worker import Worker, WorkerOutcome, WorkerSettings
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress

JOB_YIELD_MS: Final = 1_000
"""How long a worker with nothing to do keeps its slot where workers of other kinds want one, and
how long it stays away then."""

Batches = Iterator[pa.RecordBatch]
RESULT_SCHEMA: Final = "outcome string"
_RESULT: Final = pa.schema([("outcome", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every worker of a run needs to know."""

    where: JournalAddress
    hops: tuple[Hop, ...]
    config: Config
    run: int
    time_zone: str
    workspace: str
    job_id: str
    """What tells the job from any other in the world."""
    events_from: int
    """Where what is told of this run begins in the job's record."""
    until_end: Mapping[str, int] | None
    """Journals that are read no further than to these offsets."""
    only: tuple[str, ...] | None
    """The hops these workers may take; None for all."""
    versions: Mapping[str, str]


def worker_task(work: Work) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over numbers: each is a worker."""

    def run(numbers: Batches) -> Batches:
        check_versions(work.versions)
        for batch in numbers:
            for _ in range(batch.num_rows):
                outcome = _run(work)
                if outcome.ended == "stuck":
                    # What it did is published. Only an error makes Spark end this process.
                    raise Retriable(
                        "calls of a step never returned, and this worker process is full of them\n"
                        "  to fix: give the function a time limit of its own"
                    )
                told = json.dumps(outcome.as_dict())
                yield pa.RecordBatch.from_pylist([{"outcome": told}], schema=_RESULT)

    return run


def shippable(hop: Hop) -> Hop:
    """A hop without what feeds its steps: that is what Spark has, and stays in the driver."""
    steps = tuple(replace(step, inputs=()) for step in hop.steps)
    sink = None if hop.sink is None else replace(hop.sink, inputs=())
    return replace(hop, steps=steps, sink=sink)


def _run(work: Work) -> WorkerOutcome:
    fault("job.worker.start")
    scratch = tempfile.mkdtemp(prefix="millrace-worker-")
    broker = join_journals(work.where, work.config)
    try:
        settings = WorkerSettings(
            config=work.config,
            holder=f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(6)}",
            run_epoch=work.run,
            time_zone=work.time_zone,
            workspace=work.workspace,
            scratch=scratch,
            job_id=work.job_id,
            events_from=work.events_from,
            until_end=work.until_end,
            only=None if work.only is None else frozenset(work.only),
            # Where there are several kinds of workers, they may want the same slots.
            idle_ms_max=None if work.only is None else JOB_YIELD_MS,
        )
        return Worker(broker, work.hops, settings).run()
    finally:
        broker.close()
        shutil.rmtree(scratch, ignore_errors=True)
