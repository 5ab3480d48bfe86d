"""Starts a query on a Spark session: checks it, saves its DataFrames, and runs its stages."""

from __future__ import annotations

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.execute.explain_query import forecast_reuse
from millrace.execute.map_task import Reuse
from millrace.execute.query_run import QueryRun, check_inputs, stages_of
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.plan.nodes.node import Node
from millrace.plan.planner.stages import explain
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


def explain_query(plan: Node, config: Config) -> str:
    """The stages of a plan, as text."""
    rows, _ = sketch_frames(plan, config, None)
    return explain(stages_of(rows, config))


def explain_with_reuse(spark: SparkSession, workspace: ShuffleWorkspace, plan: Node) -> str:
    """The stages of a plan, as text, and for each which of its tasks would be reused."""
    config = workspace.config
    rows, saved_frames = sketch_frames(plan, config, workspace)
    stages = stages_of(rows, config)
    zone = time_zone(spark, config)
    return explain(stages, forecast_reuse(workspace, stages, zone, saved_frames))
