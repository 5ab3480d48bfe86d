"""Starts a query on a Spark session: checks it, saves its DataFrames, and runs its stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from textwrap import indent

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.execute.explain_query import forecast_reuse
from millrace.execute.map_task import Reuse
from millrace.execute.query_run import QueryRun, check_inputs, stages_of
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import spark_works
from millrace.plan.planner.stages import explain
from millrace.spark.frames.query_frames import QueryFrames, sketch_frames
from millrace.spark.function_shipping import check_function_settings, check_shippable
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
    check_function_settings(spark, config, plan)
    zone = time_zone(spark, config)
    run_input = partial(run_query, spark, workspace, reuse=reuse)
    frames = QueryFrames(spark, workspace, plan, reuse, run_input)
    run = QueryRun(SparkTaskRunner(spark, config), workspace, frames, zone=zone, reuse=reuse)
    run.finish()
    return run


def explain_query(plan: Node, config: Config) -> str:
    """The stages of a plan, as text."""
    rows, _ = sketch_frames(plan, config, None)
    inputs = _explain_inputs(plan, partial(explain_query, config=config))
    return explain(stages_of(rows, config)) + inputs


def explain_with_reuse(spark: SparkSession, workspace: ShuffleWorkspace, plan: Node) -> str:
    """The stages of a plan, as text, and for each which of its tasks would be reused."""
    config = workspace.config
    rows, saved_frames = sketch_frames(plan, config, workspace)
    stages = stages_of(rows, config)
    zone = time_zone(spark, config)
    inputs = _explain_inputs(plan, partial(explain_with_reuse, spark, workspace))
    return explain(stages, forecast_reuse(workspace, stages, zone, saved_frames)) + inputs


def _explain_inputs(plan: Node, explained: Callable[[Node], str]) -> str:
    """The inputs of what Spark computes, each as a query of its own."""
    lines = [
        f"\n{name} of Spark {number}\n{indent(explained(child), '  ')}"
        for number, work in enumerate(spark_works(plan))
        for name, child in work.inputs
    ]
    return "".join(lines)
