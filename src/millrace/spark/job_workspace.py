"""What a job asks of its workspace: columns of DataFrames and journals, a run, its status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.journal.api import Journals, broker_of
from millrace.pipeline.core.hops import runs_journal
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.define.explain_job import StepProgress, explain
from millrace.pipeline.define.job import Job, Until
from millrace.pipeline.define.job_changes import compare
from millrace.pipeline.define.job_recording import records_of, set_back
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import JobStatus, job_status
from millrace.pipeline.run.reset import reset_step
from millrace.spark.frames.query_frames import frame_scan
from millrace.transport.owner.owner_endpoint import JournalAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HasJournals(Protocol):
    """A workspace, as far as jobs need it."""

    config: Config

    @property
    def path(self) -> str:
        """Its folder."""

    @property
    def journals(self) -> Journals:
        """Its journals."""

    @property
    def spark(self) -> SparkSession:
        """The session that runs tasks."""

    def journal_address(self) -> JournalAddress:
        """How tasks reach its journals."""


class WorkspaceOfJobs:
    """A workspace as its jobs see it."""

    def __init__(self, workspace: HasJournals) -> None:
        self.workspace = workspace
        self.config = workspace.config

    def frame_schema(self, given: object) -> pa.Schema | None:
        """Columns of a Spark DataFrame; None if it is none."""
        from pyspark.sql import DataFrame  # noqa: PLC0415 - only for what is no file or dataset

        if not isinstance(given, DataFrame):
            return None
        return frame_scan(given, None, self.config).whole

    def journals(self, prefix: str) -> Mapping[str, pa.Schema]:
        """The journals under a prefix, and their columns."""
        return {info.name: info.schema for info in self.workspace.journals.list(prefix)}

    def explain(self, job: Job) -> str:
        """What a job would do, and what of it is done."""
        broker = broker_of(self.workspace.journals)
        done = changes = None
        if broker.list(runs_journal(job.name)):
            history = RunHistory.open(broker, job.name)
            since = set_back(history.events)
            changes = compare(records_of(history.events), job.record(), since=since)
            done = {
                step.name: StepProgress(rows=step.rows_in, backlog=step.backlog, calls=step.calls)
                for step in job_status(broker, job.name).steps
            }
            for node in job.nodes:
                if taken := history.taken_in(node.name):
                    done[node.name] = StepProgress(
                        rows=sum(event.detail["rows"] for event in taken)
                    )
        return explain(job.record(), done=done, changes=changes)

    def run(self, job: Job, *, until: Until, on_change: OnChange) -> JobReport:
        """Run a job on Spark."""
        from millrace.spark.job_run import run_job  # noqa: PLC0415 - describing needs no runner

        return run_job(self.workspace, job, until=until, on_change=on_change)

    def status(self, job: Job) -> JobStatus:
        """How far a job is."""
        return job_status(broker_of(self.workspace.journals), job.name)

    def reset(self, job: Job, step: str, *, again: bool) -> tuple[str, ...]:
        """Set a step back, and what depends on it."""
        return reset_step(broker_of(self.workspace.journals), job.name, step, again=again)
