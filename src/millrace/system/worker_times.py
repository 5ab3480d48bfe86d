"""Where the time of a job's workers goes, from what their processes last said of themselves.

A process says it about every 10 seconds while it works, so of a run that has ended there is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millrace.metrics import process_metrics
from millrace.metrics.metric import MetricSample
from millrace.metrics.metric_catalog import PROCESS_METRICS
from millrace.metrics.process_reports import reported
from millrace.system.resting_workspace import RestingWorkspace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTime:
    """Seconds of one worker process for a step, since the process began."""

    process: str
    step: str
    function: float = 0.0
    """In the user's function."""
    publishing: float = 0.0
    """At work on the step beside that: rows are read, results published."""
    waiting: float = 0.0
    """Idle: there were no rows, or others had them."""
    back_pressured: float = 0.0
    """Idle: the next step has too many rows."""

    @property
    def total(self) -> float:
        """All of these seconds; a worker may be idle for several steps at once."""
        return self.function + self.publishing + self.waiting + self.back_pressured


def worker_times(workspace: RestingWorkspace, job: str) -> list[WorkerTime]:
    """The times of all processes that work for a job now, by step."""
    return times_of(reported(workspace.store, PROCESS_METRICS, time.time()), job)


def times_of(samples: Iterable[MetricSample], job: str) -> list[WorkerTime]:
    """The times of a job that are among these samples."""
    seconds: dict[tuple[str, str], dict[str, float]] = {}
    for sample in samples:
        if sample.metric not in _NAMES:
            continue
        labels = dict(zip(PROCESS_METRICS[sample.metric].labels, sample.labels, strict=True))
        if labels["job_name"] == job:
            key = (labels["step"], labels["process"])
            seconds.setdefault(key, {})[_NAMES[sample.metric]] = sample.value
    return [_time(process, step, known) for (step, process), known in sorted(seconds.items())]


def _time(process: str, step: str, known: dict[str, float]) -> WorkerTime:
    busy, function = known.get("busy", 0.0), known.get("function", 0.0)
    return WorkerTime(
        process=process,
        step=step,
        function=function,
        # Calls that slide are under way side by side: their sum may be above the worker's time.
        publishing=max(0.0, busy - function),
        waiting=known.get("waiting", 0.0),
        back_pressured=known.get("back_pressured", 0.0),
    )


_NAMES: Final = {
    process_metrics.BUSY.metric.name: "busy",
    process_metrics.IN_FUNCTION.metric.name: "function",
    process_metrics.WAITING.metric.name: "waiting",
    process_metrics.BACK_PRESSURED.metric.name: "back_pressured",
}
