"""Runs a dataset's plan: cuts it into stages and runs each, reusing what is finished.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.plan.exchanges import Sizes
from millrace.plan.nodes import Node, Scan, leaves
from millrace.plan.stages import Stage, explain, plan_stages
from millrace.scan.source import check_current
from millrace.shuffle import runs
from millrace.shuffle.handle import RunReport, Shuffle
from millrace.spark.map_task import Reuse
from millrace.spark.shuffle_job import begin_run
from millrace.spark.stage_job import Place, run_stage
from millrace.spark.stage_plan import Asked, lies_right_already, plan_stage


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query, at rest, and what each stage did."""

    rows: Shuffle
    reports: tuple[RunReport, ...]


def stages_of(plan: Node, config: Config) -> list[Stage]:
    """The stages that a plan is run in."""
    sizes = Sizes(
        one_task_bytes_max=config.one_task_bytes_max,
        broadcast_bytes_max=config.broadcast_bytes_max,
        partition_bytes_target=config.partition_bytes_target,
        partitions_max=config.partitions_max,
    )
    return plan_stages(plan, sizes)


def explain_query(plan: Node, config: Config) -> str:
    """The stages of a plan, as text."""
    return explain(stages_of(plan, config))


def run_query(spark: SparkSession, place: Place, plan: Node, *, reuse: Reuse = "yes") -> Answer:
    """Run a plan stage by stage."""
    for leaf in leaves(plan):
        if isinstance(leaf, Scan):
            check_current(leaf.source)
    stages = stages_of(plan, place.config)
    run = begin_run(spark, place, explain(stages), {"stages": len(stages)})
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    done: dict[int, Shuffle] = {}
    with runs.heartbeat(place.store, run.query_id, place.config):
        for stage in stages:
            before = lies_right_already(stage, done, place.config)
            if before is not None:
                done[stage.number] = before
                continue
            asked = Asked(query_id=run.query_id, zone=zone, reuse=reuse)
            work = plan_stage(place, asked, stage, done)
            done[stage.number] = run_stage(spark, place, work)
    return Answer(done[stages[-1].number], tuple(done[s.number].report for s in stages))
