"""Starts a query on a Spark session: checks it, saves its DataFrames, and runs its stages."""

from __future__ import annotations

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.execute.explain_query import forecast_reuse
from millrace.execute.map_task import Reuse
from millrace.execute.query_run import QueryRun, check_inputs, stages_of
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.plan.nodes.node import Node
from millrace.plan.planner.stages import Stage
from millrace.spark.frames.query_frames import QueryFrames, sketch_frames
from millrace.spark.function_shipping import check_shippable
from millrace.spark.session_settings import check_settings, time_zone
from millrace.spark.spark_tasks import SparkTaskRunner


def run_query(
    spark: SparkSession, workspace: ShuffleWorkspace, plan: Node, *, reuse: Reuse = True
) -> QueryRun:
    """Run a plan stage by stage; the answer's rows and reports are then read from the run."""
    config = workspace.config
    check_inputs(workspace, plan)
    check_shippable(plan)
    check_settings(spark, config)
    zone = time_zone(spark, config)
    frames = QueryFrames(workspace, plan, reuse)
    run = QueryRun(SparkTaskRunner(spark, config), workspace, frames, zone=zone, reuse=reuse)
    run.finish()
    return run


def explain_query(
    spark: SparkSession | None, workspace: ShuffleWorkspace | None, plan: Node, config: Config
) -> tuple[list[Stage], dict[int, str]]:
    """The stages of a plan, and for each which of its tasks would be reused, if that is known."""
    rows, saved_frames = sketch_frames(plan, config, workspace)
    stages = stages_of(rows, config)
    if spark is None or workspace is None:
        return stages, {}
    return stages, forecast_reuse(workspace, stages, time_zone(spark, config), saved_frames)


def analyze_query(
    spark: SparkSession, workspace: ShuffleWorkspace, plan: Node
) -> tuple[list[Stage], dict[int, str]]:
    """The stages of a plan that was run, and for each its tasks, rows, bytes and seconds."""
    run = run_query(spark, workspace, plan)
    return run.stages, run.measures
