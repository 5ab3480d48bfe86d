"""Pages of jobs: the list, and one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from millrace.page import page_texts
from millrace.page.pictures.bars import progress_lines
from millrace.page.pictures.layered_graph import GraphEdge, GraphNode, layered_graph
from millrace.page.pictures.svg import parted_bar
from millrace.page.views.call_views import CALLS_SEEN, calls_chart, calls_note
from millrace.page.views.letter_views import errors_by_kind
from millrace.page.views.look import PAGE_ROWS, Look, Values, check_job, page_links
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.report.job_report import HINTS, RunEntry, StepReport
from millrace.pipeline.run.job_status import JobStatus
from millrace.system.call_tables import last_call_rows
from millrace.system.job_reading import SeenJob, names_of_jobs, seen_job
from millrace.system.step_activity import StepActivity
from millrace.system.step_history import rows_over_time
from millrace.system.worker_times import WorkerTime, worker_times
from millrace.system.workspace_now import job_now, timed_job_rows

_GROWTH_RUNS: Final = 500


def list_page(look: Look) -> Values:
    """The jobs, by name."""
    at = look.whole("at")
    names = names_of_jobs(look.workspace)
    rows = timed_job_rows(look.workspace, names[at : at + PAGE_ROWS])
    return {
        "title": "Jobs",
        "jobs": rows,
        "no_jobs": look.no_journals() or "No job ran here yet.",
        "links": page_links("/jobs", {}, at=at, rows=len(rows), total=len(names)),
    }


def job_page(look: Look, name: str, *, is_saved: bool = False) -> Values:
    """One job: its steps as a graph, what each does or waits for, its errors and its runs."""
    check_job(look, name)
    with seen_job(look.workspace, name) as job:
        now, now_us = job_now(look.workspace, job), look.workspace.now_ms() * 1000
        status = now.status
        calls = last_call_rows(job, None, CALLS_SEEN)
        errors = errors_by_kind(job)
        ended = _reports(job.history.events)
        graph = _graph(job, status, now.states, is_saved=is_saved)
        last = status.runs[-1] if status.runs else None
        report = {} if last is None else ended.get(last.number, {})
        progress = _progress(job, report, last, until_us=now_us)
        until = None if last is None else last.ended_us or (now_us if status.holder else None)
    path = f"/jobs/{quote(name)}"
    errors_shown, error_links = look.page(path, errors, at="errors_at")
    workers, worker_links = look.page(path, now.workers, at="workers_at")
    return {
        "title": name,
        "status": status,
        "lead": _lead(status, until),
        "hint": HINTS.get(status.state) if not status.holder else None,
        "failure": _failure(job.history.events, report, last.number if last else 0),
        "figures": _figures(status, until),
        "steps": [
            {
                "step": step,
                "state": now.states[step.name],
                "usd": step.usd or None,
                "left": now.forecast(step),
            }
            for step in status.steps
        ],
        "has_usd": now.has_usd,
        "has_left": any(now.forecast(step) for step in status.steps),
        "graph": graph,
        "calls_chart": calls_chart(calls),
        "calls_note": calls_note(calls),
        "workers": workers,
        "worker_links": worker_links,
        "lanes": _lanes(worker_times(look.workspace, name)),
        "errors": errors if is_saved else errors_shown,
        "error_links": error_links,
        "retried": look.whole("retried"),
        "commits": report.get("commits", []),
        "progress_svg": progress,
    } | _runs(look, name, status.runs, ended)


def _runs(
    look: Look, name: str, runs: Sequence[RunEntry], ended: Mapping[int, Mapping[str, Any]]
) -> Values:
    """A page of the runs of a job, newest first, and how it grew over them."""
    entries, links = look.page(f"/jobs/{quote(name)}", runs[::-1])
    return {
        "runs": [_run(entry, ended) for entry in entries],
        "run_links": links,
        "growth_chart": _growth(runs, ended),
    }


def _lanes(times: Sequence[WorkerTime]) -> list[Values]:
    """The time of each worker, and how it is divided."""
    rows = []
    for each in times:
        parts = [
            ("bar", "in the function", each.function),
            ("bar alt", "publishing", each.publishing),
            ("bar big", "back-pressured", each.back_pressured),
            ("track", "waiting", each.waiting),
        ]
        said = [
            (kind, f"{what} {page_texts.percent(s / (each.total or 1))}", s)
            for kind, what, s in parts
        ]
        rows.append({"time": each, "bar": parted_bar(said)})
    return rows


def _lead(status: JobStatus, until: int | None) -> str:
    if not status.runs:
        return "It was never run to its start."
    last = status.runs[-1]
    took = "" if until is None else f", {page_texts.seconds((until - last.started_us) / 1e6)}"
    by = f" by {status.holder}" if status.holder else f" by {last.who}" if last.who else ""
    return f"Run {last.number} began {page_texts.moment(last.started_us)}{took}{by}."


def _failure(events: Sequence[JobEvent], report: Mapping[str, Any], run: int) -> str:
    """What a run that went wrong said."""
    if report.get("note"):
        return str(report["note"])
    told = [
        event
        for event in events
        if event.run == run and event.happened in (JobEventKind.FAILED, JobEventKind.HELD)
    ]
    if not told:
        return ""
    detail = told[-1].detail
    return str(detail.get("traceback") or detail.get("error") or "")


def _figures(status: JobStatus, until: int | None) -> list[tuple[str, str | None, str]]:
    steps = status.steps
    called = [step.calls for step in steps if step.calls is not None]
    now = [step.calls_now for step in steps if step.calls_now is not None]
    took = None
    if until is not None and status.runs:
        took = page_texts.seconds((until - status.runs[-1].started_us) / 1e6)
    return [
        ("took" if not status.holder else "runs for", took, ""),
        ("backlog", page_texts.number(sum(step.backlog for step in steps)), " rows"),
        ("calls", page_texts.number(sum(called)) if called else None, ""),
        ("of this run", page_texts.number(sum(now)) if called else None, ""),
        ("in doubt", page_texts.number(sum(s.in_doubt for s in steps)) if called else None, ""),
        ("errors", page_texts.number(sum(step.errors for step in steps)), ""),
        ("dead letters", page_texts.number(sum(step.dead_letters for step in steps)), ""),
        ("runs", page_texts.number(len(status.runs)), ""),
    ]


def _graph(
    job: SeenJob, status: JobStatus, states: Mapping[str, StepActivity], *, is_saved: bool
) -> object:
    steps = {step.name: step for step in status.steps}
    nodes = [_node(job.record.job, part, steps.get(part.name), states) for part in job.record.kept]
    if is_saved:
        nodes = [replace(node, href=None) for node in nodes]
    edges = [
        GraphEdge(feeder, part.name, _edge_label(steps.get(part.name)))
        for part in job.record.hops
        for feeder in job.record.feeders(part.name)
    ]
    return layered_graph(nodes, edges, "graph of the steps")


def _edge_label(step: StepReport | None) -> str:
    return f"{step.rows_in:,} rows" if step else ""


def _node(
    job: str, part: JobPart, step: StepReport | None, states: Mapping[str, StepActivity]
) -> GraphNode:
    if step is None:
        return GraphNode(id=part.name, name=part.name, lines=(part.kind,))
    fused = f"{', '.join(part.fused)}, then " if part.fused else ""
    lines = [f"{fused}{part.kind}"]
    if part.target:
        lines.append(part.target)
    if step.calls is not None:
        lines.append(f"{step.calls:,} calls, {step.errors:,} errors")
    state = states[part.name]
    lines.append(f"{step.backlog:,} rows wait" if step.backlog else state.now)
    kind = {"ok": "run", "warn": "warn"}.get(state.tone, "")
    return GraphNode(
        id=part.name,
        name=part.name,
        lines=tuple(lines),
        kind=kind,
        href=f"/jobs/{quote(job)}/steps/{quote(part.name)}",
    )


def _reports(events: Sequence[JobEvent]) -> dict[int, Mapping[str, Any]]:
    return {
        event.run: event.detail.get("report", event.detail)
        for event in events
        if event.happened is JobEventKind.ENDED
    }


def _run(entry: RunEntry, ended: Mapping[int, Mapping[str, Any]]) -> Values:
    steps = ended.get(entry.number, {}).get("steps", [])
    until = entry.ended_us
    return {
        "number": entry.number,
        "state": entry.state,
        "began": entry.started_us,
        "seconds": None if until is None else (until - entry.started_us) / 1e6,
        "rows": sum(s["rows_in"] - s.get("reused", 0) for s in steps) if steps else None,
        "calls": sum(s["calls_now"] or 0 for s in steps) if steps else None,
        "who": entry.who,
    }


def _progress(
    job: SeenJob, report: Mapping[str, Any], last: RunEntry | None, *, until_us: int
) -> object:
    """Rows over time: as the run recorded them at its end, else by the times of rows it made."""
    if "samples" in report:
        samples = since_begin(last, [(s["at_s"], s["rows_in"]) for s in report["samples"]])
        return progress_lines([step["name"] for step in report.get("steps", [])], samples)
    if last is None:
        return None
    return progress_lines(*rows_over_time(job, last.started_us, last.ended_us or until_us))


def since_begin(
    last: RunEntry | None, samples: list[tuple[float, list[int]]]
) -> list[tuple[float, list[int]]]:
    """Samples from the begin of a run on: its first ones come when its sources are saved."""
    if last is None or last.ended_us is None or not samples:
        return samples
    before = (last.ended_us - last.started_us) / 1e6 - samples[-1][0]
    if before <= 0:
        return samples
    return [(0.0, [0] * len(samples[0][1])), *((at + before, rows) for at, rows in samples)]


def _growth(runs: Sequence[RunEntry], ended: Mapping[int, Mapping[str, Any]]) -> str:
    """Rows and calls of each run; nothing if there are fewer than two that ended."""
    rows = [_run(entry, ended) for entry in runs[-_GROWTH_RUNS:]]
    known = [row for row in rows if row["rows"] is not None]
    if len(known) < 2:  # noqa: PLR2004 - a line
        return ""
    columns = [[row[name] for row in known] for name in ("number", "rows", "calls")]
    return page_texts.chart(["rows", "calls"], columns, is_time=False)
