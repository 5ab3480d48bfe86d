"""The status of jobs, read from the broker alone: without Spark, without the job's definition.

It works while the job runs in another process, and after the job was killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.paid import charges
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.report.call_groups import CallGroups, groups_of
from millrace.pipeline.report.job_counts import Counted, Counting
from millrace.pipeline.report.job_estimate import (
    SAMPLE_CHARGES_MAX,
    JobEstimate,
    StepSlots,
    estimate_of,
)
from millrace.pipeline.report.job_report import (
    HINTS,
    JobReport,
    RunEntry,
    State,
    StepReport,
    spending_text,
    states_text,
    steps_table,
    table_text,
    when,
)
from millrace.pipeline.report.run_history import RunHistory, job_names
from millrace.pipeline.run.job_journals import journals_of as journals_of_hop
from millrace.pipeline.run.lease_holders import running
from millrace.pipeline.run.reset import reset_step

__all__ = ["JobStatus", "job_status", "list_jobs", "reset_step", "step_reports"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The current state of a job.

    Example:
        >>> status = job.status()
        >>> status.state, status.holder, status.caught_up
        ('finished', None, True)
    """

    job: str
    state: State
    holder: str | None
    """The process that runs the job now."""
    record: JobRecord
    steps: tuple[StepReport, ...]
    runs: tuple[RunEntry, ...]
    caught_up: bool
    """Whether no step has rows left to do."""

    def step(self, name: str) -> StepReport:
        """The progress of one step.

        Example:
            >>> job.status().step("caption").backlog
            0
        """
        return next(step for step in self.steps if step.name == name)

    def to_json(self) -> str:
        """All of it as JSON.

        Example:
            >>> import json
            >>> json.loads(job.status().to_json())["job"]
            'captions'
        """
        return json.dumps(
            {
                "job": self.job,
                "state": self.state,
                "holder": self.holder,
                "caught_up": self.caught_up,
                "record": self.record.to_json(),
                "steps": [asdict(step) for step in self.steps],
                "runs": [asdict(run) for run in self.runs],
            }
        )

    def __str__(self) -> str:
        who = f" by {self.holder}" if self.holder else ""
        lines = [f"job {self.job}: {self.state}{who}, {len(self.runs)} runs"]
        if self.runs:
            lines.append(f"last run {self.runs[-1].number} began {when(self.runs[-1].started_us)}")
        lines += [table_text(steps_table(self.steps)), *spending_text(self.steps)]
        lines += states_text(self.steps)
        if self.state in HINTS:
            lines.append(f"to go on: {HINTS[self.state]}")
        return "\n".join(lines)


def job_status(broker: Broker, name: str, *, has_groups: bool = True) -> JobStatus:
    """The progress of a job, and the process that runs it.

    `has_groups`: with the attempts of its calls, which are read from their charges.
    """
    history = RunHistory.open(broker, name)
    lease = running(broker, name)
    runs = history.runs(None if lease is None else lease.epoch)
    record = history.record() or JobRecord(name)
    counting = Counting(broker, record)
    counting.note(history.events)
    counted = counting.count()
    groups = groups_of(broker, record, history.events) if has_groups else {}
    return JobStatus(
        job=name,
        state=runs[-1].state if runs else "running" if lease else "killed",
        holder=None if lease is None else lease.holder,
        record=record,
        steps=_since_start(history, record, counted, groups),
        runs=runs,
        caught_up=bool(runs) and counted.backlog == 0 and _all_sources_saved(history, record),
    )


def list_jobs(broker: Broker) -> tuple[JobStatus, ...]:
    """All jobs, by name."""
    return tuple(job_status(broker, name, has_groups=False) for name in job_names(broker))


