"""Describes the tasks of a stage: what each reads, what it does, and what it is made from.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from millrace.config import Config, reduce_partitions
from millrace.engine.duckdb_engine import engine_version
from millrace.engine.partition_matches import matching_files
from millrace.engine.run_values import RunMoment
from millrace.engine.stage_work import Work, work_of
from millrace.execute.lost_outputs import StageRound
from millrace.execute.map_task import FilePart, MapStage, Reuse, ShufflePart, StageTask
from millrace.execute.memory_fit import fitted
from millrace.execute.range_bounds import bounds_in
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_shares import TaskShare, share_out
from millrace.execute.tasks.task_results import Result
from millrace.identity.fingerprint import fingerprint
from millrace.identity.versions import versions
from millrace.ids import MapTask, QueryId, StageId
from millrace.keys import HashPartitioner, Partitioner, RangePartitioner, RoundRobinPartitioner
from millrace.plan.nodes.limit import Limit
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import ByHash, ByRange, Evenly, InPlace, ToOne
from millrace.plan.nodes.read_stage import leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.adaptive_stages import AdaptiveStages
from millrace.plan.planner.dynamic_pruning import leave_out_unmatched
from millrace.plan.planner.exchanges import PlanLimits
from millrace.plan.planner.key_reduction import reducible_sides
from millrace.plan.planner.stages import Stage, plan_stages
from millrace.scan.group_estimate import estimate_groups
from millrace.scan.source import FileSource
from millrace.shuffle.fetch_counts import FetchCounts
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.stage_entries import SentColumns
from millrace.text import counted
from millrace.transport.agent.agent_addresses import known_agents

_CONSUMED_BYTES: Final = 16
ROWS_PER_GROUP_MIN: Final = 3
"""With fewer rows of a task to a group, about, groups are not begun before the exchange."""

BROADCAST_KEYS_MAX: Final = 100_000
"""Of more rows, the keys are not read to leave out files of partition folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What is the same for all stages of a query."""

    query_id: QueryId
    zone: str
    moment: RunMoment
    reuse: Reuse
    kept_partitions: frozenset[int] = frozenset()
    """Stages whose partitions are the user's own choice."""
    profile: bool = False
    """Whether tasks measure the operators of their queries."""


@dataclass(slots=True)
class StageRun:
    """A stage on its way: its tasks, the results so far, and why each other task has to run."""

    stage: MapStage
    tasks: Sequence[StageTask]
    unrecognised: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    title: str = "stage"
    """What the runner's page says of its tasks."""
    results: dict[MapTask, Result] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    rows_wanted: int | None = None
    """How many rows are enough, if only the first ones are read."""
    in_order: bool = False
    """Whether tasks begin in the order of their rows, and somebody reads each as it is done."""
    on_results: Callable[[], None] = lambda: None
    """Is called when there are more results."""

    def on_outputs(self, indexes: Sequence[MapTaskIndex]) -> None:
        """Outputs of this run appeared in the workspace before their Spark tasks ended."""
        for index in indexes:
            number = index.id.task.map_task
            result = Result(map_task=number, folder=None, agent=None, ran=True, index=index)
            self.results.setdefault(number, result)
        if indexes:
            self.on_results()

    def cut_when_enough(self) -> bool:
        """Leave out the tasks behind those that gave all rows that are wanted, if they did."""
        if self.rows_wanted is None:
            return False
        rows = 0
        for count, task in enumerate(self.tasks, start=1):
            if task.map_task not in self.results:
                return False
            rows += self.results[task.map_task].index.rows
            if rows >= self.rows_wanted:
                if count < len(self.tasks):
                    note = f"{counted(count, 'task')} of {len(self.tasks)} gave all rows wanted"
                    self.choices = {"reading": [*self.choices.get("reading", ()), note]}
                self.tasks = self.tasks[:count]
                return True
        return False

    def take(self, result: Result) -> None:
        """Take what a Spark task reported; an output that was seen before is not replaced."""
        seen = self.results.get(result.map_task)
        if seen is None or seen.index.id == result.index.id:
            self.results[result.map_task] = result

    def missing(self) -> list[StageTask]:
        """Map tasks without an output."""
        return [task for task in self.tasks if task.map_task not in self.results]

    def so_far(self) -> StageRound:
        """Which tasks were run, and which were finished before."""
        ran = {n: self.reasons.get(n, "") for n, result in self.results.items() if result.ran}
        return StageRound(
            ran=ran,
            reused=frozenset(self.results.keys() - ran.keys()),
            seconds=self.seconds,
            notes=tuple(self.choices.get("reading", ())),
            fetched=sum((result.fetched for result in self.results.values()), FetchCounts()),
        )

    def fingerprints(self) -> frozenset[str]:
        """Of all tasks that can be recognised: two stages that share one do the same work."""
        return frozenset(
            fingerprint(task.made_from) for task in self.tasks if task.made_from is not None
        )


