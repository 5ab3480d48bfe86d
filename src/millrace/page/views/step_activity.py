"""What each step of a job is doing now, or what it waits for: from leases, offsets and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace.journal.core.values import Lease
from millrace.page import page_texts
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.report.job_report import StepReport
from millrace.pipeline.run.job_status import JobStatus
from millrace.system.job_reading import SeenJob


@dataclass(frozen=True, slots=True)
class StepActivity:
    """A step at this moment, in words."""

    now: str
    why: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker and the part of a step that it holds."""

    holder: str
    step: str
    unit: str
    left: float
    """Seconds until its lease ends, unless it is renewed."""


def workers_of(job: SeenJob, now_ms: int) -> list[WorkerRow]:
    """The workers of a job that hold something now."""
    names = {info.id: info.name for info in job.journals.list()}
    rows = []
    for part in job.record.hops:
        prefix = hops.unit_lease(job.record.job, part.name, 0).removesuffix("0")
        for lease in job.journals.leases(prefix.removesuffix("/")):
            last = lease.name.removeprefix(prefix)
            unit = names.get(int(last), last) if last.isdecimal() else last  # type: ignore[call-overload]
            rows.append(
                WorkerRow(
                    holder=worker_name(lease),
                    step=part.name,
                    unit=unit,
                    left=max(0.0, (lease.expires_at_ms - now_ms) / 1000),
                )
            )
    return rows


def worker_name(lease: Lease) -> str:
    """The host and process of a worker, as its lease has it."""
    host, _, rest = lease.holder.partition("/")
    process = rest.split("/", 1)[0]
    return f"{host}, process {process}" if process else lease.holder


def activity_of(
    job: SeenJob, status: JobStatus, step: StepReport, workers: Sequence[WorkerRow]
) -> StepActivity:
    """What a step does, or the one reason why it does not."""
    part = job.record.part(step.name)
    mine = [worker for worker in workers if worker.step == step.name]
    if status.state != "running":
        return _at_rest(status, step, mine)
    if not step.backlog:
        return StepActivity("waiting", _nothing_to_read(job, status, step))
    if mine:
        limits = _limits(job, part, step)
        of = f"{len(mine)} worker{'s' if len(mine) > 1 else ''} at it"
        return StepActivity("working", f"{of}; {limits}" if limits else of, "ok-text")
    limit = _limits(job, part, step)
    if limit:
        return StepActivity("waiting", limit, "warn-text")
    return StepActivity("waiting", "no worker has taken its rows: all slots are at other steps")


def _at_rest(status: JobStatus, step: StepReport, mine: Sequence[WorkerRow]) -> StepActivity:
    if mine:
        left = page_texts.seconds(max(worker.left for worker in mine))
        return StepActivity(
            "stopped", f"a worker that is gone holds a lease for another {left}", "warn-text"
        )
    if not step.backlog:
        return StepActivity("caught up")
    words = {
        "failed": "the run failed",
        "held": "calls are in doubt: the run asks what to do with them",
        "spent": "the budget of calls is used up",
        "killed": "the run was killed",
    }
    why = words.get(status.state, "no process runs the job")
    return StepActivity("stopped", f"{step.backlog:,} rows wait; {why}", "warn-text")


def _nothing_to_read(job: SeenJob, status: JobStatus, step: StepReport) -> str:
    feeders = job.record.feeders(step.name)
    behind = [other.name for other in status.steps if other.name in feeders and other.backlog]
    return (
        f"nothing to read yet: {', '.join(behind)} has rows to do" if behind else "nothing to read"
    )


def _limits(job: SeenJob, part: JobPart | None, step: StepReport) -> str:
    """Which limit of the user holds a step back, if any does."""
    if part is None:
        return ""
    if part.max_calls is not None and (step.calls or 0) >= part.max_calls:
        return f"the budget of {part.max_calls:,} calls is used up"
    if part.rate is not None and _slot_us(job, part) is not None:
        return f"limited to {part.rate:g} calls a second"
    if part.workers is not None:
        return f"at most {part.workers} workers"
    return ""


def _slot_us(job: SeenJob, part: JobPart) -> int | None:
    """When the last call that was let through may be made; None if no call was."""
    name = hops.budget_journal(job.record.job, part.name)
    if not job.journals.knows(name):
        return None
    end = job.journals.end_offset(name)
    begin = max(job.journals.start_offset(name), end - 2)
    rows: list[dict[str, Any]] = job.journals.read(name, begin).rows().to_pylist()
    return int(rows[-1]["slot_us"]) if rows and "slot_us" in rows[-1] else None
