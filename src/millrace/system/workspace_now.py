"""What a workspace does now, and what it did last: for the overview and for `millrace top`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.ids import QueryId
from millrace.pipeline.report.job_report import StepReport
from millrace.pipeline.run.job_status import JobStatus, job_status
from millrace.storage import layout
from millrace.system.job_reading import (
    SeenJob,
    names_of_running_jobs,
    newest_jobs,
)
from millrace.system.job_tables import job_row
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.shuffle_tables import RUNS, run_row, seen_run
from millrace.system.step_activity import (
    StepActivity,
    WorkerRow,
    activities_of,
    workers_of,
)

LATEST: Final = 8
"""So many runs and jobs are shown; of jobs more if more of them run."""
_NEWEST_JOBS: Final = 30
_RUNNING_SHOWN: Final = 50
_NAMED: Final = 3


@dataclass(slots=True)
class RunMemory:
    """Rows of runs that have ended: they change no more, so a server reads each once.

    The least recently shown one is forgotten first.
    """

    runs_max: int = 20_000
    rows: OrderedDict[int, dict[str, Any]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def row(self, workspace: RestingWorkspace, query_id: QueryId) -> dict[str, Any] | None:
        """A row of `runs`, with every column, of a run that is listed now."""
        with self._lock:
            if query_id in self.rows:
                self.rows.move_to_end(query_id)
                return self.rows[query_id]
        found = run_row(workspace, query_id)
        if found is None:
            return None
        row = {column.name: found.get(column.name) for column in RUNS.columns}
        if row["state"] == "finished":
            with self._lock:
                self.rows[query_id] = row
                if len(self.rows) > self.runs_max:
                    self.rows.popitem(last=False)
        return row

    def row_there(self, workspace: RestingWorkspace, query_id: QueryId) -> dict[str, Any] | None:
        """The same, of any run; None, and forgotten, if it was dropped."""
        if seen_run(workspace, query_id) is None:
            with self._lock:
                self.rows.pop(query_id, None)
            return None
        return self.row(workspace, query_id)

    def listed(self, workspace: RestingWorkspace, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of these runs, just listed; those that went since are left out."""
        ids = [QueryId(number) for number in numbers]
        found = workspace.store.each(lambda query_id: self.row(workspace, query_id), ids)
        return [row for row in found if row is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceNow:
    """What runs, and what ran last."""

    run_count: int
    runs: list[dict[str, Any]]
    """Rows of the last runs, newest first."""
    job_count: int
    jobs: list[dict[str, Any]]
    """Rows of jobs with `seconds`: those that run, then those that were begun last."""
    working: tuple[str, ...]
    """All jobs that run."""

    @property
    def is_busy(self) -> bool:
        """Whether anything runs."""
        return bool(self.working) or any(run["state"] == "running" for run in self.runs)

    @property
    def text(self) -> str:
        """What runs, in a sentence."""
        parts = [f"job {name}" for name in self.working[:_NAMED]]
        more = len(self.working) - _NAMED
        parts += [f"{more} more jobs"] if more > 0 else []
        runs = sum(run["state"] == "running" for run in self.runs)
        parts += ["a query" if runs == 1 else f"{runs} queries"] if runs else []
        return f"Running now: {', '.join(parts)}." if parts else "Nothing runs now."


def workspace_now(workspace: RestingWorkspace, memory: RunMemory) -> WorkspaceNow:
    """What a workspace does now. Of jobs at rest, the newest ones are looked at."""
    ids = workspace.store.numbers(layout.SHUFFLE)[::-1]
    names = newest_jobs(workspace)
    working = sorted(names_of_running_jobs(workspace)) if names else []
    chosen = dict.fromkeys([*working[:_RUNNING_SHOWN], *names[:_NEWEST_JOBS]])
    jobs = timed_job_rows(workspace, list(chosen))
    jobs.sort(key=lambda job: (job["state"] != "running", -(job["began"] or 0)))
    return WorkspaceNow(
        run_count=len(ids),
        runs=memory.listed(workspace, ids[:LATEST]),
        job_count=len(names),
        jobs=jobs[: max(LATEST, len(working[:_RUNNING_SHOWN]))],
        working=tuple(working),
    )


def timed_job_rows(workspace: RestingWorkspace, names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of these jobs, with how long the last run took."""
    now_us = workspace.now_ms() * 1000
    rows = []
    for name in names:
        row = job_row(workspace, name)
        until = row["ended"] or (now_us if row["state"] == "running" else None)
        began = row["began"]
        row["seconds"] = None if None in (until, began) else (until - began) / 1e6
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class StepForecast:
    """What the rows that wait for a step will take."""

    seconds: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """A job at this moment."""

    status: JobStatus
    states: Mapping[str, StepActivity]
    """What each step does, by name."""
    workers: Sequence[WorkerRow]

    @property
    def has_usd(self) -> bool:
        """Whether calls of some step cost dollars."""
        return any(step.usd for step in self.status.steps)

    def forecast(self, step: StepReport) -> StepForecast | None:
        """What the rest of a step will take, if its run goes on as it did; None if that is unknown.

        Rows that steps before it have yet to make are not counted.
        """
        if self.status.state != "running" or not step.backlog or not step.rows_per_s:
            return None
        return StepForecast(seconds=step.backlog / step.rows_per_s, usd=step.usd_left)


def job_now(workspace: RestingWorkspace, job: SeenJob) -> JobNow:
    """What a job does now."""
    # There may be very many charges: they are not read from end to end.
    status = job_status(job.journals, job.record.job, has_groups=False)
    workers = workers_of(job, workspace.now_ms())
    return JobNow(
        status=status,
        states=activities_of(workspace, job, status, workers),
        workers=workers,
    )