def stages_of(plan: Node, config: Config, zone: str, moment: RunMoment) -> list[Stage]:
    """The stages that a plan is run in."""
    config = fitted(config)
    sizes = PlanLimits(
        one_task_bytes_max=config.one_task_bytes_max,
        split_bytes_target=config.split_bytes_target,
        result_split_bytes_target=config.result_split_bytes_target,
        broadcast_bytes_max=config.broadcast_bytes_max,
        partition_bytes_target=config.partition_bytes_target,
        partitions_max=min(config.partitions_max, config.reduce_tasks_max),
        partitions_min=config.reduce_tasks_min,
        reduced_rows_min=config.reduced_rows_min,
        many_to_a_group=partial(_many_to_a_group, config),
        matching_files=partial(matching_files, zone, moment),
    )
    return plan_stages(plan, sizes)


def _many_to_a_group(
    config: Config, source: FileSource, keys: tuple[str, ...], partitions: int
) -> bool:
    groups = estimate_groups(source, keys, config.split_bytes_target)
    if groups is None or groups.rows_per_group >= ROWS_PER_GROUP_MIN:
        return True
    # A task that gets all rows of such a key would take so many times as long as the others.
    is_much_larger = groups.largest_share * partitions > config.skew_factor
    return is_much_larger and groups.largest_share * source.bytes >= config.skew_bytes_min


def course_of(stages: Sequence[Stage], config: Config) -> AdaptiveStages:
    """The stages of a plan, which change as the sizes of earlier ones are measured."""
    together_bytes_max = min(config.read_together_bytes_max, config.one_task_bytes_max)
    if config.reduce_tasks_min > 1:
        together_bytes_max = 0  # Few rows are reduced by several tasks, too.
    return AdaptiveStages(
        stages,
        broadcast_bytes_max=config.broadcast_bytes_max,
        together_bytes_max=together_bytes_max,
        sides=reducible_sides(
            stages,
            rows_min=config.reduced_rows_min,
            bytes_max=config.reducing_bytes_max,
            split_bytes_target=config.split_bytes_target,
        ),
    )


def input_in_order(stage: Stage, done: Mapping[int, Shuffle], config: Config) -> Shuffle | None:
    """The input of a stage that orders rows, if one partition is enough: it is left as it is."""
    if not isinstance(stage.placement, ByRange):
        return None
    (source,) = (done[number] for number in stage.reads)
    return source if _parts_of(source, stage.placement, config) == 1 else None


def plan_stage(
    workspace: ShuffleWorkspace, options: QueryOptions, stage: Stage, done: Mapping[int, Shuffle]
) -> StageRun:
    """The tasks of a stage, given the stages before it."""
    root = leave_out_unmatched(stage.root, partial(_key_values, done))
    stage = stage if root is stage.root else replace(stage, root=root)
    sources = [done[number] for number in stage.reads]
    by = _partitioner(stage, sources, workspace.config)
    described = MapStage(
        query_id=options.query_id,
        stage_id=StageId(stage.number),
        schema=stage.root.schema,
        partitioner=by,
        config=workspace.config,
        folders=workspace.folders,
        versions=versions(),
        sources=tuple(source.manifest for source in sources),
        addresses=known_agents(workspace.store),
        reuse=options.reuse,
        profile=options.profile,
    )
    shares, notes = share_out(
        stage, done, workspace.config, kept_partitions=options.kept_partitions
    )
    works = {
        key: work_of(root, time_zone=options.zone, config=workspace.config, moment=options.moment)
        for key, root in {id(share.root): share.root for share in shares}.items()
    }
    # Of these, tasks may run where the workspace's folder is not seen.
    elsewhere = {
        number
        for number, source in enumerate(sources)
        if any(choice.folder is not None for choice in source.manifest.chosen)
    }
    tasks = [
        _task(MapTask(number), share, works[id(share.root)], by, sources, elsewhere)
        for number, share in enumerate(shares)
    ]
    unrecognised = next((work.unrecognised for work in works.values() if work.unrecognised), None)
    return StageRun(
        described,
        tasks,
        unrecognised,
        choices={"reading": notes} if notes else {},
        rows_wanted=_rows_wanted(stage),
    )


def _key_values(done: Mapping[int, Shuffle], number: int, column: str) -> set[Any] | None:
    """The values of a column of a finished stage; None if it has many rows."""
    shuffle = done[number]
    if shuffle.rows > BROADCAST_KEYS_MAX:
        return None
    batches = (batch for part in range(shuffle.partitions) for batch in shuffle.batches(part))
    return {value for batch in batches for value in batch.column(column).unique().to_pylist()}


