"""Looks at the batches that a job waits for. Needs no Spark and no definition of the job.

The key of the provider comes from the environment of the process that looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from millrace.config import Config
from millrace.durations import ms
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.llm.batch_calls import BatchCalls, batch_calls_of
from millrace.llm.provider_calls import RequestFailed
from millrace.pipeline.batches import batch_records
from millrace.pipeline.batches.batch_records import BatchRecord, BatchRecordKind, outstanding
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.define.job import Job, Until
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.prompts.batch_asking import model_at
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.report.run_observer import RunObserver
from millrace.pipeline.run.job_run import run_job
from millrace.pipeline.run.job_runtime import JobHome, JobRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedBatch:
    """A batch that a job waits for."""

    step: str
    journal: str
    batch: str
    """The provider's id; empty if the process that made it ended before it knew."""
    rows: int
    state: str
    """"in work", or what lets the job go on: "ended", "cancelled", "failed", "to be found"."""

    @property
    def is_in_work(self) -> bool:
        """Whether there is nothing to do yet."""
        return self.state == "in work"


def awaited_batches(broker: Broker, job: str, config: Config) -> list[AwaitedBatch]:
    """The batches that a job waits for, and how each is now."""
    found = []
    prefix = f"{hops.ROOT}/{job}"
    for info in broker.list(prefix):
        parts = info.name.split("/")
        if len(parts) != 5 or parts[3] != "batches":  # noqa: PLR2004 - jobs/J/STEP/batches/ID
            continue
        row, _ = last_row(broker, info.name)
        record = None if row is None else batch_records.from_row(row)
        group = hops.step_root(job, parts[2])
        if record is not None:
            committed = broker.committed(group, record.journal) or 0
            record = outstanding(record, int(committed))
        if record is not None:
            found.append(_looked_at(parts[2], record, config))
    return found


def _looked_at(step: str, record: BatchRecord, config: Config) -> AwaitedBatch:
    awaited = AwaitedBatch(
        step=step,
        journal=record.journal,
        batch=record.batch,
        rows=record.rows,
        state="to be found",
    )
    match record.kind:
        case BatchRecordKind.STOPPED:
            return replace(awaited, state="stopped")
        case BatchRecordKind.INTENT:
            age_ms = time.time_ns() // 1_000_000 - record.at_us // 1000
            is_settled = age_ms >= ms(config.job_batch_settle)
            return awaited if is_settled else replace(awaited, state="in work")
        case BatchRecordKind.MADE:
            calls: BatchCalls = batch_calls_of(model_at(record.server))
            try:
                return replace(awaited, state=calls.look(record.batch).state)
            except RequestFailed as failed:
                if failed.why in ("not allowed", "refused"):
                    raise
                return replace(awaited, state="in work")
            finally:
                calls.close()


def run_and_wait(
    workspace: JobHome,
    job: Job,
    runtime: Callable[[], JobRuntime],
    *,
    until: Until,
    on_change: OnChange,
    observer: RunObserver | None,
    wait: bool,
) -> JobReport:
    """Run a job, and while a provider works on its batches wait without any task of Spark."""
    while True:
        report = run_job(
            workspace, job, runtime, until=until, on_change=on_change, observer=observer
        )
        if report.state != "waiting" or not wait:
            return report
        wait_for_batches(broker_of(workspace.journals), job.name, workspace.config)
        on_change = "fail"


def wait_for_batches(broker: Broker, job: str, config: Config) -> list[AwaitedBatch]:
    """Wait until one of the batches of a job is no longer in work; all of them, as they are."""
    while True:
        batches = awaited_batches(broker, job, config)
        if not batches or not all(batch.is_in_work for batch in batches):
            return batches
        time.sleep(ms(config.job_batch_poll) / 1000)
