"""The last stage of a query whose answer is only written: its tasks write files, not map outputs.

A task whose rows are at rest already, since the same query ran before, reads them and computes
nothing. Invariant: each row of the answer is written by exactly one task, in the order of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from millrace.engine.stage_work import PassThrough
from millrace.execute.finished_work import reuse_finished
from millrace.execute.map_task import ShufflePart, StageTask
from millrace.execute.results.parquet_work import FILES_WRITTEN, ParquetTarget, ParquetWork
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import shuffle_of
from millrace.execute.stage_tasks import StageRun
from millrace.ids import MapTask, StageId
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import StageReport

_RELIED_ON: Final = 2
"""Behind the stages of a run comes the note of its DataFrames, and then that of rows at rest."""


@dataclass(frozen=True, slots=True)
class WrittenStage:
    """Turns the last stage of a query into one that writes its rows."""

    target: ParquetTarget

    def written(self, workspace: ShuffleWorkspace, work: StageRun) -> Shuffle | None:
        """Let the tasks of a stage write; gives the rows that were at rest, if there are any."""
        at_rest = _at_rest(workspace, work)
        known: dict[MapTask, tuple[int, int]] = {}
        if at_rest is not None:
            chosen = enumerate(at_rest.manifest.chosen)
            known = {choice.map_task: (number, choice.bytes) for number, choice in chosen}
        works = {id(task.work): ParquetWork(task.work, self.target) for task in work.tasks}
        reading = ParquetWork(PassThrough(), self.target)

        def written(task: StageTask) -> StageTask:
            made = task.made_from
            if made is not None:
                made = {**made, "written": self.target.describe()}
            if task.map_task not in known:
                return replace(task, work=works[id(task.work)], made_from=made)
            output, size = known[task.map_task]
            part = ShufflePart(source=source, partitions=(0,), outputs=(output,))
            return replace(task, work=reading, made_from=made, parts=(part,), bytes=size)

        source = len(work.stage.sources)
        work.tasks = [written(task) for task in work.tasks]
        sources = (*work.stage.sources, *(() if at_rest is None else (at_rest.manifest,)))
        work.stage = replace(work.stage, schema=FILES_WRITTEN, sources=sources)
        note = f"rows are written to {self.target.into}"
        work.choices = {"reading": [*work.choices.get("reading", ()), note]}
        return at_rest


def _at_rest(workspace: ShuffleWorkspace, work: StageRun) -> Shuffle | None:
    """The outputs of tasks of this stage that other runs saved; they stay as long as this run."""
    stage = replace(work.stage, stage_id=StageId(work.stage.stage_id + _RELIED_ON))
    saved = StageRun(stage, work.tasks, work.unrecognised)
    reuse_finished(workspace, saved)
    if not saved.results:
        return None
    results = [saved.results[number] for number in sorted(saved.results)]
    return shuffle_of(workspace, stage, results, StageReport(), choices={})
