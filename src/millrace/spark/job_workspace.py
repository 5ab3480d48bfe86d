"""The workspace of a job: columns of DataFrames and journals, runs and status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.journal.api import broker_of
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.define.job import Job, Until, graph_of
from millrace.pipeline.letters.letter_retries import retry_dead_letters
from millrace.pipeline.report.job_estimate import JobEstimate
from millrace.pipeline.report.job_report import JobReport
from millrace.pipeline.report.run_observer import RunObserver
from millrace.pipeline.run.explain_progress import explain_progress
from millrace.pipeline.run.job_runtime import JobHome
from millrace.pipeline.run.job_status import JobStatus, estimate_job, job_status
from millrace.pipeline.run.reset import reset_step, sink_access
from millrace.pipeline.run.run_start import recall_kept
from millrace.spark.frames.query_frames import frame_scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkJobHome(JobHome, Protocol):
    """The workspace of jobs that run on Spark."""

    @property
    def spark(self) -> SparkSession:
        """The session that runs tasks."""


class WorkspaceOfJobs:
    """The operations of a workspace that its jobs use."""

    def __init__(self, workspace: SparkJobHome) -> None:
        self.workspace = workspace
        self.config = workspace.config

    def frame_schema(self, given: object) -> pa.Schema | None:
        """Columns of a Spark DataFrame; None if the value is not a DataFrame."""
        from pyspark.sql import DataFrame as SparkFrame  # noqa: PLC0415 - not for files and datasets

        if not isinstance(given, SparkFrame):
            return None
        return frame_scan(given, None, self.config).whole

    def journals(self, prefix: str) -> Mapping[str, pa.Schema]:
        """The journals under a prefix, and their columns."""
        return {info.name: info.schema for info in self.workspace.journals.list(prefix)}

    def explain(self, job: Job) -> str:
        """The hops of a job as text, with their progress."""
        broker, graph = broker_of(self.workspace.journals), graph_of(job)
        recall_kept(broker, graph)
        return explain_progress(broker, graph.record())

    def run(
        self,
        job: Job,
        *,
        until: Until,
        on_change: OnChange,
        observer: RunObserver | None = None,
        wait: bool = True,
    ) -> JobReport:
        """Run a job on Spark."""
        from millrace.pipeline.run.batch_polling import (  # noqa: PLC0415 - describing needs none
            run_and_wait,
        )
        from millrace.spark.spark_job_runtime import SparkJobRuntime  # noqa: PLC0415 - nor a runner

        def runtime() -> SparkJobRuntime:
            return SparkJobRuntime(self.workspace.spark, self.config)

        return run_and_wait(
            self.workspace,
            job,
            runtime,
            until=until,
            on_change=on_change,
            observer=observer,
            wait=wait,
        )

    def estimate(self, job: Job) -> JobEstimate:
        """Run a job whose calls are limited, and estimate the rest."""
        report = self.run(job, until="caught_up", on_change="fail")
        broker, hops_made = broker_of(self.workspace.journals), graph_of(job).hops
        return estimate_job(broker, report, hops_made)

    def status(self, job: Job) -> JobStatus:
        """How far a job is."""
        return job_status(broker_of(self.workspace.journals), job.name)

    def retry_dead_letters(
        self, job: Job, step: str | None, error_class: str | None
    ) -> dict[str, int]:
        """Give dead letters back to their steps."""
        return retry_dead_letters(broker_of(self.workspace.journals), job.name, step, error_class)

    def reset(self, job: Job, step: str, *, append_again: bool) -> tuple[str, ...]:
        """Set a step back, and the steps that depend on it."""
        return reset_step(
            broker_of(self.workspace.journals),
            job.name,
            step,
            sink_access(graph_of(job)),
            append_again=append_again,
        )

    def step_frame(self, job: str, step: str) -> DataFrame:
        """The saved rows of a step as a Spark DataFrame."""
        from millrace.spark.source import register  # noqa: PLC0415 - describing needs no Spark

        spark = self.workspace.spark
        register(spark)
        source = spark.read.format("millrace").option("job", job).option("step", step)
        return source.load(self.workspace.path)
