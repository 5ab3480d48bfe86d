"""Shuffles of files and DataFrames on a Spark session."""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.errors import UserError
from millrace.execute.shuffle_requests import (
    FileOptions,
    ShuffleArguments,
    check_keys,
    check_reuse,
    make_partitioner,
    needs_bounds,
    shuffle_paths,
)
from millrace.execute.shuffle_run import ShuffleRequest, begin_run, map_stage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_progress import print_summary
from millrace.execute.stage_run import publish
from millrace.identity.schemas import check_names, plain_schema
from millrace.keys import sample_bounds
from millrace.scan.input_files import Paths
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import StageReport
from millrace.spark.frames.frame_rows import write_map_outputs
from millrace.spark.spark_presence import call_spark
from millrace.spark.spark_tasks import SparkTaskRunner


def shuffle(
    spark: SparkSession,
    workspace: ShuffleWorkspace,
    source: Paths | DataFrame,
    arguments: ShuffleArguments,
    files: FileOptions,
) -> Shuffle:
    """Check the arguments and run the shuffle."""
    check_reuse(arguments.reuse)
    if not isinstance(source, DataFrame):
        runner = SparkTaskRunner(spark, workspace.config)
        return shuffle_paths(runner, workspace, source, arguments, files)
    if files.given():
        raise UserError(
            f"{files.given()[0]}= is for files\n  found: a DataFrame as source\n"
            "  to fix: leave it out"
        )
    return _shuffle_frame(spark, workspace, source, arguments)


def _shuffle_frame(
    spark: SparkSession,
    workspace: ShuffleWorkspace,
    frame: DataFrame,
    arguments: ShuffleArguments,
) -> Shuffle:
    is_counted = hasattr(arguments.partitioner, "ids")
    if arguments.partitions is None and arguments.bounds is None and not is_counted:
        raise UserError(
            "partitions= is missing\n  to fix: give it; a DataFrame's size is not known"
        )
    config = workspace.config
    nothing = call_spark(spark, config, lambda: frame.limit(0).toArrow())
    schema = plain_schema(nothing.schema)
    if needs_bounds(arguments):
        check_keys(arguments, schema)
        keys, most = arguments.key_list(), config.sample_rows_max
        rows = call_spark(spark, config, lambda: frame.select(*keys).limit(most).toArrow())
        count = 1 if arguments.partitions is None else arguments.partitions
        arguments = replace(arguments, bounds=sample_bounds(rows, keys, count))
    by = make_partitioner(arguments)
    check_names(schema)
    by.check(schema)
    columns = call_spark(spark, config, lambda: str(frame.schema.simpleString()))
    plan = f"scan DataFrame {columns}\nexchange {by.describe()}"
    return _run(spark, workspace, frame, schema, ShuffleRequest(partitioner=by, plan=plan))


def _run(
    spark: SparkSession,
    workspace: ShuffleWorkspace,
    frame: DataFrame,
    schema: pa.Schema,
    request: ShuffleRequest,
) -> Shuffle:
    """Each partition of the DataFrame is a map task, and none can be reused."""
    started = time.monotonic()
    runner = SparkTaskRunner(spark, workspace.config)
    about = {"map_tasks": None, **request.about()}
    run = begin_run(workspace.store, runner.about(), request.plan, about)
    with runs.heartbeat(workspace.store, run.query_id, workspace.config) as heart:
        stage = map_stage(workspace, run.query_id, schema, request)
        title = f"shuffle {run.query_id} of a DataFrame"
        results = write_map_outputs(workspace, stage, frame, title=title, watch=heart.check)
        report = StageReport(
            map_tasks=len(results),
            seconds=time.monotonic() - started,
            reasons={r.map_task: "rows of a DataFrame cannot be recognised" for r in results},
        )
        made = publish(workspace, stage, results, report, choices=request.choices)
    print_summary(made)
    return made
