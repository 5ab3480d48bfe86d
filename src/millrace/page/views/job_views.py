"""Pages of jobs: the list, one job, one of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.page import page_texts
from millrace.page.pictures.bars import progress_lines
from millrace.page.pictures.layered_graph import GraphEdge, GraphNode, layered_graph
from millrace.page.views.look import PAGE_ROWS, Look, NotThere, Values, page_links
from millrace.page.views.step_activity import (
    StepActivity,
    activity_of,
    worker_name,
    workers_of,
)
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.report.job_counts import units_of
from millrace.pipeline.report.job_report import HINTS, StepReport
from millrace.pipeline.run.job_status import JobStatus, job_status
from millrace.system.job_reading import SeenJob, names_of_jobs, seen_job
from millrace.system.job_tables import job_row, last_call_rows, letter_table
from millrace.system.resting_workspace import RestingWorkspace

_CALLS_SEEN: Final = 2_000
_CALLS_SHOWN: Final = 30
_LETTERS_SEEN: Final = 2_000
_LETTERS_SHOWN: Final = 20
_ERRORS_SHOWN: Final = 20
_BINS: Final = 60
_UNITS_SHOWN: Final = 200
_KNOWN_COLUMNS: Final = {
    "job",
    "step",
    "journal",
    "record",
    "at",
    "run",
    "kind",
    "first",
    "next",
    "calls",
}


def list_page(look: Look) -> Values:
    """The jobs, by name."""
    at = look.whole("at")
    names = names_of_jobs(look.workspace)
    rows = rows_of(look.workspace, names[at : at + PAGE_ROWS])
    return {
        "title": "Jobs",
        "jobs": rows,
        "no_jobs": look.no_journals() or "No job ran here yet.",
        "links": page_links("/jobs", {}, at=at, rows=len(rows), total=len(names)),
    }


def rows_of(workspace: RestingWorkspace, names: Sequence[str]) -> list[Values]:
    """The rows of these jobs, with how long the last run took."""
    now_us = workspace.now_ms() * 1000
    rows = []
    for name in names:
        row = job_row(workspace, name)
        until = row["ended"] or (now_us if row["state"] == "running" else None)
        began = row["began"]
        row["seconds"] = None if None in (until, began) else (until - began) / 1e6
        rows.append(row)
    return rows


def job_page(look: Look, name: str, *, is_saved: bool = False) -> Values:
    """One job: its steps as a graph, what each does or waits for, its errors and its runs."""
    check_there(look, name)
    with seen_job(look.workspace, name) as job:
        status = job_status(job.journals, name)
        now_ms = look.workspace.now_ms()
        workers = workers_of(job, now_ms)
        states = {step.name: activity_of(job, status, step, workers) for step in status.steps}
        calls = last_call_rows(job, None, _CALLS_SEEN)
        errors = _errors(job)
        ended = _reports(job.history.events)
        graph = _graph(job, status, states, is_saved=is_saved)
    last = status.runs[-1] if status.runs else None
    until = None if last is None else last.ended_us or (now_ms * 1000 if status.holder else None)
    usd = _usd_by_step(calls)
    at = look.whole("at")
    entries = list(reversed(status.runs))
    report = {} if last is None else ended.get(last.number, {})
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
                "now": states[step.name].now,
                "why": states[step.name].why,
                "tone": states[step.name].tone,
                "usd": usd.get(step.name),
            }
            for step in status.steps
        ],
        "has_usd": bool(usd),
        "graph": graph,
        "calls_chart": _calls_chart(calls),
        "calls_note": _calls_note(calls),
        "workers": workers,
        "errors": errors,
        "commits": report.get("commits", []),
        "progress_svg": _progress(report),
        "runs": [_run(entry, ended) for entry in entries[at : at + PAGE_ROWS]],
        "run_links": page_links(
            f"/jobs/{name}", {}, at=at, rows=len(entries[at : at + PAGE_ROWS]), total=len(entries)
        )
        if len(entries) > PAGE_ROWS
        else None,
    }


def check_there(look: Look, name: str) -> None:
    """Refuse the name of a job that never ran."""
    if name not in names_of_jobs(look.workspace):
        raise NotThere(f"there is no job {name!r}\n  to fix: choose one of those under Jobs")


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
    kind = {"ok-text": "run", "warn-text": "warn"}.get(state.tone, "")
    return GraphNode(
        id=part.name,
        name=part.name,
        lines=tuple(lines),
        kind=kind,
        href=f"/jobs/{job}/steps/{part.name}",
    )


def _reports(events: Sequence[JobEvent]) -> dict[int, Mapping[str, Any]]:
    return {
        event.run: event.detail.get("report", event.detail)
        for event in events
        if event.happened is JobEventKind.ENDED
    }


def _run(entry: Any, ended: Mapping[int, Mapping[str, Any]]) -> Values:  # noqa: ANN401 - a RunEntry
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


def _progress(report: Mapping[str, Any]) -> object:
    samples = [(s["at_s"], s["rows_in"]) for s in report.get("samples", [])]
    names = [step["name"] for step in report.get("steps", [])]
    return progress_lines(names, samples)


def _usd_by_step(calls: pa.Table) -> dict[str, float]:
    """Dollars of each step, where the records have them: the totals of the last record count."""
    if "total_usd" not in calls.schema.names:
        return {}
    found: dict[tuple[str, str], float] = {}
    for row in calls.select(["step", "journal", "total_usd"]).to_pylist():
        found.setdefault((row["step"], row["journal"]), row["total_usd"] or 0.0)
    totals: dict[str, float] = {}
    for (step, _), amount in found.items():
        totals[step] = totals.get(step, 0.0) + amount
    return totals


def _calls_chart(calls: pa.Table) -> str:
    """How many calls were made in each part of the time that these records span."""
    at = calls["at"].cast(pa.int64()).to_numpy() / 1e6
    made = calls["calls"].to_numpy() * (calls["kind"].to_numpy() != "settled")
    if len(at) < 2 or at.max() <= at.min():  # noqa: PLR2004 - a span
        return ""
    counts, edges = np.histogram(at, bins=_BINS, weights=made)
    wide = edges[1] - edges[0]
    data = [edges[:-1].round(3).tolist(), (counts / wide).round(3).tolist()]
    return page_texts.chart(["calls a second"], data, is_time=True)


def _calls_note(calls: pa.Table) -> str:
    some = "of the last" if calls.num_rows == _CALLS_SEEN else "of all"
    return f"calls a second, {some} {calls.num_rows:,} records"


def _errors(job: SeenJob) -> list[Values]:
    """Dead letters by step and kind of error, each with one row."""
    groups: dict[tuple[str, str], Values] = {}
    for step, letters in _letters(job, _LETTERS_SEEN):
        for row in letters.select(["error", "row"]).to_pylist():
            kind = str(row["error"]).split(":", 1)[0][:60]
            group = groups.setdefault(
                (step, kind),
                {"step": step, "kind": kind, "rows": 0, "error": row["error"], "row": row["row"]},
            )
            group["rows"] += 1
    ordered = sorted(groups.values(), key=lambda group: -group["rows"])
    return [{**g, "row": page_texts.cell(g["row"])} for g in ordered[:_ERRORS_SHOWN]]


def _letters(job: SeenJob, count: int, step: str | None = None) -> list[tuple[str, pa.Table]]:
    """The last dead letters of each step that has some."""
    found = []
    for part in job.record.hops:
        for called in (*part.fused, part.name):
            name = hops.dead_letters(job.record.job, called)
            if step not in (None, called) or not job.journals.knows(name):
                continue
            end = job.journals.end_offset(name)
            begin = max(job.journals.start_offset(name), end - 2 * count)
            stored = job.journals.read(name, begin, rows_max=2 * count).stored()
            if stored.num_rows:
                found.append((called, letter_table(job.record.job, called, stored)))
    return found


def step_page(look: Look, name: str, step_name: str) -> Values:
    """One step: what it reads, its last calls, its dead letters."""
    check_there(look, name)
    with seen_job(look.workspace, name) as job:
        status = job_status(job.journals, name)
        step = next((s for s in status.steps if s.name == step_name), None)
        part = job.record.part(step_name)
        if step is None or part is None:
            raise NotThere(
                f"job {name!r} has no step {step_name!r}\n  to fix: choose one of its page"
            )
        state = activity_of(job, status, step, workers_of(job, look.workspace.now_ms()))
        calls = last_call_rows(job, step_name, _CALLS_SEEN)
        letters = [t for s in (*part.fused, part.name) for _, t in _letters(job, _LETTERS_SHOWN, s)]
        units = _units(job, part)
    shown = pa.concat_tables(letters).sort_by([("at", "descending")]) if letters else None
    extra = [
        n for n in calls.schema.names if n not in _KNOWN_COLUMNS and not n.startswith("total_")
    ]
    return {
        "title": f"{step_name} of {name}",
        "job": name,
        "step": step,
        "now_text": state.now,
        "why": state.why,
        "tone": state.tone,
        "figures": [
            ("rows in", page_texts.number(step.rows_in), ""),
            ("rows out", page_texts.number(step.rows_out) or None, ""),
            ("backlog", page_texts.number(step.backlog), ""),
            ("rate", page_texts.rate(step.rows_per_s), " rows/s"),
            ("calls", page_texts.number(step.calls) or None, ""),
            ("in doubt", page_texts.number(step.in_doubt) if step.calls is not None else None, ""),
            ("errors", page_texts.number(step.errors), ""),
        ],
        "calls_chart": _calls_chart(calls),
        "calls_note": _calls_note(calls),
        "latency": _latency(calls),
        "units": units,
        "calls": calls.slice(0, _CALLS_SHOWN).to_pylist(),
        "call_columns": extra,
        "letters": [] if shown is None else shown.slice(0, _LETTERS_SHOWN).to_pylist(),
        "letter_count": step.dead_letters,
    }


def _units(job: SeenJob, part: JobPart) -> list[Values]:
    group, name = job.record.group_of(part), job.record.job
    units = units_of(part, {info.name: info for info in job.journals.list()})[:_UNITS_SHOWN]
    held = {
        lease.name: worker_name(lease)
        for lease in job.journals.leases(f"{hops.step_root(name, part.name)}/unit")
    }
    positions = job.journals.positions([(group, info.name) for info in units])
    return [
        {
            "journal": position.journal,
            "committed": position.committed,
            "end": position.end,
            "lag": position.backlog,
            "holder": held.get(hops.unit_lease(name, part.name, info.id)),
        }
        for info, position in zip(units, positions, strict=True)
    ]


def _latency(calls: pa.Table) -> Values | None:
    """Percentiles of how long calls took, where the records say it."""
    for column, scale in (("latency_us", 1e6), ("latency_ms", 1e3), ("latency_s", 1.0)):
        if column in calls.schema.names:
            took = pc.drop_null(calls[column]).cast(pa.float64())
            if not len(took):
                return None
            marks = pc.quantile(took, q=[0.5, 0.9, 0.99, 1.0]).to_pylist()
            names = ("median", "90 %", "99 %", "longest")
            figures = [
                (name, page_texts.seconds(mark / scale), "")
                for name, mark in zip(names, marks, strict=True)
            ]
            return {"calls": len(took), "figures": figures}
    return None
