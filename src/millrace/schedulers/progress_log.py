"""Lines of progress in a scheduler's log, and what the scheduler keeps of a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from millrace.pipeline.report.job_progress import JobProgress, time_left
from millrace.pipeline.report.job_report import JobReport, StepReport

COUNTS = (
    "rows_in",
    "rows_out",
    "backlog",
    "calls",
    "calls_now",
    "reused",
    "in_doubt",
    "errors",
    "skipped",
    "dead_letters",
)


class ProgressLog:
    """Writes how to see the job, a line every few seconds while something moves, and the report."""

    def __init__(
        self,
        write: Callable[[str], object],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report: JobReport | None = None
        self.page = ""
        """How to see the job: a link, or a command."""
        self._write, self._every_s, self._clock = write, every_s, clock
        self._rates = JobProgress()
        self._last: tuple[float, str] | None = None

    def on_page(self, page: str) -> None:
        """Write how to see the job; also a try that is killed has said so."""
        self.page = page
        self._write(f"page: {page}")

    def on_progress(self, steps: Sequence[StepReport]) -> None:
        """Write how far the steps are, unless that was said just before."""
        now = self._clock()
        rates = self._rates.rates(steps, now)
        if self._last is not None and now - self._last[0] < self._every_s:
            return
        counts = "; ".join(_counts(step) for step in steps)
        if self._last is not None and counts == self._last[1]:
            return
        self._last = now, counts
        self._write("; ".join(_counts(step) + _rate(step, rates[step.name]) for step in steps))

    def on_report(self, report: JobReport) -> None:
        """Write the report."""
        self.report = report
        self._write(str(report))


def outcome_of(report: JobReport, page: str) -> dict[str, Any]:
    """A report in short, as JSON: state, counts of each step, and how to see more."""
    return {
        "job": report.job,
        "run": report.run,
        "state": report.state,
        "seconds": round(report.seconds, 3),
        "page": page,
        "steps": {
            step.name: {name: getattr(step, name) for name in COUNTS} for step in report.steps
        },
    }


def _counts(step: StepReport) -> str:
    text = f"{step.name}: {step.rows_in:,} of {step.rows_in + step.backlog:,} rows"
    return text if step.calls is None else f"{text}, {step.calls:,} calls"


def _rate(step: StepReport, rate: float) -> str:
    left = time_left(step.backlog, rate)
    return f", {rate:,.0f} rows/s" + (f", {left} left" if left else "")
