"""Starts a query on a Spark session: checks it, saves its DataFrames, and runs its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from textwrap import indent

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.engine.run_values import RunMoment
from millrace.execute.explain_query import forecast_reuse, operator_lines
from millrace.execute.map_task import Reuse
from millrace.execute.query_run import QueryRun, check_inputs, moment_of_now
from millrace.execute.results.early_rows import EarlyRows
from millrace.execute.results.written_stage import WrittenStage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_tasks import stages_of
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import spark_works
from millrace.plan.planner.stages import Stage
from millrace.spark.frames.query_frames import QueryFrames, sketch_frames
from millrace.spark.session_settings import check_mode, session_mode, time_zone
from millrace.spark.shipping.function_shipping import check_function_settings, check_shippable
from millrace.spark.spark_tasks import SparkTaskRunner
from millrace.sql.sql_mode import DEFAULT, SqlMode, in_mode

ShowStages = Callable[[Sequence[Stage], Mapping[int, str], Mapping[int, Sequence[str]]], str]
"""Shows stages, with a remark and measures for some of them."""


def run_query(
    spark: SparkSession,
    workspace: ShuffleWorkspace,
    plan: Node,
    *,
    reuse: Reuse = True,
    profile: bool = False,
    moment: RunMoment | None = None,
    writes: WrittenStage | None = None,
) -> QueryRun:
    """Run a plan stage by stage; the answer's rows and reports are then read from the run.

    With `profile`, tasks measure the operators of their queries. `moment` is the time of the run
    that this one is a part of. With `writes`, the last stage writes its rows.
    """
    moment = moment or moment_of_now()
    run, mode = _prepared(
        spark, workspace, plan, reuse=reuse, profile=profile, moment=moment, writes=writes
    )
    with in_mode(mode):
        run.finish()
    return run


def early_rows(
    spark: SparkSession, workspace: ShuffleWorkspace, plan: Node
) -> Iterator[pa.RecordBatch]:
    """The rows of a plan, the first ones while the query still runs. It returns with the first."""
    early = EarlyRows(workspace)
    run, mode = _prepared(spark, workspace, plan, moment=moment_of_now(), early=early)
    with in_mode(mode):
        rows = early.read(run)
        first = list(islice(rows, 1))
    return chain(first, rows)


def _prepared(
    spark: SparkSession,
    workspace: ShuffleWorkspace,
    plan: Node,
    *,
    reuse: Reuse = True,
    profile: bool = False,
    moment: RunMoment,
    early: EarlyRows | None = None,
    writes: WrittenStage | None = None,
) -> tuple[QueryRun, SqlMode]:
    """A query that was checked, its DataFrames saved, and the mode that it runs in."""
    config = workspace.config
    check_inputs(workspace, plan)
    check_shippable(plan)
    mode = session_mode(spark, config)
    check_mode(plan, mode)
    check_function_settings(spark, config, plan)
    zone = time_zone(spark, config)
    run_input = partial(run_query, spark, workspace, reuse=reuse, profile=profile, moment=moment)
    with in_mode(mode):
        frames = QueryFrames(spark, workspace, plan, reuse, run_input, moment)
        run = QueryRun(
            SparkTaskRunner(spark, config),
            workspace,
            frames,
            zone=zone,
            reuse=reuse,
            profile=profile,
            moment=moment,
            early=early,
            writes=writes,
        )
    return run, mode


def explain_query(
    spark: SparkSession | None,
    workspace: ShuffleWorkspace | None,
    plan: Node,
    config: Config,
    show: ShowStages,
) -> str:
    """The stages of a plan, and for each which of its tasks would be reused, if that is known."""
    rows, saved_frames = sketch_frames(plan, config, workspace)
    zone = "UTC" if spark is None else time_zone(spark, config)
    moment = moment_of_now()
    with in_mode(DEFAULT if spark is None else session_mode(spark, config)):
        stages = stages_of(rows, config, zone, moment)
    remarks: Mapping[int, str] = {}
    if spark is not None and workspace is not None:
        remarks = forecast_reuse(workspace, stages, zone, moment, saved_frames)
    inputs = _explain_inputs(
        plan, lambda child: explain_query(spark, workspace, child, config, show)
    )
    return show(stages, remarks, {}) + inputs


def analyze_query(
    spark: SparkSession, workspace: ShuffleWorkspace, plan: Node, show: ShowStages
) -> str:
    """The stages of a plan that was run: tasks, rows, bytes and seconds, for each operator too."""
    run = run_query(spark, workspace, plan, profile=True)
    inputs = _explain_inputs(plan, lambda child: analyze_query(spark, workspace, child, show))
    reports = run.report.stages[-len(run.stages) :]
    reused = {stage.number: done.reused for stage, done in zip(run.stages, reports, strict=True)}
    return show(run.stages, run.measures, operator_lines(run.operators, reused)) + inputs


def _explain_inputs(plan: Node, explained: Callable[[Node], str]) -> str:
    """The inputs of what Spark computes, each as a query of its own."""
    lines = [
        f"\n{name} of Spark {number}\n{indent(explained(child), '  ')}"
        for number, work in enumerate(spark_works(plan))
        for name, child in work.inputs
    ]
    return "".join(lines)
