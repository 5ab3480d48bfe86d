"""Describes the tasks of a stage: what each reads, what it does, and what it is made from.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from millrace.config import Config
from millrace.engine.duckdb_engine import engine_version
from millrace.engine.run_values import RunMoment
from millrace.engine.stage_work import Work, work_of
from millrace.execute.lost_outputs import StageRound
from millrace.execute.map_task import FilePart, MapStage, Result, Reuse, ShufflePart, StageTask
from millrace.execute.range_bounds import bounds_in
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_shares import TaskShare, share_out
from millrace.identity.fingerprint import fingerprint
from millrace.identity.versions import versions
from millrace.ids import MapTask, QueryId, StageId
from millrace.keys import HashPartitioner, Partitioner, RangePartitioner, RoundRobinPartitioner
from millrace.plan.nodes.limit import Limit
from millrace.plan.nodes.placement import ByHash, ByRange, Evenly, InPlace, ToOne
from millrace.plan.nodes.read_stage import leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.adaptive_stages import AdaptiveStages
from millrace.plan.planner.dynamic_pruning import leave_out_unmatched
from millrace.plan.planner.stages import Stage
from millrace.shuffle import reader
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.text import counted
from millrace.transport.agent.agent_addresses import known_agents

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
        )

    def fingerprints(self) -> frozenset[str]:
        """Of all tasks that can be recognised: two stages that share one do the same work."""
        return frozenset(
            fingerprint(task.made_from) for task in self.tasks if task.made_from is not None
        )


def course_of(stages: Sequence[Stage], config: Config) -> AdaptiveStages:
    """The stages of a plan, which change as the sizes of earlier ones are measured."""
    return AdaptiveStages(
        stages,
        broadcast_bytes_max=config.broadcast_bytes_max,
        together_bytes_max=min(config.read_together_bytes_max, config.one_task_bytes_max),
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
    tasks = [
        _task(MapTask(number), share, works[id(share.root)], by, sources)
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
    return min(placement.partitions, max(1, -(-size // config.partition_bytes_target)))


def _task(
    number: MapTask, share: TaskShare, work: Work, by: Partitioner, sources: Sequence[Shuffle]
) -> StageTask:
    inputs: list[dict[str, Any]] = []
    size = 0
    recent: dict[str, str] = {}
    for part in share.parts:
        match part:
            case FilePart(reader=read, inputs=files):
                for split in files:
                    inputs += split.identity(read.columns)
                    size += split.bytes
                    recent |= split.recent()
            case ShufflePart(source=source):
                consumed = _consumed(sources[source], part)
                inputs.append({"path": _label(work, part), "consumed": consumed})
                size += _bytes(sources[source].manifest, part)
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
        parts=share.parts,
        bytes=size,
        made_from=None if work.unrecognised else made_from,
        work=work,
        recent=recent,
    )


def _consumed(shuffle: Shuffle, part: ShufflePart) -> list[list[Any]]:
    """Checksums of all that a task reads of an earlier stage, in order."""
    metas = (
        reader.partition_meta(index, partition)
        for index in shuffle.of_outputs(part.outputs).indexes()
        for partition in part.partitions
    )
    return [[meta.rows, meta.checksum] for meta in metas if meta.rows]


def _bytes(manifest: Manifest, part: ShufflePart) -> int:
    if part.outputs is not None:
        return sum(manifest.chosen[position].bytes for position in part.outputs)
    return sum(manifest.partition_bytes[number] for number in part.partitions)


def _label(work: Work, part: ShufflePart) -> str:
    """A name for what is read, the same in every run of the same query."""
    digest = hashlib.blake2b(str(work.describe()).encode(), digest_size=8).hexdigest()
    outputs = "" if part.outputs is None else f" of map tasks {list(part.outputs)}"
    return f"stage read {part.source} of {digest}, partitions {list(part.partitions)}{outputs}"
