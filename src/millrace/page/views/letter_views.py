"""Dead letters on pages: the last ones of a step, all by class of error, and those to retry.

Letters that were retried are no dead letters any more: they are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.page import page_texts
from millrace.page.views.look import Look, Values, check_job
from millrace.pipeline.core import hops
from millrace.pipeline.letters.open_letters import open_letters, retried_letters
from millrace.system.job_reading import SeenJob, seen_job
from millrace.system.job_tables import letter_table

_LETTERS_SEEN: Final = 2_000


def errors_by_kind(job: SeenJob) -> list[Values]:
    """Dead letters by step and class of error, each with one row."""
    groups: dict[tuple[str, str], Values] = {}
    for step, letters in last_letters(job, _LETTERS_SEEN):
        for row in letters.select(["kind", "error", "row"]).to_pylist():
            group = groups.setdefault(
                (step, row["kind"]),
                {"step": step, **row, "row": page_texts.cell(row["row"]), "rows": 0},
            )
            group["rows"] += 1
    return sorted(groups.values(), key=lambda group: -group["rows"])


def last_letters(job: SeenJob, count: int, step: str | None = None) -> list[tuple[str, pa.Table]]:
    """The last dead letters of each step that has some."""
    found = []
    for called in _called(job, step):
        name = hops.dead_letters(job.record.job, called)
        if not job.journals.knows(name):
            continue
        end = job.journals.end_offset(name)
        begin = max(job.journals.start_offset(name), end - 2 * count)
        stored = job.journals.read(name, begin, rows_max=2 * count).stored()
        letters = letter_table(job.record.job, called, stored)
        gone = retried_letters(job.journals, job.record.job, called)
        if gone:
            letters = letters.filter(~pc.field("letter").isin(sorted(gone)))
        if letters.num_rows:
            found.append((called, letters))
    return found


def _called(job: SeenJob, step: str | None) -> Iterator[str]:
    """The steps that can refuse rows; only this one if it is given."""
    for part in job.record.hops:
        for called in (*part.fused, part.name):
            if step in (None, called):
                yield called


def retry_page(look: Look, name: str, seal: str | None) -> Values:
    """Which dead letters would be given back: asks before it is done."""
    check_job(look, name)
    step, kind = look.text("step"), look.text("kind")
    with seen_job(look.workspace, name) as job:
        counts = Counter(
            (called, letter.kind)
            for called in _called(job, step or None)
            for letter in open_letters(job.journals, name, called)
            if kind in ("", letter.kind)
        )
    return {
        "title": f"Retry dead letters of {name}",
        "live": False,
        "job": name,
        "step": step,
        "kind": kind,
        "seal": seal,
        "total": counts.total(),
        "lead": "The next run of the job takes these rows once more, from the step that refused "
        "them on. Each is given back once. The job must not run meanwhile.",
        "rows": [
            {"step": called, "kind": error, "rows": rows}
            for (called, error), rows in counts.most_common()
        ],
    }
