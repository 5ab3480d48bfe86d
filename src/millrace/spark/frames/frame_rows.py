"""Runs a DataFrame once, and has its tasks write their rows to durable files."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from millrace.config import Config
from millrace.execute import map_task
from millrace.execute.durable_rows import MapOutputs, RowDestination
from millrace.execute.map_task import MapStage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_runner import Watch
from millrace.execute.tasks import task_results
from millrace.execute.tasks.task_results import Result
from millrace.spark.spark_tasks import collect, this_task


def write_frame(
    frame: DataFrame, destination: RowDestination, config: Config, *, title: str, watch: Watch
) -> pa.Table:
    """Run a DataFrame; each of its partitions is a task. Returns what the tasks report.

    Tasks see the columns as c0, c1, ...: Spark does not hand over names with dots or backticks.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield destination.write(this_task(), batches)

    def rows() -> DataFrame:
        plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        return plain.mapInArrow(
            write, from_arrow_schema(destination.report, prefer_timestamp_ntz=True)
        )

    return collect(rows, frame.sparkSession, config, title=title, watch=watch)


def write_map_outputs(
    workspace: ShuffleWorkspace, stage: MapStage, frame: DataFrame, *, title: str, watch: Watch
) -> list[Result]:
    """Write a DataFrame as the map outputs of a stage: at least one, if an empty one."""
    table = write_frame(frame, MapOutputs(stage), workspace.config, title=title, watch=watch)
    results = task_results.finished_results(table) or [
        map_task.write_nothing(stage, workspace.store)
    ]
    return sorted(results, key=lambda result: result.map_task)