def step_reports(
    record: JobRecord,
    now: Counted,
    before: Counted | None,
    *,
    seconds: float,
    spent: Mapping[str, tuple[float, float]] | None = None,
    groups: Mapping[str, CallGroups] | None = None,
) -> tuple[StepReport, ...]:
    """The reports of all steps, made of counts.

    Args:
        record: the job.
        now: the counts now.
        before: the counts when the run began.
        seconds: how long the run has taken.
        spent: for each step the seconds of workers, and those in the user's function.
        groups: for each step the attempts of its calls.
    """
    steps = []
    for part in record.hops:
        counts = now.parts[part.name]
        first = None if before is None else before.parts.get(part.name)
        earlier = 0 if first is None else first.rows_in
        made = counts.calls
        made_before = 0 if first is None or first.calls is None else first.calls.calls
        cost = (Totals() if made is None else made).spend
        all_s, inside_s = (spent or {}).get(part.name, (0.0, 0.0))
        step = StepReport(
            name=part.name,
            rows_in=counts.rows_in,
            rows_out=counts.rows_out,
            backlog=counts.backlog,
            calls=None if made is None else made.calls,
            calls_now=None if made is None else made.calls - made_before,
            reused=earlier,
            in_doubt=0 if made is None else made.in_doubt,
            errors=0 if made is None else made.errors,
            skipped=counts.skipped + (0 if made is None else made.skipped),
            dead_letters=counts.dead_letters,
            state_rows=None if counts.state is None else counts.state.rows,
            state_bytes=None if counts.state is None else counts.state.bytes,
            seconds=all_s,
            in_function=inside_s / all_s if all_s else None,
            rows_per_s=(counts.rows_in - earlier) / seconds if seconds > 0 else 0.0,
            refused=0 if made is None else made.refused,
            tokens_in=cost.tokens_in,
            tokens_cached=cost.tokens_cached,
            tokens_out=cost.tokens_out,
            usd=cost.usd,
            usd_left=cost.usd / counts.rows_in * counts.backlog
            if cost.nano_usd and counts.rows_in
            else None,
            usd_in_doubt=_usd_in_doubt(made),
            groups=(groups or {}).get(part.name),
        )
        steps.append(step)
    return tuple(steps)


def _usd_in_doubt(made: Totals | None) -> float:
    return 0.0 if made is None or not made.calls else made.spend.usd / made.calls * made.in_doubt


def estimate_job(broker: Broker, report: JobReport, job_hops: Sequence[Hop]) -> JobEstimate:
    """What the rest of a job will cost, by what its calls have cost."""
    charged, slots = {}, {}
    for hop in job_hops:
        if hop.expensive is None:
            continue
        units = len(journals_of_hop(broker, hop))
        charged[hop.name] = _last_charges(broker, hops.charges_journal(hop.job, hop.name))
        workers = max(1, min(units, hop.options.workers or units))
        slots[hop.name] = StepSlots(workers, hop.options.concurrency)
    return estimate_of(report, charged, slots)


def _last_charges(broker: Broker, journal: str) -> pa.Table:
    end, start = int(broker.end_offset(journal)), int(broker.start_offset(journal))
    offset, tables = max(start, end - SAMPLE_CHARGES_MAX), [charges.SCHEMA.empty_table()]
    while True:
        fetched = broker.read(journal, offset)
        tables.append(fetched.rows())
        if fetched.next_offset == offset:
            return pa.concat_tables(tables)
        offset = int(fetched.next_offset)


def baseline(counted: Counted) -> dict[str, Any]:
    """The counts that are recorded when a run begins, so that its own work can be counted later."""
    return {
        name: {"rows_in": counts.rows_in, "calls": counts.calls.calls if counts.calls else 0}
        for name, counts in counted.parts.items()
    }


def _since_start(
    history: RunHistory, record: JobRecord, now: Counted, groups: Mapping[str, CallGroups]
) -> tuple[StepReport, ...]:
    """Reports of steps with the work of the last run, if it recorded its counts at the start."""
    last = history.last_started()
    seconds = 0.0 if last is None else _seconds(history.events, last)
    first: Mapping[str, Mapping[str, int]] = {} if last is None else last.detail.get("before", {})
    steps = []
    for step in step_reports(record, now, None, seconds=seconds, groups=groups):
        known = first.get(step.name, {})
        done, made = known.get("rows_in", 0), known.get("calls", 0)
        changed: dict[str, Any] = {
            "reused": done,
            "calls_now": None if step.calls is None else step.calls - made,
            "rows_per_s": max(0.0, step.rows_in - done) / seconds if seconds > 0 else 0.0,
        }
        steps.append(replace(step, **changed))
    return tuple(steps)


def _seconds(happened: Sequence[JobEvent], last: JobEvent) -> float:
    ended = [e.at_us for e in happened if e.run == last.run and e.happened == "ended"]
    until = ended[-1] if ended else time.time_ns() // 1000
    return max(0.0, (until - last.at_us) / 1e6)


def _all_sources_saved(history: RunHistory, record: JobRecord) -> bool:
    sources = [p.name for p in record.parts if p.is_source and p.kind != "journals"]
    return all(history.taken_in(name) for name in sources)
