"""Modules that look like those of schedulers, as far as Millrace uses them."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.report.job_report import JobReport, State, StepReport
from millrace.pipeline.report.run_observer import RunObserver
from millrace.schedulers.job_page import page_of
from millrace.schedulers.scheduled_job import ScheduledJob

Ends = Callable[..., list[ScheduledJob]]
"""Lets jobs end in a way; the jobs that were run."""


class AirflowException(Exception):
    pass


class AirflowFailException(AirflowException):
    pass


class BaseOperator:
    def __init__(self, *, task_id: str) -> None:
        self.task_id = task_id
        self.log = logging.getLogger(f"task.{task_id}")


CONNECTIONS: dict[str, Any] = {}
BaseHook = SimpleNamespace(get_connection=CONNECTIONS.__getitem__)


class Failure(Exception):
    def __init__(self, description: str, metadata: dict[str, Any], *, allow_retries: bool) -> None:
        super().__init__(description)
        self.metadata, self.allow_retries = metadata, allow_retries


class DagsterExecutionInterruptedError(BaseException):
    pass


class ConfigurableResource:
    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - fields of a resource
        vars(self).update(given)


class MaterializeResult:
    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata


class MetadataValue:
    @staticmethod
    def url(url: str) -> tuple[str, str]:
        return "url", url


MODULES = {
    "airflow": (),
    "airflow.sdk": ("BaseHook", "BaseOperator"),
    "airflow.sdk.exceptions": ("AirflowException", "AirflowFailException"),
    "dagster": (
        "ConfigurableResource",
        "DagsterExecutionInterruptedError",
        "Failure",
        "MaterializeResult",
        "MetadataValue",
    ),
}


def imported_beside_stand_ins(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A module of `millrace.schedulers`, with the stand-in of its scheduler."""
    for module, names in MODULES.items():
        made = ModuleType(module)
        for each in names:
            setattr(made, each, globals()[each])
        monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return found


def report(state: State, *, rows: int = 80, backlog: int = 0, calls: int = 82) -> JobReport:
    step = StepReport(name="ask", rows_in=rows, backlog=backlog, calls=calls, in_doubt=2)
    return JobReport(
        job="paid",
        run=2,
        state=state,
        seconds=1.5,
        record=JobRecord("paid"),
        steps=(step,),
        runs=(),
    )


def ending_jobs(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Jobs that run nothing, and end as a test says."""

    def chosen(
        ended: JobReport | None = None, error: BaseException | None = None
    ) -> list[ScheduledJob]:
        ran: list[ScheduledJob] = []

        def run(
            job: ScheduledJob, observer: RunObserver, begins: Callable[[str], None]
        ) -> JobReport:
            ran.append(job)
            begins(page_of("/mill", "paid", job.ui_url))
            if ended is not None:
                observer.on_progress(ended.steps)
                observer.on_report(ended)
            if error is not None:
                raise error
            assert ended is not None
            return ended

        monkeypatch.setattr(ScheduledJob, "run", run)
        return ran

    return chosen
