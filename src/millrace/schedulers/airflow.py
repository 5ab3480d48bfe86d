"""A task of Airflow that runs a job: `MillraceJobOperator`.

Invariant: however a try ends, the next try goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millrace.errors import MillraceError
from millrace.pipeline.core.job_model import OnChange
from millrace.schedulers.airflow_connections import spark_of
from millrace.schedulers.progress_log import ProgressLog, outcome_of
from millrace.schedulers.scheduled_job import JobBuilder, ScheduledJob
from millrace.schedulers.try_outcome import reason_of, retry_helps

if TYPE_CHECKING:
    from airflow.sdk import Context

    from millrace.pipeline.report.job_report import JobReport

REPORT_KEY = "report"
"""The report's name in XCom when a try fails; a job that finished returns it."""


class MillraceJobOperator(BaseOperator):  # type: ignore[misc] # Airflow is not installed for checks
    """Run a job in the process of the task; a retry goes on where the last try stopped.

    The task returns a report: `job`, `run`, `state`, `seconds`, how to see the job (`page`) and the
    counts of each step (`steps`). A try that fails leaves the same in XCom under "report".

    It fails for good, without the retries that are left, if a retry would end alike: the budget of
    a step is used up, calls in doubt are held for you, or the job itself is wrong.

    Args:
        workspace: the folder or url of the workspace, which every worker of Airflow reaches.
        job: the function that makes the job, or its place, "module:function". It gets the open
            workspace and `arguments` by name, and returns what `ws.job(name)` gave.
        arguments: more arguments of that function, with templates, as {"day": "{{ ds }}"}.
        spark: a master's url, the url of a Connect server, or settings of a session. By default a
            local Spark of the task.
        spark_conn_id: instead, a connection of the type `spark` or `spark_connect`.
        open_options: arguments of `millrace.open`, as {"ledger": "files"}.
        on_change: what to do if the job has changed, as for `Job.run`.
        progress_every_s: the least time between two lines of progress in the log.
        ui_url: where `millrace ui` serves the workspace, for a link to the job's page. Without it
            the log has the command that saves this page.
        **kwargs: those of every operator: `task_id`, `retries`, `execution_timeout`.

    Example:
        >>> from millrace.schedulers.airflow import MillraceJobOperator
        >>> captions = MillraceJobOperator(
        ...     task_id="captions", workspace="/shared/mill", job="captions:build", retries=3
        ... )
    """

    template_fields: ClassVar[Sequence[str]] = ("workspace", "arguments", "ui_url")
    ui_color = "#d9ecec"

    def __init__(
        self,
        *,
        workspace: str,
        job: str | JobBuilder,
        arguments: Mapping[str, Any] | None = None,
        spark: str | Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        open_options: Mapping[str, Any] | None = None,
        on_change: OnChange = "fail",
        progress_every_s: float = 10.0,
        ui_url: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - those of Airflow
    ) -> None:
        super().__init__(**kwargs)
        if spark is not None and spark_conn_id is not None:
            raise AirflowException("give spark= or spark_conn_id=, not both")
        self.workspace = workspace
        self.job = job
        self.arguments = arguments or {}
        self.spark = spark
        self.spark_conn_id = spark_conn_id
        self.open_options = open_options or {}
        self.on_change = on_change
        self.progress_every_s = progress_every_s
        self.ui_url = ui_url
        self._is_killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job; Airflow calls this."""
        progress = ProgressLog(self.log.info, self.progress_every_s)

        def begins(page: str) -> None:
            self._check_wanted()
            progress.on_page(page)

        try:
            report = self._scheduled().run(progress, begins)
        except MillraceError as error:
            self._leave_report(context, progress)
            if retry_helps(error, progress.report):
                raise AirflowException(str(error)) from error
            raise AirflowFailException(str(error)) from error
        except (KeyboardInterrupt, SystemExit) as signal:
            # The signal that ends the task: the run has ended in order before.
            self._leave_report(context, progress)
            raise AirflowException(_interrupted(progress.report)) from signal
        if report.state != "finished":
            self._leave_report(context, progress)
            kind = AirflowException if retry_helps(None, report) else AirflowFailException
            raise kind(reason_of(report))
        return outcome_of(report, progress.page)

    def on_kill(self) -> None:
        """Ask the run not to begin; one that has begun hears of signals by itself."""
        self._is_killed = True

    def _scheduled(self) -> ScheduledJob:
        spark = self.spark
        if self.spark_conn_id is not None:
            spark = spark_of(BaseHook.get_connection(self.spark_conn_id))
        return ScheduledJob(
            workspace=self.workspace,
            builder=self.job,
            arguments=self.arguments,
            spark=spark,
            options=self.open_options,
            on_change=self.on_change,
            ui_url=self.ui_url,
        )

    def _check_wanted(self) -> None:
        if self._is_killed:
            raise AirflowException(_interrupted(None))

    def _leave_report(self, context: Context, progress: ProgressLog) -> None:
        if progress.report is not None:
            outcome = outcome_of(progress.report, progress.page)
            context["ti"].xcom_push(key=REPORT_KEY, value=outcome)


def _interrupted(report: JobReport | None) -> str:
    began = "before the job began" if report is None else reason_of(report)
    return f"the task was stopped: {began}"
