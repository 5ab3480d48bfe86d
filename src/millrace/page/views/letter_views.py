"""Parts of pages about dead letters: the last ones of a step, and all by kind of error."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from millrace.page import page_texts
from millrace.page.views.look import Values
from millrace.pipeline.core import hops
from millrace.system.job_reading import SeenJob
from millrace.system.job_tables import letter_table

_LETTERS_SEEN: Final = 2_000
_ERRORS_SHOWN: Final = 20


def errors_by_kind(job: SeenJob) -> list[Values]:
    """Dead letters by step and kind of error, each with one row."""
    groups: dict[tuple[str, str], Values] = {}
    for step, letters in last_letters(job, _LETTERS_SEEN):
        for row in letters.select(["error", "row"]).to_pylist():
            kind = str(row["error"]).split(":", 1)[0][:60]
            group = groups.setdefault(
                (step, kind),
                {"step": step, "kind": kind, "rows": 0, "error": row["error"], "row": row["row"]},
            )
            group["rows"] += 1
    ordered = sorted(groups.values(), key=lambda group: -group["rows"])
    return [{**g, "row": page_texts.cell(g["row"])} for g in ordered[:_ERRORS_SHOWN]]


def last_letters(job: SeenJob, count: int, step: str | None = None) -> list[tuple[str, pa.Table]]:
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
