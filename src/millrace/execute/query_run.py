"""Runs a query, from its plan to its answer. This file tells the whole story in order.

1. `plan/planner` cuts the plan into stages.
2. `stage_scheduler` says which stage is ready; `adaptive_stages` fits it to measured sizes.
3. `stage_tasks` decides the stage's tasks, and `task_shares` what each of them reads.
4. `stage_run` finds finished work, runs the rest and chooses the attempts that count.
   If a task needs too much memory, `memory_fit` says how it is planned again.
5. The last stage's shuffle is the answer. Outputs that are lost on the way are made again.

Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from millrace.engine.operator_profile import OperatorMeasure
from millrace.engine.run_values import RunMoment, lacks_day_of_run
from millrace.errors import DataLost, OutOfMemory, TaskFailed
from millrace.execute.lost_outputs import (
    LOSSES,
    Lost,
    OutputsLost,
    Repairs,
    find_lost,
    stage_report,
)
from millrace.execute.map_task import Reuse
from millrace.execute.memory_fit import (
    fitted,
    has_other_pieces,
    out_of_memory,
    retry_text,
    smaller_pieces,
)
from millrace.execute.results.early_rows import EarlyRows
from millrace.execute.results.written_stage import WrittenStage
from millrace.execute.shuffle_run import begin_run
from millrace.execute.shuffle_workspace import HostsAsked, ShuffleWorkspace
from millrace.execute.stage_progress import query_title
from millrace.execute.stage_run import run_stage
from millrace.execute.stage_scheduler import StageScheduler, Stop
from millrace.execute.stage_tasks import (
    QueryOptions,
    StageRun,
    course_of,
    input_in_order,
    plan_stage,
    stages_of,
)
from millrace.execute.task_runner import TaskRunner
from millrace.faults import fault
from millrace.ids import QueryId, StageId
from millrace.log_lines import log_ids
from millrace.metrics.traces import run_span
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.read_stage import leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.exchanges import ASKED_FOR
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import Stage
from millrace.scan.source import check_current
from millrace.shuffle import arrow_inputs, runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import QueryReport, StageReport
from millrace.text import counted, human_bytes

Used = TypeVar("Used")

_log = logging.getLogger(__name__)


class FrameRows(Protocol):
    """The DataFrames of a query, saved as shuffles."""

    @property
    def plan(self) -> Node:
        """The query's plan, which reads those shuffles."""

    @property
    def shuffles(self) -> dict[int, Shuffle]:
        """Each DataFrame's rows, by the number that the plan reads it under (below 0)."""

    @property
    def reports(self) -> tuple[StageReport, ...]:
        """For each DataFrame by its name, which rows were read and which were reused."""

    def rely(self, query_id: QueryId, stage_id: StageId) -> None:
        """Keep the shuffles from being removed as long as this run is there."""

    def save_again(self, lost: Sequence[Lost]) -> None:
        """Read every DataFrame again of which an output was lost."""


def check_inputs(workspace: ShuffleWorkspace, plan: Node) -> None:
    """Raise if input files changed since they were listed; note rows of `from_arrow` as used."""
    for leaf in leaves(plan):
        if isinstance(leaf, Scan):
            paths = (shape.file.path for shape in leaf.source.shapes)
            arrow_inputs.note_use(workspace.store, paths)
            check_current(leaf.source)


