"""Runs datasets of a workspace on its Spark, which is started when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.config import Config
from millrace.dataset import ParquetWritten
from millrace.plan.nodes.node import Node
from millrace.shuffle.handle import StageReport
from millrace.sql.text_limits import limits_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.spark.stage_job import ShuffleWorkspace


class DatasetRunner:
    """What a dataset asks to be done.

    `spark` starts a session if there is none, `started` gives the one that is there. `place` makes
    the workspace if there is none, `known_place` gives the one that is there.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        started: Callable[[], SparkSession | None],
        place: Callable[[], ShuffleWorkspace],
        known_place: Callable[[], ShuffleWorkspace | None],
        config: Config,
    ) -> None:
        self._spark = spark
        self._started = started
        self._place = place
        self._known_place = known_place
        self.config = config

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], tuple[StageReport, ...]]:
        """The rows of a plan, and what each stage did."""
        from millrace.spark.query_job import run_query  # noqa: PLC0415 - describing needs no Spark

        with limits_of(self.config):
            run = run_query(self._spark(), self._place(), plan)
        return run.batches(), run.reports

    def explain(self, plan: Node) -> str:
        """The stages of a plan, as text; with Spark at hand, what of them would be reused."""
        from millrace.spark.query_job import Known, explain_query  # noqa: PLC0415 - as above

        session = self._started()  # Not started for this.
        place = None if session is None else self._known_place()
        known = None if session is None or place is None else Known(session, place)
        with limits_of(self.config):
            return explain_query(plan, self.config, known)

    def frame(self, plan: Node) -> DataFrame:
        """The rows of a plan as a Spark DataFrame."""
        from millrace.spark.query_results import to_spark  # noqa: PLC0415 - as above

        with limits_of(self.config):
            return to_spark(self._spark(), self._place(), plan)

    def write_parquet(
        self, plan: Node, path: str | os.PathLike[str], mode: str, compression: str
    ) -> ParquetWritten:
        """Write the rows of a plan as Parquet files."""
        from millrace.spark.query_results import write_parquet  # noqa: PLC0415 - as above

        place = self._place()
        with limits_of(self.config):
            return write_parquet(
                self._spark(), place, plan, path=path, mode=mode, compression=compression
            )

    def show(self, rows: pa.Table, count: int, truncate: int) -> None:
        """Print rows as Spark does."""
        from millrace.spark.saved_frames import of_table  # noqa: PLC0415 - as above
        from millrace.spark.spark_presence import call_spark  # noqa: PLC0415 - as above

        spark = self._spark()
        call_spark(spark, self.config, lambda: of_table(spark, rows).show(count, truncate))
