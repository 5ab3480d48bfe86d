"""What each step of a job is doing now, or what it waits for: from leases, offsets and budgets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from millrace.journal.core.values import Lease
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.job_record import TABLE_SINKS, JobPart
from millrace.pipeline.paid import call_budget, pace
from millrace.pipeline.paid.call_records import Held
from millrace.pipeline.paid.pace import PaceRow
from millrace.pipeline.paid.spend import NANO_USD
from millrace.pipeline.report.job_report import State, StepReport
from millrace.pipeline.run.job_status import JobStatus
from millrace.pipeline.run.lease_holders import is_running
from millrace.system.job_reading import SeenJob
from millrace.system.resting_workspace import RestingWorkspace
from millrace.text import counted, human_seconds

_Row = TypeVar("_Row")
_WRITES_FILES: Final = ("sink_parquet", *TABLE_SINKS)
_AT_REST: Final[dict[State, str]] = {
    "failed": "the run failed",
    "held": "calls are in doubt: the run asks what to do with them",
    "spent": "the budget is used up",
    "killed": "the run was killed",
    "waiting": "a provider works on batches: `millrace job poll` asks for them",
    "lost": "the run lost what it needs: Spark, a worker or the owner of the journals",
}


@dataclass(frozen=True, slots=True)
class StepActivity:
    """A step at this moment, in words."""

    now: Literal["working", "waiting", "stopped", "caught up"]
    why: str = ""
    tone: Literal["ok", "warn", ""] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker and the part of a step that it holds."""

    holder: str
    step: str
    unit: str
    left: float
    """Seconds until its lease ends, unless it is renewed."""
    is_gone: bool = False
    """Whether this host can see that its process ended."""


def workers_of(job: SeenJob, now_ms: int) -> list[WorkerRow]:
    """The workers of a job that hold something now."""
    names = {int(info.id): info.name for info in job.journals.list()}
    rows = []
    for part in job.record.hops:
        prefix = hops.unit_lease(job.record.job, part.name, 0).removesuffix("0")
        for lease in job.journals.leases(prefix.removesuffix("/")):
            last = lease.name.removeprefix(prefix)
            rows.append(
                WorkerRow(
                    holder=worker_name(lease),
                    step=part.name,
                    unit=names.get(int(last), last) if last.isdecimal() else last,
                    left=max(0.0, (lease.expires_at_ms - now_ms) / 1000),
                    is_gone=_is_gone(lease),
                )
            )
    return rows


def worker_name(lease: Lease) -> str:
    """The host and process of a worker, as its lease has it."""
    host, process = _process(lease)
    return f"{host}, process {process}" if process else lease.holder


def _process(lease: Lease) -> tuple[str, str]:
    host, _, rest = lease.holder.partition("/")
    return host, rest.split("/", 1)[0]


def _is_gone(lease: Lease) -> bool:
    host, process = _process(lease)
    return host == socket.gethostname() and process.isdecimal() and not is_running(int(process))


def activities_of(
    workspace: RestingWorkspace, job: SeenJob, status: JobStatus, workers: Sequence[WorkerRow]
) -> dict[str, StepActivity]:
    """What each step of a job does, by name."""
    most = workspace.config.job_backlog_rows_max
    now_ms = workspace.now_ms()
    return {
        step.name: activity_of(job, status, step, workers, now_ms=now_ms, backlog_rows_max=most)
        for step in status.steps
    }


def activity_of(
    job: SeenJob,
    status: JobStatus,
    step: StepReport,
    workers: Sequence[WorkerRow],
    *,
    now_ms: int,
    backlog_rows_max: int,
) -> StepActivity:
    """What a step does, or the one reason why it does not.

    Args:
        job: the job.
        status: its state.
        step: the step.
        workers: those of the job, as `workers_of` gives them.
        now_ms: the time.
        backlog_rows_max: with so many rows a step holds back those in front of it.
    """
    part = job.record.part(step.name)
    mine = [worker for worker in workers if worker.step == step.name]
    if status.state != "running":
        return _at_rest(status, step, mine)
    if not step.backlog:
        return StepActivity("waiting", _nothing_to_read(job, status, step))
    living = [worker for worker in mine if not worker.is_gone]
    stop = _stop(job, status, step, backlog_rows_max, is_worked_on=bool(living))
    if stop:
        return StepActivity("waiting", stop, "warn")
    limits = _limits(job, part, now_ms * 1000)
    if living:
        at_it = f"{counted(len(living), 'worker')} at it"
        return StepActivity("working", "; ".join([at_it, *limits]), "ok")
    if mine:
        return StepActivity("waiting", _lease_of_the_dead(mine), "warn")
    if limits:
        return StepActivity("waiting", "; ".join(limits), "warn")
    if _gathers(job, status, part):
        return StepActivity("waiting", "more rows may come: files are written large, or late")
    return StepActivity("waiting", "no worker has taken its rows: all slots are at other steps")