def moment_of_now() -> RunMoment:
    """The moment of a run that begins."""
    return RunMoment(micros=time.time_ns() // 1_000)


def partitioned_by_user(stages: Sequence[Stage]) -> frozenset[int]:
    """Stages whose partitions are the user's own choice."""
    return frozenset(stage.number for stage in stages if stage.why == ASKED_FOR)


class QueryRun:
    """A query on its way to an answer.

    Outputs that are lost, while it runs or while the answer is read, are made again. Each round is
    a run of the workspace of its own, and reuses what earlier rounds finished.
    """

    def __init__(
        self,
        runner: TaskRunner,
        workspace: ShuffleWorkspace,
        frames: FrameRows,
        *,
        zone: str,
        reuse: Reuse = True,
        profile: bool = False,
        moment: RunMoment | None = None,
        early: EarlyRows | None = None,
        writes: WrittenStage | None = None,
    ) -> None:
        """With `profile`, tasks measure the operators of their queries.

        `early` hands out rows of the last stage while it runs. With `writes`, the last stage writes
        its rows, and the answer is what it says of that.
        """
        config = fitted(workspace.config)
        self._runner, self._frames = runner, frames
        self._workspace = replace(workspace, config=config, asked=HostsAsked())
        self._memory_tries, self._writes = 0, writes
        self._zone, self._reuse, self._profile, self._early = zone, reuse, profile, early
        self._moment = moment or moment_of_now()
        self._stages = stages_of(frames.plan, config, zone, self._moment)
        self._title = query_title(frames.plan, workspace.store)
        self._repairs = Repairs(config.query_repairs_max, config.task_repairs_max)
        self._rounds: dict[int, list[StageRun]] = {stage.number: [] for stage in self._stages}
        self._shuffles: dict[int, Shuffle] = {}

    def finish(self) -> Shuffle:
        """Run all stages, again and again as long as lost outputs can be made again."""
        while True:
            try:
                return self._round()
            except OutputsLost as error:
                self._recover(error.lost)
                fault("dataset.driver.before_repair")
            except OutOfMemory as error:
                self._plan_again(error)
                fault("dataset.driver.before_repair")
            except TaskFailed as error:
                if self._moment.dates_texts or not lacks_day_of_run(error):
                    raise
                _log.info("a text is a time without a date: running again with the day of the run")
                self._moment = replace(self._moment, dates_texts=True)

    def _plan_again(self, error: OutOfMemory) -> None:
        """Cut rows into more partitions; raise if that was tried enough, or changes nothing."""
        config, tries = self._workspace.config, self._memory_tries + 1
        # Rows that were handed out would not be the first ones of another plan.
        is_begun = self._early is not None and bool(self._early.handed_out)
        is_last = tries > config.query_memory_retries_max or is_begun
        for smaller in () if is_last else smaller_pieces(config):
            stages = stages_of(self._frames.plan, smaller, self._zone, self._moment)
            if has_other_pieces(self._stages, stages):
                break
        else:
            raise out_of_memory(error, config, self._memory_tries) from error
        _log.info("%s: %s", self._title, retry_text(smaller))
        self._memory_tries, self._stages = tries, stages
        self._workspace = replace(self._workspace, config=smaller)
        self._repairs = Repairs(config.query_repairs_max, config.task_repairs_max)
        self._rounds = {stage.number: [] for stage in stages}

    def _round(self) -> Shuffle:
        """Run every stage once its inputs are there; finished tasks are reused."""
        workspace, stages = self._workspace, self._stages
        about = {"stages": len(stages)}
        run = begin_run(workspace.store, self._runner.about(), explain(stages), about)
        _log.info("query %d started: %s, %d stages", run.query_id, self._title, len(stages))
        self._shuffles = self._frames.shuffles
        self._frames.rely(run.query_id, StageId(len(stages)))
        course = course_of(stages, workspace.config)
        at_once_max = workspace.config.stages_at_once_max
        with (
            log_ids(run=run.query_id),
            run_span("query"),
            runs.heartbeat(workspace.store, run.query_id, workspace.config) as heart,
            StageScheduler(course.dependencies(), at_once_max=at_once_max) as scheduler,
        ):
            for number in scheduler.ready():
                stage = course.stage(number, self._measured_bytes(), self._measured_rows())
                if stage is None:
                    _log.debug("stage %d left out: %s", number, course.skipped[number])
                    scheduler.skip(number)
                    continue
                fault("dataset.driver.before_stage", number)
                ordered = input_in_order(stage, self._shuffles, workspace.config)
                if ordered is not None:
                    self._shuffles[number] = ordered
                    scheduler.skip(number)
                    continue
                try:
                    work = self._plan_tasks(run.query_id, stage)
                except OutputsLost as error:
                    scheduler.on_lost(error.lost)
                    continue
                scheduler.start(
                    number, work.fingerprints(), partial(self._run_stage, number, work, heart)
                )
        return self.answer

    def _measured_rows(self) -> dict[int, int]:
        return {number: done.rows for number, done in list(self._shuffles.items())}

    def _measured_bytes(self) -> dict[int, int]:
        shuffles = list(self._shuffles.items())  # Threads add to them meanwhile.
        return {number: sum(done.manifest.partition_bytes) for number, done in shuffles}

    def _plan_tasks(self, query_id: QueryId, stage: Stage) -> StageRun:
        """The tasks of a stage; outputs that were lost before are trusted only if checked."""
        options = QueryOptions(
            query_id=query_id,
            zone=self._zone,
            moment=self._moment,
            reuse=self._reuse,
            kept_partitions=partitioned_by_user(self._stages),
            profile=self._profile,
        )
        try:
            work = plan_stage(self._workspace, options, stage, self._shuffles)
        except LOSSES as error:  # Rows that were sampled, to choose bounds for example.
            inputs = [self._shuffles[number] for number in stage.reads]
            lost = [loss for done in inputs for loss in find_lost(done, range(done.partitions))]
            if not lost:
                raise
            raise OutputsLost(lost) from error
        suspects = self._repairs.of_stage(stage.number)
        work.tasks = [replace(t, suspect=suspects.get(t.map_task)) for t in work.tasks]
        if self._writes is not None and stage.number == self._stages[-1].number:
            at_rest = self._writes.written(self._workspace, work)
            if at_rest is not None:  # Until the stage is done, this is what can be lost of it.
                self._shuffles[stage.number] = at_rest
        if self._memory_tries and stage is self._stages[-1]:
            notes = [retry_text(self._workspace.config)]
            work.choices = {"reading": [*notes, *work.choices.get("reading", ())]}
        work.title = f"{self._title}, stage {stage.number + 1} of {len(self._stages)}"
        self._rounds[stage.number].append(work)
        if self._early is not None and stage.number == self._stages[-1].number:
            self._early.on_work(work)
        return work

    def _run_stage(self, number: int, work: StageRun, heart: runs.Heart, stop: Stop) -> None:
        """In a thread of the scheduler's."""

        def check() -> None:
            stop.check()
            heart.check()
            if self._early is not None:
                self._early.check()

        self._shuffles[number] = run_stage(self._runner, self._workspace, work, check=check)
        fault("dataset.driver.after_stage", number)

    @property
    def answer(self) -> Shuffle:
        """What the last stage wrote."""
        return self._shuffles[self._stages[-1].number]

    @property
    def report(self) -> QueryReport:
        """What ran and what was reused, for each DataFrame and stage, over all rounds."""
        stages = self._stage_reports()
        return QueryReport(
            stages=(*self._frames.reports, *_named("stage", stages)),
            rows=self.answer.rows,
            bytes=self.answer.bytes,
        )

    def _stage_reports(self) -> list[StageReport]:
        reports = []
        for number, rounds in self._rounds.items():
            tasks = len(rounds[-1].tasks) if rounds else 0
            report = stage_report([work.so_far() for work in rounds], tasks)
            wrote = self._shuffles.get(number)
            if wrote is not None and rounds:
                report = replace(report, rows=wrote.rows, bytes=wrote.bytes)
            reports.append(report)
        return reports

    @property
    def stages(self) -> list[Stage]:
        """The stages as they were planned."""
        return self._stages

    @property
    def measures(self) -> dict[int, str]:
        """For each stage its tasks, rows, bytes and seconds, in a line."""
        lines = {}
        for stage, report in zip(self._stages, self._stage_reports(), strict=True):
            if not report.map_tasks:
                lines[stage.number] = "left out"
                continue
            tasks = f"{counted(report.map_tasks, 'task')}, {report.reused} reused"
            wrote = f"{counted(report.rows, 'row')}, {human_bytes(report.bytes)}"
            lines[stage.number] = f"{tasks}; wrote {wrote}; {report.seconds:.2f} s"
        return lines

    @property
    def operators(self) -> dict[int, list[tuple[OperatorMeasure, ...]]]:
        """For each stage the operators of each task that ran and was measured."""
        return {
            number: [result.operators for result in rounds[-1].results.values() if result.operators]
            for number, rounds in self._rounds.items()
            if rounds
        }

    def batches(self, handed_out: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of the answer, behind outputs of this content that were handed out before.

        If outputs are lost while they are read, they are made again. Reading then goes on behind
        the rows that were handed out, or fails if those would be others now.
        """
        handed_out = list(handed_out or ())
        lost: Sequence[Lost] = ()
        while True:
            answer = self.answer
            contents = [choice.content for choice in answer.manifest.chosen]
            if contents[: len(handed_out)] != handed_out:
                raise DataLost(
                    f"rows of the answer were lost while it was read: {_first(lost)}\n"
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
                self._recover(lost)
                self.finish()
            else:
                return

    def with_answer(self, use: Callable[[Shuffle], Used]) -> Used:
        """What `use` makes of the answer; if it finds outputs lost, they are made again first."""
        while True:
            answer = self.answer
            try:
                return use(answer)
            except LOSSES:
                lost = find_lost(answer, range(answer.partitions))
                if not lost:
                    raise
                self._recover(lost)
                self.finish()

    def _recover(self, lost: Sequence[Lost]) -> None:
        """Note which tasks have to run again; read DataFrames again where their rows are lost."""
        _log.info("%d map outputs are lost, making them again: %s", len(lost), lost[0].first_line)
        self._repairs.on_lost(lost, {n: done.manifest for n, done in self._shuffles.items()})
        self._frames.save_again(lost)


def _named(what: str, reports: Sequence[StageReport]) -> Iterator[StageReport]:
    return (replace(report, name=f"{what} {number}") for number, report in enumerate(reports))


def _first(lost: Sequence[Lost]) -> str:
    return lost[0].first_line if lost else "before the query was done"
