"""Runs a dataset's plan: cuts it into stages and runs each, reusing what is finished.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import DataLost
from millrace.execute.lost_outputs import LOSSES, Lost, OutputsLost, Repairs, find_lost, report
from millrace.execute.stage_scheduler import ReadyStage, Stop, run_all
from millrace.faults import fault
from millrace.identity.fingerprint import fingerprint
from millrace.ids import QueryId, StageId
from millrace.plan.nodes.node import Node, Scan, leaves
from millrace.plan.planner.adapting import Course
from millrace.plan.planner.exchanges import ASKED_FOR, Sizes
from millrace.plan.planner.stages import Stage, explain, plan_stages
from millrace.scan.group_estimate import rows_per_group
from millrace.scan.source import FileSource, check_current
from millrace.shuffle import arrow_inputs, runs
from millrace.shuffle.handle import Shuffle, StageReport
from millrace.spark.finished_work import foresee_stages
from millrace.spark.frame_intake import Frames, sketch_frames
from millrace.spark.function_shipping import check_shippable
from millrace.spark.map_task import Reuse
from millrace.spark.session_settings import check_settings, time_zone
from millrace.spark.shuffle_job import begin_run
from millrace.spark.stage_job import ShuffleWorkspace, StageRun, run_stage
from millrace.spark.stage_tasks import QueryOptions, course_of, lies_right_already, plan_stage

Used = TypeVar("Used")


def stages_of(plan: Node, config: Config) -> list[Stage]:
    """The stages that a plan is run in."""
    sizes = Sizes(
        one_task_bytes_max=config.one_task_bytes_max,
        broadcast_bytes_max=config.broadcast_bytes_max,
        partition_bytes_target=config.partition_bytes_target,
        partitions_max=config.partitions_max,
        many_to_a_group=partial(_many_to_a_group, config),
    )
    return plan_stages(plan, sizes)


def _many_to_a_group(config: Config, source: FileSource, keys: tuple[str, ...]) -> bool:
    found = rows_per_group(source, keys, config.split_bytes_target)
    return found is None or found >= config.rows_per_group_min


def explain_query(plan: Node, config: Config, known: Known | None = None) -> str:
    """The stages of a plan, as text; with `known`, what of each would be reused."""
    rows, taken_in = sketch_frames(plan, config, None if known is None else known.place)
    stages = stages_of(rows, config)
    if known is None:
        return explain(stages)
    zone, as_they_are = time_zone(known.spark, config), asked_for(stages)
    said = foresee_stages(known.place, stages, zone, as_they_are, taken_in)
    return explain(stages, said)


@dataclass(frozen=True, slots=True)
class Known:
    """What has to be known to tell what would be reused."""

    spark: SparkSession
    place: ShuffleWorkspace


def asked_for(stages: Sequence[Stage]) -> frozenset[int]:
    """Stages whose partitions are the user's own choice."""
    return frozenset(stage.number for stage in stages if stage.why == ASKED_FOR)


