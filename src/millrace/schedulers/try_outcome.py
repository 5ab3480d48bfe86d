"""What a scheduler does after a try: whether another try can help. Pure."""

from __future__ import annotations

from typing import Final

from millrace.errors import FormatError, UserError
from millrace.pipeline.report.job_report import HINTS, JobReport, State

_DECIDED_BY_PEOPLE: Final[frozenset[State]] = frozenset({"held", "spent"})
"""A budget that is used up, and calls in doubt that are to be held: a retry ends alike."""


def retry_helps(error: BaseException | None, report: JobReport | None) -> bool:
    """Whether a job that ended like this can get further in another try, with nothing changed."""
    if report is not None and report.state in _DECIDED_BY_PEOPLE:
        return False
    return not isinstance(error, UserError | FormatError)


def reason_of(report: JobReport) -> str:
    """The state in which a job ended, why, and what to do."""
    text = report.summary()
    return f"{text}\n  to fix: {HINTS[report.state]}" if report.state in HINTS else text
