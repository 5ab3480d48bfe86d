"""A resource of Dagster that runs jobs inside assets: `MillraceWorkspace`.

Invariant: however a step ends, its retry goes on where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dagster import (
    ConfigurableResource,
    DagsterExecutionInterruptedError,
    Failure,
    MaterializeResult,
    MetadataValue,
)

from millrace.errors import MillraceError
from millrace.pipeline.core.job_model import OnChange
from millrace.schedulers.progress_log import ProgressLog, outcome_of
from millrace.schedulers.scheduled_job import JobBuilder, ScheduledJob, settings_of
from millrace.schedulers.scheduled_job import opened as opened_workspace
from millrace.schedulers.try_outcome import reason_of, retry_helps

if TYPE_CHECKING:
    from dagster import AssetExecutionContext

    from millrace.pipeline.report.job_report import JobReport
    from millrace.workspace import Workspace


class MillraceWorkspace(ConfigurableResource):  # type: ignore[misc] # Dagster is not installed for checks
    """A workspace, and the Spark that its jobs run on.

    Example:
        >>> import dagster as dg
        >>> from captions_job import build
        >>> from millrace.schedulers.dagster import MillraceWorkspace
        >>> @dg.asset(retry_policy=dg.RetryPolicy(max_retries=3))
        ... def captions(
        ...     context: dg.AssetExecutionContext, mill: MillraceWorkspace
        ... ) -> dg.MaterializeResult:
        ...     return mill.run(context, build)
        >>> mill = MillraceWorkspace(path="/shared/mill")
        >>> defs = dg.Definitions(assets=[captions], resources={"mill": mill})
    """

    path: str
    """The folder or url of the workspace, which every host of Dagster reaches."""
    spark: str | None = None
    """A master's url, or that of a Connect server; by default a local Spark of the step."""
    spark_settings: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """More settings of the session."""
    broker: str = "embedded"
    """What stores journals, as for `millrace.open`."""
    ledger: str | None = None
    """Where it is kept what counts in journals, as for `millrace.open`."""
    progress_every_s: float = 10.0
    """The least time between two lines of progress in the log."""
    ui_url: str | None = None
    """Where `millrace ui` serves the workspace, for a link to the job's page."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[Workspace]:
        """The open workspace, for assets that are datasets; it is closed with its Spark."""
        with opened_workspace(self.path, self._spark(), self._options()) as ws:
            yield ws

    def run(
        self,
        context: AssetExecutionContext,
        job: str | JobBuilder,
        *,
        on_change: OnChange = "fail",
        **arguments: Any,  # noqa: ANN401 - those of the job's function
    ) -> MaterializeResult:
        """Run a job from where it stopped; its report becomes the metadata of the asset.

        A failure allows retries, by the asset's `RetryPolicy`, unless a retry would end alike: the
        budget of a step is used up, calls in doubt are held for you, or the job itself is wrong.

        Args:
            context: of the asset; its log gets the progress and the report.
            job: the function that makes the job, or its place, "module:function". It gets the open
                workspace and `arguments`, and returns what `ws.job(name)` gave.
            on_change: what to do if the job has changed, as for `Job.run`.
            **arguments: more arguments of that function.
        """
        progress = ProgressLog(context.log.info, self.progress_every_s)
        scheduled = ScheduledJob(
            workspace=self.path,
            builder=job,
            arguments=arguments,
            spark=self._spark(),
            options=self._options(),
            on_change=on_change,
            ui_url=self.ui_url,
        )
        try:
            report = scheduled.run(progress, progress.on_page)
        except MillraceError as error:
            raise _failure(str(error), error, progress) from error
        except (KeyboardInterrupt, SystemExit) as signal:
            # As Dagster's own handler of these signals: the run has ended in order before.
            raise DagsterExecutionInterruptedError from signal
        if report.state != "finished":
            raise _failure(reason_of(report), None, progress)
        return MaterializeResult(metadata=_metadata(report, progress.page))

    def _spark(self) -> dict[str, str]:
        return {**self.spark_settings, **settings_of(self.spark)}

    def _options(self) -> dict[str, Any]:
        return {"broker": self.broker, "ledger": self.ledger}


def _failure(text: str, error: MillraceError | None, progress: ProgressLog) -> Failure:
    report = progress.report
    return Failure(
        description=text,
        metadata={} if report is None else _metadata(report, progress.page),
        allow_retries=retry_helps(error, report),
    )


def _metadata(report: JobReport, page: str) -> dict[str, Any]:
    """What Dagster shows of a report, and draws over time."""
    outcome = outcome_of(report, page)
    sums = {
        name: sum(counts[name] or 0 for counts in outcome["steps"].values())
        for name in ("calls", "calls_now", "in_doubt", "dead_letters")
    }
    found: dict[str, Any] = {"job": report.job, "run": report.run, "state": report.state}
    found |= {"seconds": outcome["seconds"], **sums}
    found["rows"] = {name: counts["rows_in"] for name, counts in outcome["steps"].items()}
    found["page"] = MetadataValue.url(page) if page.startswith("http") else page
    return found