def _gathers(job: SeenJob, status: JobStatus, part: JobPart | None) -> bool:
    """Whether a step writes files, and those before it have rows to do yet."""
    if part is None or part.kind not in _WRITES_FILES:
        return False
    before = job.record.before(part.name)
    return any(other.backlog for other in status.steps if other.name in before)


def _at_rest(status: JobStatus, step: StepReport, mine: Sequence[WorkerRow]) -> StepActivity:
    if mine:
        return StepActivity("stopped", _lease_of_the_dead(mine), "warn")
    if not step.backlog:
        return StepActivity("caught up")
    why = _AT_REST.get(status.state, "no process runs the job")
    return StepActivity("stopped", f"{step.backlog:,} rows wait; {why}", "warn")


def _lease_of_the_dead(mine: Sequence[WorkerRow]) -> str:
    left = human_seconds(max(worker.left for worker in mine))
    return f"a worker that is gone holds a lease for another {left}"


def _nothing_to_read(job: SeenJob, status: JobStatus, step: StepReport) -> str:
    feeders = job.record.feeders(step.name)
    behind = [other.name for other in status.steps if other.name in feeders and other.backlog]
    if not behind:
        return "nothing to read"
    have = "has" if len(behind) == 1 else "have"
    return f"nothing to read yet: {', '.join(behind)} {have} rows to do"


def _stop(
    job: SeenJob, status: JobStatus, step: StepReport, backlog_rows_max: int, *, is_worked_on: bool
) -> str:
    """What keeps a step from beginning anything new, if something does."""
    part, run = job.record.part(step.name), status.runs[-1].number if status.runs else 0
    told = {
        event.happened
        for event in job.history.events
        if event.run == run and event.step == step.name
    }
    # A budget is reserved before calls are made: as long as some are under way, the step works.
    if JobEventKind.SPENT in told or not is_worked_on:
        used = "" if part is None else _budget_used(job, part, step)
        if used or JobEventKind.SPENT in told:
            return used or "its budget is used up"
    if JobEventKind.HELD in told:
        return "calls are in doubt: the run asks what to do with them"
    if JobEventKind.WAITING in told:
        return "a provider works on a batch of it"
    full = [
        other
        for reader in job.record.readers(step.name)
        for other in status.steps
        if other.name == reader.name and other.backlog >= backlog_rows_max
    ]
    if full:
        rows = ", ".join(f"{other.backlog:,} rows wait for {other.name}" for other in full)
        return f"held back: {rows}, the most are {backlog_rows_max:,}"
    return ""


def _budget_used(job: SeenJob, part: JobPart, step: StepReport) -> str:
    """Which part of a step's budget is used up, if one is."""
    name = hops.budget_journal(job.record.job, part.name)
    share = _last(job, name, call_budget.from_row)
    held = Held(calls=step.calls or 0) if share is None else share.total
    usd, tokens = part.paid.get("usd"), part.paid.get("tokens")
    if usd is not None and held.nano_usd >= round(usd * NANO_USD):
        return f"the budget of ${usd:,.2f} is used up"
    if tokens is not None and held.tokens >= tokens:
        return f"the budget of {tokens:,.0f} tokens is used up"
    if part.max_calls is not None and max(held.calls, step.calls or 0) >= part.max_calls:
        return f"the budget of {part.max_calls:,} calls is used up"
    return ""


def _limits(job: SeenJob, part: JobPart | None, now_us: int) -> list[str]:
    """Limits that hold a step back, those of the user and those that its provider said."""
    if part is None:
        return []
    words = _pace_words(job, part, now_us)
    if "concurrent" in part.paid:
        words.append(f"at most {part.paid['concurrent']:,.0f} calls at once")
    elif part.workers is not None:
        words.append(f"at most {counted(part.workers, 'worker')}")
    return words


def _pace_words(job: SeenJob, part: JobPart, now_us: int) -> list[str]:
    """How fast calls may come, if the next one has to wait for that."""
    row: PaceRow | None = _last(job, hops.pace_journal(job.record.job, part.name), pace.from_row)
    if row is None or row.slot_us <= now_us:
        return []
    own = [f"{part.rate:g} calls a second"] if part.rate is not None else []
    own += [f"{part.paid['tpm']:,.0f} tokens a minute"] if "tpm" in part.paid else []
    said = [f"{row.rpm:,.0f} calls"] if row.rpm is not None else []
    said += [f"{row.tpm:,.0f} tokens"] if row.tpm is not None else []
    words = [f"limited to {' and '.join(own)}"] if own else []
    words += [f"its provider allows {' and '.join(said)} a minute"] if said else []
    words += [f"slowed to {row.factor:.0%}: its provider was busy"] if row.factor < 1 else []
    return words


def _last(job: SeenJob, name: str, made: Callable[[dict[str, Any]], _Row]) -> _Row | None:
    """The last row of a journal; None if there is none."""
    if not job.journals.knows(name):
        return None
    # Rows with an ACK take two offsets.
    end = job.journals.end_offset(name)
    begin = max(job.journals.start_offset(name), end - 2)
    rows = job.journals.read(name, begin).rows().to_pylist()
    return made(rows[-1]) if rows else None
