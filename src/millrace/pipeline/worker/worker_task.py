"""The Spark task of a job: a worker, until its time is up or the run is over.

Invariant: each attempt of a task is a worker with a name of its own. A second copy of a task is
another worker, which takes other units or waits; leases keep it from doing work twice.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from millrace.errors import Retriable
from millrace.faults import fault
from millrace.identity.versions import check_versions
from millrace.log_lines import log_ids, show_as
from millrace.metrics.process_reports import reporting
from millrace.metrics.traces import flush_spans, task_ids
from millrace.pipeline.run.worker_orders import WorkerOrder
from millrace.pipeline.sinks import OtherJournals
from millrace.pipeline.worker.worker import Worker, WorkerOutcome, WorkerSettings
from millrace.storage.workspace_home import store_at
from millrace.transport.owner.election import join_journals

JOB_YIELD_MS: Final = 1_000
"""How long a worker with nothing to do keeps its slot where workers of other kinds want one, and
how long it stays away then."""

Batches = Iterator[pa.RecordBatch]
RESULT_SCHEMA: Final = "outcome string"
_RESULT: Final = pa.schema([("outcome", pa.string())])


def worker_task(order: WorkerOrder) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over numbers: each number starts a worker."""

    def run(numbers: Batches) -> Batches:
        check_versions(order.versions)
        show_as(order.logs)
        for batch in numbers:
            for _ in range(batch.num_rows):
                outcome = _run(order)
                if outcome.ended == "stuck":
                    # What it did is published. Only an error makes Spark end this process.
                    raise Retriable(
                        "calls of a step never returned, and this worker process is full of them\n"
                        "  to fix: give the function a time limit of its own"
                    )
                text = json.dumps(outcome.as_dict())
                yield pa.RecordBatch.from_pylist([{"outcome": text}], schema=_RESULT)

    return run


def _run(order: WorkerOrder) -> WorkerOutcome:
    fault("job.worker.start")
    scratch = tempfile.mkdtemp(prefix="millrace-worker-")
    broker = join_journals(order.where, order.config)
    others = {
        sink: OtherJournals(join_journals(target.where, order.config), target.progress)
        for sink, target in order.targets.items()
    }
    try:
        settings = WorkerSettings(
            config=order.config,
            holder=f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(6)}",
            run_epoch=order.run,
            time_zone=order.time_zone,
            workspace=order.workspace,
            scratch=scratch,
            job_id=order.job_id,
            events_from=order.events_from,
            until_end=order.until_end,
            only=None if order.only is None else frozenset(order.only),
            # Where there are several kinds of workers, they may want the same slots.
            idle_ms_max=None if order.only is None else JOB_YIELD_MS,
            others=others,
            progress=order.progress,
        )
        with (
            reporting(store_at(order.workspace, order.config)),
            log_ids(**task_ids(order.traced)),
        ):
            return Worker(broker, order.hops, settings).run()
    finally:
        flush_spans(order.traced)
        for opened in (broker, *(journals.broker for journals in others.values())):
            opened.close()
        shutil.rmtree(scratch, ignore_errors=True)
