"""What is told of a run while it goes on, for schedulers that show it in a log of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.pipeline.report.job_report import JobReport, StepReport


class RunObserver(Protocol):
    """Is called by the thread that leads the run. What it raises ends the run."""

    def on_progress(self, steps: Sequence[StepReport]) -> None:
        """How far each step is; several times a second."""

    def on_report(self, report: JobReport) -> None:
        """The run has ended, also if `run` raises an error then."""
