"""Describes the tasks of a stage: what each reads, what it does, and what it is made from.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.config import Config
from millrace.engine.duckdb_engine import engine_version
from millrace.engine.stage_work import Work, work_of
from millrace.execute.range_bounds import bounds_in
from millrace.identity.versions import versions
from millrace.ids import MapTask, QueryId, StageId
from millrace.keys import HashPartitioner, Partitioner, RangePartitioner, RoundRobinPartitioner
from millrace.plan.nodes.node import Scan, leaves
from millrace.plan.nodes.placement import ByHash, ByRange, Evenly, InPlace, ToOne
from millrace.plan.planner.adapting import Course
from millrace.plan.planner.stages import Stage
from millrace.shuffle import reader
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.spark.map_task import FilePart, MapStage, Reuse, ShufflePart, StageTask
from millrace.spark.stage_job import ShuffleWorkspace, StageRun
from millrace.spark.task_shares import TaskShare, share_out
from millrace.transport.agent.agent_addresses import known_agents


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What is the same for all stages of a query."""

    query_id: QueryId
    zone: str
    reuse: Reuse
    as_they_are: frozenset[int] = frozenset()
    """Stages whose partitions are the user's own choice."""


def course_of(stages: Sequence[Stage], config: Config) -> Course:
    """How the stages of a plan change as others come out."""
    return Course(
        stages,
        broadcast_bytes_max=config.broadcast_bytes_max,
        together_bytes_max=min(config.read_together_bytes_max, config.one_task_bytes_max),
    )


def lies_right_already(stage: Stage, done: Mapping[int, Shuffle], config: Config) -> Shuffle | None:
    """What the stage before wrote, if it is so small that its order needs no parts."""
    if not isinstance(stage.placement, ByRange):
        return None
    (source,) = (done[number] for number in stage.reads)
    return source if _parts_of(source, stage.placement, config) == 1 else None


def plan_stage(
    place: ShuffleWorkspace, asked: QueryOptions, stage: Stage, done: Mapping[int, Shuffle]
) -> StageRun:
    """The tasks of a stage, given the stages before it."""
    sources = [done[number] for number in stage.reads]
    by = _partitioner(stage, sources, place.config)
    described = MapStage(
        query_id=asked.query_id,
        stage_id=StageId(stage.number),
        schema=stage.root.schema,
        partitioner=by,
        config=place.config,
        folders=place.folders,
        versions=versions(),
        sources=tuple(source.manifest for source in sources),
        addresses=known_agents(place.store),
        reuse=asked.reuse,
    )
    shares, notes = share_out(stage, done, place.config, as_they_are=asked.as_they_are)
    works = {
        key: work_of(root, time_zone=asked.zone, config=place.config)
        for key, root in {id(share.root): share.root for share in shares}.items()
    }
    tasks = [
        _task(MapTask(number), share, works[id(share.root)], by, sources)
        for number, share in enumerate(shares)
    ]
    unrecognised = next((work.unrecognised for work in works.values() if work.unrecognised), None)
    return StageRun(described, tasks, unrecognised, choices={"reading": notes} if notes else {})


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
            case FilePart(inputs=files):
                for one in files:
                    inputs += one.identity()
                    size += one.bytes
                    recent |= one.recent()
            case ShufflePart(source=source):
                consumed = _consumed(sources[source], part)
                inputs.append({"path": _label(work, part), "consumed": consumed})
                size += _bytes(sources[source].manifest, part)
    scans = [leaf.source.describe() for leaf in leaves(share.root) if isinstance(leaf, Scan)]
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
    found = []
    for index in shuffle.of_outputs(part.outputs).indexes():
        for partition in part.partitions:
            meta = reader.partition_meta(index, partition)
            if meta.rows:
                found.append([meta.rows, meta.checksum])
    return found


def _bytes(manifest: Manifest, part: ShufflePart) -> int:
    if part.outputs is not None:
        return sum(manifest.chosen[place].bytes for place in part.outputs)
    return sum(manifest.partition_bytes[number] for number in part.partitions)


def _label(work: Work, part: ShufflePart) -> str:
    """A name for what is read, the same in every run of the same query."""
    digest = hashlib.blake2b(str(work.describe()).encode(), digest_size=8).hexdigest()
    outputs = "" if part.outputs is None else f" of map tasks {list(part.outputs)}"
    return f"stage read {part.source} of {digest}, partitions {list(part.partitions)}{outputs}"
