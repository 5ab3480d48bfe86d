"""Says before a query runs what of it is finished already.

For stages that read files this is exact. A stage that reads others can be told only if all of those
are finished: what it consumes, and how it would be cut, is known then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millrace.errors import MillraceError
from millrace.ids import QueryId
from millrace.plan.planner.stages import Stage
from millrace.shuffle.handle import Shuffle
from millrace.spark.stage_job import ShuffleWorkspace, StageRun, foresee
from millrace.spark.stage_tasks import QueryOptions, course_of, lies_right_already, plan_stage
from millrace.text import counted


def foresee_stages(
    place: ShuffleWorkspace,
    stages: Sequence[Stage],
    zone: str,
    as_they_are: frozenset[int],
    taken_in: Mapping[int, Shuffle],
) -> dict[int, str]:
    """For each stage what of it would be reused, in a line. Runs and writes nothing."""
    course = course_of(stages, place.config)
    asked = QueryOptions(query_id=QueryId(0), zone=zone, reuse="yes", as_they_are=as_they_are)
    done: dict[int, Shuffle] = dict(taken_in)
    left_out: set[int] = set()
    said: dict[int, str] = {}
    waits = course.waits()
    for number in _in_order(waits):
        open_ones = sorted(n for n in waits[number] if n not in done and n not in left_out)
        if open_ones:
            said[number] = f"depends on stage {', '.join(map(str, open_ones))}"
            continue
        if any(n < 0 and n not in done for n in stages[number].reads):
            said[number] = "depends on a DataFrame that is taken in when it runs"
            continue
        measured = {n: sum(one.manifest.partition_bytes) for n, one in done.items()}
        stage = course.stage(number, measured)
        if stage is None:
            left_out.add(number)
            said[number] = f"left out: {course.left_out[number]}"
            continue
        said[number] = _foresee(place, asked, stage, done)
    return said


def _foresee(
    place: ShuffleWorkspace, asked: QueryOptions, stage: Stage, done: dict[int, Shuffle]
) -> str:
    """What of a stage would be reused; if all of it, it counts as done."""
    try:
        before = lies_right_already(stage, done, place.config)
        if before is not None:
            done[stage.number] = before
            return "left out: its rows lie right already"
        work = plan_stage(place, asked, stage, done)
        written = foresee(place, work)
    except MillraceError as error:
        return f"not known: {str(error).splitlines()[0]}"
    if written is not None:
        done[stage.number] = written
    return _told(work)


def _told(work: StageRun) -> str:
    missing = work.missing()
    total = counted(len(work.tasks), "task")
    if not missing:
        return f"all of {total} reused"
    reasons: Mapping[str, int] = Counter(work.reasons[task.map_task] for task in missing)
    why = "; ".join(f"{count} because: {reason}" for reason, count in sorted(reasons.items()))
    return f"would run {len(missing)} of {total}, {len(work.done)} reused; {why}"


def _in_order(waits: Sequence[frozenset[int]]) -> list[int]:
    """The stages, each after those it waits for."""
    order: list[int] = []
    while len(order) < len(waits):
        order += [
            number
            for number, needed in enumerate(waits)
            if number not in order and needed <= set(order)
        ]
    return order
