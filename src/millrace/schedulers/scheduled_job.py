"""A job as a scheduler runs it: opened, built, run and closed in one call.

Invariant: nothing of a try is kept in the process. What the next try needs is in the workspace.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace import workspace
from millrace.errors import UserError
from millrace.extras import check_extra
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.define.job import Job, run_observed
from millrace.pipeline.report.run_observer import RunObserver
from millrace.schedulers.job_page import check_ui_url, page_of

if TYPE_CHECKING:
    from millrace.pipeline.report.job_report import JobReport

JobBuilder = Callable[..., Job]
"""A function that gets the open workspace, and arguments by name, and returns a job."""

SparkChoice = str | Mapping[str, str] | None
"""None for a local Spark, the url of a master or of a Connect server, or settings of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """A job, and where it runs."""

    workspace: str
    builder: str | JobBuilder
    """The function, or its place: "module:function"."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    spark: SparkChoice = field(default=None, repr=False)  # Its url may hold a token.
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `millrace.open`."""
    on_change: OnChange = "fail"
    ui_url: str | None = None
    """Where `millrace ui` serves the workspace."""

    def run(self, observer: RunObserver, begins: Callable[[str], None]) -> JobReport:
        """Run it from where it stopped.

        Args:
            observer: of the run.
            begins: gets the job's page before the run; raises if it is not wanted any more.
        """
        check_ui_url(self.ui_url)
        build = builder_of(self.builder)
        # Schedulers keep what any library says; this one says that it closes connections.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        with opened(self.workspace, self.spark, self.options) as ws:
            job: object = build(ws, **self.arguments)
            if not isinstance(job, Job):
                raise UserError(
                    f"{builder_name(self.builder)} returned a {type(job).__name__}\n"
                    "  to fix: return the job that ws.job(name) gave"
                )
            begins(page_of(ws.path, job.name, self.ui_url))
            from millrace.spark.shipping.function_shipping import ship_by_value  # noqa: PLC0415 - imports PySpark

            ship_by_value(getattr(build, "__module__", ""))
            return run_observed(job, observer, on_change=self.on_change)


def builder_of(given: str | JobBuilder) -> JobBuilder:
    """The function that makes a job."""
    build: object = given
    if isinstance(given, str):
        place, _, name = given.partition(":")
        if not place or not name:
            raise UserError(
                f"a job is the function that makes it, or its place\n  found: {given!r}\n"
                '  to fix: give "module:function"'
            )
        try:
            build = getattr(import_module(place), name, None)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{given!r}: its module cannot be imported here\n  found: {error}\n"
                "  to fix: install it where tasks of the scheduler run, or put it on PYTHONPATH"
            ) from error
    if not callable(build):
        raise UserError(
            f"{builder_name(given)} is no function\n  found: {type(build).__name__}\n"
            "  to fix: name a function that gets the workspace and returns a job"
        )
    return build


def builder_name(given: str | JobBuilder) -> str:
    """A builder in errors."""
    return given if isinstance(given, str) else getattr(given, "__qualname__", repr(given))


@contextlib.contextmanager
def opened(
    path: str, spark: SparkChoice, options: Mapping[str, Any]
) -> Iterator[workspace.Workspace]:
    """A workspace with the Spark that was chosen; both are closed at the end."""
    session = session_of(spark)
    try:
        with workspace.open(path, session, **options) as ws:
            yield ws
    finally:
        session.stop()


def session_of(spark: SparkChoice) -> Any:  # noqa: ANN401 - a session of PySpark
    """The chosen session of Spark, in which signals for this process's group are not heard."""
    # A local Spark imports what this process can import: schedulers add folders of their own.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    settings = settings_of(spark)
    check_extra("connect" if "spark.remote" in settings else "spark", "a session of Spark")
    from millrace.spark.session import session_with, start_session  # noqa: PLC0415 - errors need no Spark

    if not settings:
        return start_session(apart=True)
    # Its bars have no place in a log. A Connect server has settings of its own.
    quiet = {} if "spark.remote" in settings else {"spark.ui.showConsoleProgress": "false"}
    return session_with({**quiet, **settings}, apart=True)


def settings_of(spark: SparkChoice) -> Mapping[str, str]:
    """What was chosen, as settings."""
    if spark is None or not isinstance(spark, str):
        return spark or {}
    return {"spark.remote" if spark.startswith("sc://") else "spark.master": spark}
