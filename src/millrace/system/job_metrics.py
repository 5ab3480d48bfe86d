"""Metrics of jobs and their steps, from their journals at rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, get_args

from millrace.metrics import workspace_metrics as metrics
from millrace.metrics.metric import Metric, MetricSample
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.paid.spend import NANO_USD
from millrace.pipeline.report.job_counts import Counting, Counts
from millrace.pipeline.report.job_report import State
from millrace.pipeline.run.lease_holders import running
from millrace.system.job_reading import SeenJob, names_of_jobs, names_of_running_jobs, seen_job
from millrace.system.resting_workspace import RestingWorkspace

JOBS_MAX: Final = 100
_STATES: Final[tuple[State, ...]] = get_args(State)


def job_samples(workspace: RestingWorkspace) -> Iterator[MetricSample]:
    """The metrics of all jobs, or of those that come first."""
    names = names_of_jobs(workspace)
    if len(names) > JOBS_MAX:
        busy = names_of_running_jobs(workspace)
        names.sort(key=lambda name: (name not in busy, name))
    yield MetricSample(metrics.SCRAPE_JOBS_LEFT_OUT.name, (), float(max(0, len(names) - JOBS_MAX)))
    for name in names[:JOBS_MAX]:
        with seen_job(workspace, name) as job:
            yield from _of_job(job)


def _of_job(job: SeenJob) -> Iterator[MetricSample]:
    name = job.record.job
    lease = running(job.journals, name)
    entries = job.history.runs(None if lease is None else lease.epoch)
    last: State = entries[-1].state if entries else "running" if lease else "killed"
    for state in _STATES:
        yield MetricSample(metrics.JOB_STATE.name, (name, state), float(state == last))
    yield MetricSample(metrics.JOB_RUNS.name, (name,), float(len(entries)))
    leases = job.journals.leases(f"{hops.ROOT}/{name}")
    yield MetricSample(metrics.LEASES.name, (name,), float(len(leases)))
    counting = Counting(job.journals, job.record)
    counting.note(job.history.events)
    counted = counting.count()
    for part in job.record.hops:
        values = _of_step(part, counted.parts[part.name])
        for metric, value in values.items():
            yield MetricSample(metric.name, (name, part.name), value)


def _of_step(part: JobPart, counts: Counts) -> Mapping[Metric, float]:
    found: dict[Metric, float] = {
        metrics.STEP_ROWS_IN: counts.rows_in,
        metrics.STEP_BACKLOG: counts.backlog,
        metrics.STEP_LETTERS: counts.dead_letters,
    }
    if counts.rows_out is not None:
        found[metrics.STEP_ROWS_OUT] = counts.rows_out
    if counts.state is not None:
        found[metrics.STEP_STATE_ROWS] = counts.state.rows
        found[metrics.STEP_STATE_BYTES] = counts.state.bytes
        found[metrics.STEP_SKIPPED] = counts.skipped
    made = counts.calls
    if made is None:
        return found
    tokens = made.tokens_in + made.tokens_cached + made.tokens_out
    found |= {
        metrics.STEP_CALLS: made.calls,
        metrics.STEP_IN_DOUBT: made.in_doubt,
        metrics.STEP_ERRORS: made.errors,
        metrics.STEP_SKIPPED: made.skipped,
        metrics.STEP_DOLLARS: made.nano_usd / NANO_USD,
        metrics.STEP_TOKENS: tokens,
    }
    used = _budget_used(part, made, tokens)
    return found if used is None else found | {metrics.STEP_BUDGET: used}


def _budget_used(part: JobPart, made: Totals, tokens: int) -> float | None:
    """The used part of the budget; None without one."""
    pairs = (
        (made.nano_usd / NANO_USD, part.paid.get("usd")),
        (tokens, part.paid.get("tokens")),
        (made.calls, part.max_calls),
    )
    used = [spent / most for spent, most in pairs if most]
    return max(used, default=None)
