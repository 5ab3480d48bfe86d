"""A job's report as one page: the graph of its steps, and how fast each went over time.

The page needs nothing but itself: no script, no font, no picture from elsewhere. All text in it is
escaped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from html import escape

from millrace.pipeline.report.job_report import HEADS, HINTS, JobReport, RunEntry, cells, when
from millrace.pipeline.report.report_pictures import chart, graph
from millrace.storage import modes
from millrace.storage.store import storage_errors

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5d6b7a; --line: #d5dce3;
  --paper: #ffffff; --card: #f6f8fa; --blue: #2463a6; --gold: #b7791f; --green: #2f7d4f;
  --red: #b3362b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b4; --line: #3a4552;
  --paper: #14191f; --card: #1d242c; --blue: #6aa9ea; --gold: #e0a84a; --green: #63bd88;
  --red: #ef7f73; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 1180px; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0; } .soft { color: var(--soft); }
.state { display: inline-block; padding: 1px 10px; border-radius: 10px; color: var(--paper);
  background: var(--blue); font-size: 13px; vertical-align: 3px; margin-left: 8px; }
.finished { background: var(--green); } .failed, .lost, .killed { background: var(--red); }
.held, .spent, .interrupted { background: var(--gold); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
th:first-child, td:first-child { text-align: left; }
pre { background: var(--card); padding: 12px; overflow-x: auto; font-size: 13px; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); font-size: 12px; } svg .name { font-weight: 600; }
"""
_LEGEND = (
    "Counts are over all runs of the job; this run, reused, seconds and rates are of this one."
)


def write_page(report: JobReport, path: str) -> str:
    """Write the page, whole or not at all; returns its path."""
    full = os.path.abspath(path)
    hidden = f"{full}.{secrets.token_hex(4)}.tmp"
    with storage_errors(f"writing {full}"):
        folder = os.path.dirname(full)
        is_within = modes.recorded_mode(folder) is not None
        if is_within:
            modes.make_folders(folder)
        else:
            os.makedirs(folder, exist_ok=True)
        opener = modes.opener if is_within else None
        with open(hidden, "w", encoding="utf-8", opener=opener) as file:
            file.write(page(report))
        os.replace(hidden, full)
    return full


def page(report: JobReport) -> str:
    """The page as text."""
    title = escape(f"{report.job}, run {report.run}")
    body = [
        f'<h1>{escape(report.job)}<span class="state {report.state}">{report.state}</span></h1>',
        f'<p class="soft">{escape(_about(report))}</p>',
        _note(report),
        "<h2>Steps</h2>",
        f'<div class="scroll">{graph(report)}</div>',
        "<h2>Rows done per second</h2>",
        f'<div class="scroll">{chart(report)}</div>',
        "<h2>Counts</h2>",
        f'<div class="scroll">{_table(HEADS, [cells(step) for step in report.steps])}</div>',
        f'<p class="soft">{_LEGEND}</p>',
        *_commits(report),
        "<h2>Runs</h2>",
        f'<div class="scroll">{_runs(report.runs)}</div>',
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _about(report: JobReport) -> str:
    began = next((run.started_us for run in report.runs if run.number == report.run), None)
    return f"run {report.run}, began {when(began)}, took {report.seconds:,.1f} s"


def _note(report: JobReport) -> str:
    hint = HINTS.get(report.state)
    parts = []
    if report.note:
        parts.append(f"<pre>{escape(report.note)}</pre>")
    if hint:
        parts.append(f"<p>To go on: {escape(hint)}.</p>")
    return "".join(parts)


def _commits(report: JobReport) -> list[str]:
    """The commits of this run to tables, if it has sinks of this kind."""
    if not report.commits:
        return []
    heads = ("sink", "committed", "version", "files", "rows", "bytes", "tries")
    rows = [
        (
            commit.sink,
            when(commit.at_us),
            "" if commit.version is None else f"{commit.version}",
            *(f"{n:,}" for n in (commit.files, commit.rows, commit.bytes, commit.tries)),
        )
        for commit in report.commits
    ]
    return ["<h2>Commits to tables</h2>", f'<div class="scroll">{_table(heads, rows)}</div>']


def _runs(runs: tuple[RunEntry, ...]) -> str:
    rows = [
        (str(run.number), when(run.started_us), when(run.ended_us), run.state, run.who)
        for run in reversed(runs)
    ]
    return _table(("run", "began", "ended", "how", "by"), rows)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