class QueryRun:
    """A plan on its way to an answer. What is lost on the way, or while it is read, is made again.

    Each round is a run of the workspace of its own; what an earlier round finished is reused.
    """

    def __init__(
        self, spark: SparkSession, place: ShuffleWorkspace, plan: Node, *, reuse: Reuse = "yes"
    ) -> None:
        for leaf in leaves(plan):
            if isinstance(leaf, Scan):
                arrow_inputs.note_use(
                    place.store, (shape.file.path for shape in leaf.source.shapes)
                )
                check_current(leaf.source)
        check_shippable(plan)
        check_settings(spark, place.config)
        self._spark, self._place, self._reuse = spark, place, reuse
        self._zone = time_zone(spark, place.config)
        self._frames = Frames(place, plan, reuse)
        self._stages = stages_of(self._frames.plan, place.config)
        limits = place.config
        self._repairs = Repairs(limits.query_repairs_max, limits.task_repairs_max)
        self._rounds: dict[int, list[StageRun]] = {stage.number: [] for stage in self._stages}
        self._done: dict[int, Shuffle] = {}

    def finish(self) -> Shuffle:
        """Run all stages, again and again as long as what is lost can be made again."""
        while True:
            try:
                return self._round()
            except OutputsLost as error:
                self._note(error.lost)
                fault("dataset.driver.before_repair")

    @property
    def reports(self) -> tuple[StageReport, ...]:
        """For each DataFrame and stage what ran and what was reused, over all rounds."""
        return self._frames.reports + tuple(
            report([work.so_far() for work in rounds], len(rounds[-1].tasks) if rounds else 0)
            for rounds in self._rounds.values()
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the answer.

        What is lost is made again. Reading then goes on behind the rows that were handed out, or
        fails if those would be others now.
        """
        handed_out: list[str] = []
        lost: Sequence[Lost] = ()
        while True:
            answer = self._done[self._stages[-1].number]
            contents = [choice.content for choice in answer.manifest.chosen]
            if contents[: len(handed_out)] != handed_out:
                raise DataLost(
                    f"rows of the answer were lost while it was read: {lost[0].first_line}\n"
                    "  found: made again, rows that were handed out already come out different\n"
                    "  to fix: ask again, or use functions that give the same rows each time"
                )
            try:
                for number, rows in answer.outputs(0, len(handed_out)):
                    yield from rows
                    handed_out = contents[: number + 1]
            except LOSSES:
                lost = find_lost(answer, [0])
                if not lost:
                    raise
                self._note(lost)
                self.finish()
            else:
                return

    @property
    def answer(self) -> Shuffle:
        """What the last stage wrote."""
        return self._done[self._stages[-1].number]

    def with_answer(self, use: Callable[[Shuffle], Used]) -> Used:
        """What `use` makes of the answer. If it finds outputs lost, they are made again first."""
        while True:
            answer = self.answer
            try:
                return use(answer)
            except LOSSES:
                lost = find_lost(answer, range(answer.partitions))
                if not lost:
                    raise
                self._note(lost)
                self.finish()

    def _note(self, lost: Sequence[Lost]) -> None:
        self._repairs.on_lost(lost, {n: done.manifest for n, done in self._done.items()})
        self._frames.take_in_again(lost)

    def _round(self) -> Shuffle:
        place, stages = self._place, self._stages
        run = begin_run(self._spark, place, explain(stages), {"stages": len(stages)})
        self._done = self._frames.done
        course = course_of(stages, place.config)
        self._frames.rely(run.query_id, StageId(len(stages)))
        with runs.heartbeat(place.store, run.query_id, place.config) as heart:
            run_all(
                course.waits(),
                lambda number: self._next(run.query_id, course, number, heart),
                at_once_max=place.config.stages_at_once_max,
            )
        return self._done[stages[-1].number]

    def _next(
        self, query_id: QueryId, course: Course, number: int, heart: runs.Heart
    ) -> ReadyStage:
        measured = {n: sum(done.manifest.partition_bytes) for n, done in self._done.items()}
        stage = course.stage(number, measured)
        if stage is None:
            return ReadyStage(number, frozenset(), lambda _: None)
        return self._job(query_id, stage, heart)

    def _job(self, query_id: QueryId, stage: Stage, heart: runs.Heart) -> ReadyStage:
        fault("dataset.driver.before_stage", stage.number)
        before = lies_right_already(stage, self._done, self._place.config)
        if before is not None:
            return ReadyStage(
                stage.number, frozenset(), partial(self._take_over, stage.number, before)
            )
        asked = QueryOptions(
            query_id=query_id,
            zone=self._zone,
            reuse=self._reuse,
            as_they_are=asked_for(self._stages),
        )
        try:
            work = plan_stage(self._place, asked, stage, self._done)
        except LOSSES as error:  # Rows that were looked at, to choose bounds for example.
            read = [self._done[number] for number in stage.reads]
            lost = [one for done in read for one in find_lost(done, range(done.partitions))]
            if not lost:
                raise
            raise OutputsLost(lost) from error
        doubts = self._repairs.of_stage(stage.number)
        work.tasks = [replace(t, suspect=doubts.get(t.map_task)) for t in work.tasks]
        self._rounds[stage.number].append(work)

        def run(stop: Stop) -> None:
            def check() -> None:
                stop.check()
                heart.check()

            self._done[stage.number] = run_stage(self._spark, self._place, work, check=check)
            fault("dataset.driver.after_stage", stage.number)

        made_from = [task.made_from for task in work.tasks if task.made_from is not None]
        return ReadyStage(stage.number, frozenset(map(fingerprint, made_from)), run)

    def _take_over(self, number: int, before: Shuffle, stop: Stop) -> None:
        """The stage before wrote what this one is to write."""
        del stop
        self._done[number] = before


def run_query(
    spark: SparkSession, place: ShuffleWorkspace, plan: Node, *, reuse: Reuse = "yes"
) -> QueryRun:
    """Run a plan stage by stage; the answer's rows and reports are then read from the run."""
    run = QueryRun(spark, place, plan, reuse=reuse)
    run.finish()
    return run
