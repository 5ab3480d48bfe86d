"""Says before a query runs which of its tasks would be reused.

For stages that read files this is exact. For a stage that reads other stages it is known only if
all of those are finished: then it is known what the stage reads and how it would be cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millrace.engine.operator_profile import OperatorMeasure
from millrace.engine.run_values import RunMoment
from millrace.errors import MillraceError
from millrace.execute.finished_work import find_finished
from millrace.execute.query_run import partitioned_by_user
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import shuffle_of
from millrace.execute.stage_tasks import (
    QueryOptions,
    StageRun,
    course_of,
    input_in_order,
    plan_stage,
)
from millrace.ids import QueryId
from millrace.plan.planner.stages import Stage
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import StageReport
from millrace.text import counted, human_bytes


def forecast_reuse(
    workspace: ShuffleWorkspace,
    stages: Sequence[Stage],
    zone: str,
    moment: RunMoment,
    saved_frames: Mapping[int, Shuffle],
) -> dict[int, str]:
    """For each stage what of it would be reused, in a line. Runs and writes nothing."""
    course = course_of(stages, workspace.config)
    options = QueryOptions(
        query_id=QueryId(0),
        zone=zone,
        moment=moment,
        reuse=True,
        kept_partitions=partitioned_by_user(stages),
    )
    shuffles: dict[int, Shuffle] = dict(saved_frames)
    left_out: set[int] = set()
    lines: dict[int, str] = {}
    needs = course.dependencies()
    for number in _in_order(needs):
        unknown = sorted(n for n in needs[number] if n not in shuffles and n not in left_out)
        if unknown:
            lines[number] = f"depends on stage {', '.join(map(str, unknown))}"
            continue
        if any(n < 0 and n not in shuffles for n in stages[number].reads):
            lines[number] = "depends on a DataFrame that is saved when it runs"
            continue
        measured = {n: sum(done.manifest.partition_bytes) for n, done in shuffles.items()}
        stage = course.stage(number, measured)
        if stage is None:
            left_out.add(number)
            lines[number] = f"left out: {course.skipped[number]}"
            continue
        lines[number] = _forecast(workspace, options, stage, shuffles)
    return lines


def _forecast(
    workspace: ShuffleWorkspace,
    options: QueryOptions,
    stage: Stage,
    shuffles: dict[int, Shuffle],
) -> str:
    """What of a stage would be reused; if all of it, its shuffle is added."""
    try:
        ordered = input_in_order(stage, shuffles, workspace.config)
        if ordered is not None:
            shuffles[stage.number] = ordered
            return "left out: its rows are in order already"
        work = plan_stage(workspace, options, stage, shuffles)
        find_finished(workspace, work)
        if not work.missing():
            results = [work.results[task.map_task] for task in work.tasks]
            shuffles[stage.number] = shuffle_of(
                workspace, work.stage, results, StageReport(), choices=work.choices
            )
    except MillraceError as error:
        return f"not known: {str(error).splitlines()[0]}"
    return _line(work)


def _line(work: StageRun) -> str:
    missing = work.missing()
    total = counted(len(work.tasks), "task")
    if not missing:
        return f"all of {total} reused"
    reasons: Mapping[str, int] = Counter(work.reasons[task.map_task] for task in missing)
    why = "; ".join(f"{count} because: {reason}" for reason, count in sorted(reasons.items()))
    return f"would run {len(missing)} of {total}, {len(work.results)} reused; {why}"


def operator_lines(
    tasks: Mapping[int, Sequence[Sequence[OperatorMeasure]]], reused: Mapping[int, int]
) -> dict[int, list[str]]:
    """For each stage what the engine's operators did, over all tasks that ran, as lines.

    Tasks of one stage can have different trees: each tree has lines of its own.
    """
    lines: dict[int, list[str]] = {}
    for number, measured in tasks.items():
        trees: dict[tuple[object, ...], list[Sequence[OperatorMeasure]]] = {}
        for operators in measured:
            trees.setdefault(tuple(one.place for one in operators), []).append(operators)
        lines[number] = []
        for same in trees.values():
            lines[number].append(f"operators of {counted(len(same), 'task')} that ran:")
            lines[number] += [_operator_line(column) for column in zip(*same, strict=True)]
        if reused.get(number):
            lines[number].append(f"operators of {counted(reused[number], 'task')}: reused, not run")
    return lines


def _operator_line(same: Sequence[OperatorMeasure]) -> str:
    """An operator, with its measures over all tasks."""
    first = same[0]
    about = f" ({first.about})" if first.about else ""
    rows = counted(sum(one.rows for one in same), "row")
    size = human_bytes(sum(one.bytes for one in same))
    seconds = sum(one.seconds for one in same)
    return f"{'  ' * (first.depth + 1)}{first.name}{about}: {rows}, {size}, {seconds:.3f} s"


def _in_order(needs: Sequence[frozenset[int]]) -> list[int]:
    """The stages, each after those it waits for."""
    order: list[int] = []
    while len(order) < len(needs):
        order += [
            number
            for number, needed in enumerate(needs)
            if number not in order and needed <= set(order)
        ]
    return order
