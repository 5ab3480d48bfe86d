"""The page of a step of a job: what it reads, its calls, its dead letters."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import pyarrow as pa

from millrace.page import page_texts
from millrace.page.views.call_views import CALLS_SEEN, call_errors, calls_chart, calls_note, latency
from millrace.page.views.letter_views import last_letters
from millrace.page.views.look import PAGE_ROWS, Look, NotThere, Values, check_job, page_links
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobPart
from millrace.pipeline.report.job_counts import units_of
from millrace.system.call_tables import last_call_rows, last_charge_rows
from millrace.system.job_reading import SeenJob, seen_job
from millrace.system.step_activity import worker_name
from millrace.system.workspace_now import job_now

_CALLS_SHOWN: Final = 15
_LETTERS_SHOWN: Final = 20


def step_page(look: Look, name: str, step_name: str) -> Values:
    """One step: what it reads, its last calls, its dead letters."""
    check_job(look, name)
    with seen_job(look.workspace, name) as job:
        now = job_now(look.workspace, job)
        step = next((s for s in now.status.steps if s.name == step_name), None)
        part = job.record.part(step_name)
        if step is None or part is None:
            raise NotThere(
                f"job {name!r} has no step {step_name!r}\n  to fix: choose one of its page"
            )
        state = now.states[step_name]
        calls = last_call_rows(job, step_name, CALLS_SEEN)
        letters = _letters(job, part)
        charges = last_charge_rows(job, step_name, CALLS_SEEN)
        units, links = _units(look, job, part)
    path = f"/jobs/{quote(name)}/steps/{quote(step_name)}"
    errors, error_links = look.page(path, call_errors(charges), at="errors_at")
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
            ("spent", page_texts.dollars(step.usd or None) or None, ""),
        ],
        "calls_chart": calls_chart(calls),
        "calls_note": calls_note(calls),
        "latency": latency(charges),
        "call_errors": errors,
        "error_links": error_links,
        "all_charges": hops.charges_journal(name, step_name),
        "all_letters": [hops.dead_letters(name, called) for called in (*part.fused, part.name)],
        "charges_seen": charges.num_rows,
        "charges": charges.slice(0, _CALLS_SHOWN).to_pylist(),
        "units": units,
        "unit_links": links,
        "calls": calls.slice(0, _CALLS_SHOWN).to_pylist(),
        "letters": letters,
        "letter_count": step.dead_letters,
    }


def _letters(job: SeenJob, part: JobPart) -> list[Values]:
    """The last dead letters of a step and of those that run with it."""
    called = (*part.fused, part.name)
    tables = [table for s in called for _, table in last_letters(job, _LETTERS_SHOWN, s)]
    if not tables:
        return []
    newest = pa.concat_tables(tables).sort_by([("at", "descending")])
    rows: list[Values] = newest.slice(0, _LETTERS_SHOWN).to_pylist()
    return rows


def _units(look: Look, job: SeenJob, part: JobPart) -> tuple[list[Values], Values]:
    """A page of the journals that a step reads, each with how far it is and who works on it."""
    group, name, at = job.record.group_of(part), job.record.job, look.whole("at")
    every = units_of(part, {info.name: info for info in job.journals.list()})
    units = every[at : at + PAGE_ROWS]
    held = {
        lease.name: worker_name(lease)
        for lease in job.journals.leases(f"{hops.step_root(name, part.name)}/unit")
    }
    positions = job.journals.positions([(group, info.name) for info in units])
    rows = [
        {
            "journal": position.journal,
            "committed": position.committed,
            "end": position.end,
            "lag": position.backlog,
            "holder": held.get(hops.unit_lease(name, part.name, info.id)),
        }
        for info, position in zip(units, positions, strict=True)
    ]
    path = f"/jobs/{quote(name)}/steps/{quote(part.name)}"
    return rows, page_links(path, {}, at=at, rows=len(rows), total=len(every))