def _rows_wanted(stage: Stage) -> int | None:
    """How many rows of a stage are read, if its first rows are: as many as each task gives."""
    first = isinstance(stage.root, Limit) and stage.placement == ToOne(broadcast=False)
    return stage.root.rows if first and isinstance(stage.root, Limit) else None


def _partitioner(stage: Stage, sources: Sequence[Shuffle], config: Config) -> Partitioner:
    match stage.placement:
        case ByHash(keys=keys, partitions=partitions):
            return HashPartitioner(keys, partitions)
        case Evenly(partitions=partitions):
            return RoundRobinPartitioner(partitions)
        case ByRange(keys=keys) as placement:
            (source,) = sources
            parts = _parts_of(source, placement, config)
            return RangePartitioner(keys, bounds_in(source, keys, parts, config))
        case ToOne() | InPlace() | None:
            return RoundRobinPartitioner(1)


def _parts_of(source: Shuffle, placement: ByRange, config: Config) -> int:
    size = sum(source.manifest.partition_bytes)
    return min(placement.partitions, reduce_partitions(config, size))


def _task(
    number: MapTask,
    share: TaskShare,
    work: Work,
    by: Partitioner,
    sources: Sequence[Shuffle],
    elsewhere: Collection[int],
) -> StageTask:
    inputs: list[dict[str, Any]] = []
    size = 0
    recent: dict[str, str] = {}
    parts = [_with_entries(sources, part, elsewhere) for part in share.parts]
    for part in parts:
        match part:
            case FilePart(reader=read, inputs=files):
                for split in files:
                    inputs += split.identity(read.columns)
                    size += split.bytes
                    recent |= split.recent()
            case ShufflePart(source=source):
                consumed = _consumed(sources[source], part)
                inputs.append({"path": _label(work, part), "consumed": consumed})
                size += _bytes(sources[source], part)
    scans = [
        leaf.source.describe(leaf.columns) for leaf in leaves(share.root) if isinstance(leaf, Scan)
    ]
    made_from = {
        "inputs": inputs,
        "work": work.describe(),
        "scans": scans,
        "columns": [[field.name, str(field.type)] for field in share.root.schema],
        "partitioner": dict(by.describe()),
        "versions": {**versions(), "duckdb": engine_version()},
    }
    return StageTask(
        map_task=number,
        parts=tuple(parts),
        bytes=size,
        made_from=None if work.unrecognised else made_from,
        work=work,
        recent=recent,
    )


def _with_entries(
    sources: Sequence[Shuffle], part: FilePart | ShufflePart, elsewhere: Collection[int]
) -> FilePart | ShufflePart:
    """With the entries that it reads, if its source is one of those elsewhere."""
    if isinstance(part, FilePart) or part.source not in elsewhere:
        return part
    source = sources[part.source]
    columns = {number: source.entries(number).tobytes() for number in part.partitions}
    return replace(part, sent=SentColumns(columns))


def _consumed(shuffle: Shuffle, part: ShufflePart) -> str:
    """One digest of the rows and checksums of all that a task reads of an earlier stage."""
    outputs = shuffle.of_outputs(part.outputs)
    digest = hashlib.blake2b(digest_size=_CONSUMED_BYTES)
    for partition in part.partitions:
        entries = outputs.entries(partition)
        with_rows = entries[entries["rows"] > 0]
        digest.update(len(with_rows).to_bytes(8))
        digest.update(with_rows["rows"].tobytes())
        digest.update(with_rows["checksum"].tobytes())
    return digest.hexdigest()


def _bytes(shuffle: Shuffle, part: ShufflePart) -> int:
    manifest = shuffle.manifest
    if part.outputs is None:
        return sum(manifest.partition_bytes[number] for number in part.partitions)
    if len(part.partitions) < manifest.partitions:
        outputs = shuffle.of_outputs(part.outputs)
        size = sum(int(outputs.entries(number)["bytes"].sum()) for number in part.partitions)
    else:
        size = sum(manifest.chosen[position].bytes for position in part.outputs)
    return size if part.rows is None else size // part.rows.parts


def _label(work: Work, part: ShufflePart) -> str:
    """A name for what is read, the same in every run of the same query."""
    digest = hashlib.blake2b(str(work.describe()).encode(), digest_size=8).hexdigest()
    outputs = "" if part.outputs is None else f" of map tasks {list(part.outputs)}"
    rows = "" if part.rows is None else f", part {part.rows.number} of {part.rows.parts}"
    which = f"partitions {list(part.partitions)}{outputs}{rows}"
    return f"stage read {part.source} of {digest}, {which}"
