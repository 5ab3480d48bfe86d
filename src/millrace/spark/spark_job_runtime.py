"""Spark as runs of jobs see it: workers are tasks, sources are DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import SavedSource
from millrace.pipeline.run.job_runtime import RunContext, SourceChange
from millrace.pipeline.run.worker_orders import WorkerGroup, WorkerOrder
from millrace.spark.frames import source_intake
from millrace.spark.frames.source_intake import Changed, IntakeContext
from millrace.spark.job_workers import SparkWorkerPool, has_profiles
from millrace.spark.session import slots
from millrace.spark.session_settings import check_job_settings, time_zone
from millrace.spark.shipping.function_shipping import check_job_shippable


class SparkIntake:
    """Saves the rows of DataFrames, datasets and files by Spark tasks."""

    def reader(self, context: RunContext, source: SavedSource) -> source_intake.SourceReader:
        """A reader of one source."""
        intake = IntakeContext(
            broker=context.broker,
            where=context.where,
            history=context.history,
            lease=context.lease,
            config=context.config,
            check=context.check,
        )
        return source_intake.SourceReader(intake, source)

    def refusal(self, job: str, changed: Sequence[SourceChange]) -> str:
        """The text for a user who must choose."""
        return source_intake.refusal(job, cast("Sequence[Changed]", changed))


class SparkJobRuntime:
    """Runs the workers of a job as Spark tasks."""

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._config = spark, config
        self.intake = SparkIntake()

    @property
    def time_zone(self) -> str:
        """The session's time zone."""
        return time_zone(self._spark, self._config)

    @property
    def gives_resources(self) -> bool:
        """Whether tasks can ask for resources; on a local Spark all share the machine."""
        return has_profiles(self._spark, self._config)

    def check(self, hops: Sequence[Hop]) -> None:
        """Raise if the job's functions or the settings of the session do not fit."""
        check_job_shippable(hops)
        check_job_settings(self._spark, self._config)

    def slots(self) -> int:
        """How many tasks can run at once."""
        return slots(self._spark, self._config)

    def start_workers(
        self, order: WorkerOrder, groups: Sequence[WorkerGroup], deaths: Callable[[], int]
    ) -> SparkWorkerPool:
        """Start workers. `deaths` counts the calls that are known to have ended a worker."""
        return SparkWorkerPool(self._spark, order, groups, self._config, deaths=deaths)
