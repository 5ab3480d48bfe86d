"""The screen of `millrace top`: what runs, its steps, what each waits for. Draws values alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from millrace.page import page_texts
from millrace.pipeline.report.job_report import HINTS, StepReport
from millrace.system.workspace_now import JobNow, WorkspaceNow

_STYLES: Final = {"ok": "green", "run": "cyan", "warn": "yellow", "bad": "red", "": "", "rest": ""}
_RUNS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """What a screen shows."""

    where: str
    at: datetime
    now: WorkspaceNow
    jobs: Sequence[JobNow] = ()
    """Those whose steps are shown."""
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Rows a second of a job's step, since the screen before."""


def screen(view: TopView) -> RenderableType:
    """The whole screen."""
    about = Text.assemble(
        (view.where, "bold"), f"  {view.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC  ", view.now.text
    )
    parts: list[RenderableType] = [about]
    if view.now.runs:
        parts += [Text(), _runs(view)]
    if view.now.jobs:
        parts += [Text(), _jobs(view)]
    for job in view.jobs:
        parts += [Text(), *_job(view, job)]
    return Group(*parts)


def _table(title: str, *heads: str) -> Table:
    """A table; heads that begin with # are of numbers."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for head in heads:
        made.add_column(head.removeprefix("#"), justify="right" if head[0] == "#" else "left")
    return made


def _chip(state: str) -> Text:
    return Text(state, _STYLES[page_texts.tone(state)])


def _runs(view: TopView) -> Table:
    made = _table("runs", "#run", "name", "state", "began", "#took", "#reused", "#rows", "#size")
    for run in view.now.runs[:_RUNS_SHOWN]:
        of = "" if run["map_tasks"] is None else f"{run['reused']:,} of {run['map_tasks']:,}"
        made.add_row(
            str(run["run"]),
            run["name"] or "",
            _chip(run["state"]),
            page_texts.ago(view.at, run["began"]),
            page_texts.seconds(run["seconds"]),
            of,
            page_texts.number(run["rows"]),
            page_texts.size(run["bytes"]),
        )
    return made


def _jobs(view: TopView) -> Table:
    made = _table("jobs", "job", "state", "began", "#took", "#runs", "#steps", "by")
    for job in view.now.jobs:
        made.add_row(
            job["job"],
            _chip(job["state"]),
            page_texts.ago(view.at, job["began"]),
            page_texts.seconds(job["seconds"]),
            page_texts.number(job["runs"]),
            page_texts.number(job["steps"]),
            job["who"] or "",
        )
    return made


def _job(view: TopView, job: JobNow) -> list[RenderableType]:
    status = job.status
    has_usd = job.has_usd
    heads = ["step", "now", "#rows in", "#rows/s", "#backlog", "#calls", "#errors", "#dead letters"]
    made = _table(f"{status.job}: {status.state}", *heads, *(["#dollars"] if has_usd else []))
    for step in status.steps:
        state = job.states[step.name]
        now = Text(state.now, _STYLES[state.tone])
        now.append(f" {state.why}" if state.why else "", "dim")
        made.add_row(
            step.name,
            now,
            page_texts.number(step.rows_in),
            page_texts.rate(_rate(view, status.job, step)),
            page_texts.number(step.backlog),
            page_texts.number(step.calls),
            page_texts.number(step.errors),
            page_texts.number(step.dead_letters),
            *([page_texts.dollars(step.usd or None)] if has_usd else []),
        )
    hint = HINTS.get(status.state) if not status.holder else None
    return [made, Text(f"to go on: {hint}", "yellow")] if hint else [made]


def _rate(view: TopView, job: str, step: StepReport) -> float:
    """Rows a second since the last screen; of the whole run on the first one."""
    return view.rates.get((job, step.name), step.rows_per_s)


def rates(
    before: TopView | None, at: datetime, jobs: Sequence[JobNow]
) -> dict[tuple[str, str], float]:
    """Rows a second of each step since an earlier screen; nothing of what that one did not show."""
    if before is None or at <= before.at:
        return {}
    passed = (at - before.at).total_seconds()
    known: dict[tuple[str, str], Any] = {
        (job.status.job, step.name): step.rows_in
        for job in before.jobs
        for step in job.status.steps
    }
    return {
        key: max(0, step.rows_in - known[key]) / passed
        for job in jobs
        for step in job.status.steps
        if (key := (job.status.job, step.name)) in known
    }
