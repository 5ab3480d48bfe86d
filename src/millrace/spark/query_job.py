"""Runs a dataset's plan: cuts it into stages and runs each, reusing what is finished.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.ids import MapTask, QueryId, StageId
from millrace.keys import HashPartitioner, Partitioner, RoundRobinPartitioner
from millrace.operators.engine import engine_version
from millrace.operators.sql import query
from millrace.operators.work import Query
from millrace.plan.exchanges import Sizes, insert_exchanges
from millrace.plan.nodes import ByHash, Node, ReadStage, Scan, ToOne
from millrace.plan.pruning import prune
from millrace.plan.stages import Stage, cut, explain, leaves
from millrace.scan.source import check_current
from millrace.scan.splits import MapInput
from millrace.scan.splits import cut as cut_files
from millrace.shuffle import reader, runs
from millrace.shuffle.handle import RunReport, Shuffle
from millrace.spark.map_task import FilePart, MapStage, Reuse, ShufflePart, StageTask
from millrace.spark.shuffle_job import begin_run
from millrace.spark.stage_job import Place, StageRun, run_stage
from millrace.spark.versions import versions
from millrace.transport.addresses import known_agents


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query, at rest, and what each stage did."""

    rows: Shuffle
    reports: tuple[RunReport, ...]


def plan_stages(plan: Node, config: Config) -> list[Stage]:
    """The stages that a plan is run in."""
    sizes = Sizes(
        one_task_bytes_max=config.one_task_bytes_max,
        broadcast_bytes_max=config.broadcast_bytes_max,
        partition_bytes_target=config.partition_bytes_target,
        partitions_max=config.partitions_max,
    )
    return cut(insert_exchanges(prune(plan), sizes))


def explain_query(plan: Node, config: Config) -> str:
    """The stages of a plan, as text."""
    return explain(plan_stages(plan, config))


def run_query(spark: SparkSession, place: Place, plan: Node, *, reuse: Reuse = "yes") -> Answer:
    """Run a plan stage by stage."""
    for leaf in leaves(plan):
        if isinstance(leaf, Scan):
            check_current(leaf.source)
    stages = plan_stages(plan, place.config)
    run = begin_run(spark, place, explain(stages), {"stages": len(stages)})
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
    done: dict[int, Shuffle] = {}
    with runs.heartbeat(place.store, run.query_id, place.config):
        for stage in stages:
            work = _stage_run(place, run.query_id, stage, done, zone=zone, reuse=reuse)
            done[stage.number] = run_stage(spark, place, work)
    return Answer(done[stages[-1].number], tuple(done[s.number].report for s in stages))


def _stage_run(
    place: Place,
    query_id: QueryId,
    stage: Stage,
    done: Mapping[int, Shuffle],
    *,
    zone: str,
    reuse: Reuse,
) -> StageRun:
    schema = stage.root.schema
    sources = [leaf.stage for leaf in stage.leaves if isinstance(leaf, ReadStage)]
    work = Query(sql=query(stage.root), schema=schema, time_zone=zone)
    by = _partitioner(stage)
    made_of = {
        "work": work.describe(),
        "scans": [leaf.source.describe() for leaf in stage.leaves if isinstance(leaf, Scan)],
        "partitioner": dict(by.describe()),
        "versions": {**versions(), "duckdb": engine_version()},
    }
    described = MapStage(
        query_id=query_id,
        stage_id=StageId(stage.number),
        schema=schema,
        partitioner=by,
        config=place.config,
        folders=place.folders,
        versions=versions(),
        work=work,
        sources=tuple(done[number].manifest for number in sources),
        addresses=known_agents(place.store),
        reuse=reuse,
    )
    tasks = [
        _task(number, parts, made_of, [done[n] for n in sources])
        for number, parts in enumerate(_shares(place.config, stage, sources))
    ]
    return StageRun(described, tasks)


def _partitioner(stage: Stage) -> Partitioner:
    match stage.placement:
        case ByHash(keys=keys, partitions=partitions):
            return HashPartitioner(keys, partitions)
        case ToOne() | None:
            return RoundRobinPartitioner(1)


def _shares(
    config: Config, stage: Stage, sources: Sequence[int]
) -> list[tuple[FilePart | ShufflePart, ...]]:
    """For each task of a stage, what it reads of each leaf."""
    scans = [leaf for leaf in stage.leaves if isinstance(leaf, Scan)]
    if stage.alone:
        whole = {number: tuple(_cut(scan, config)) for number, scan in enumerate(scans)}
        return [_parts(stage, sources, whole, 0)]
    if scans:
        assert len(scans) == 1, "a join brings its sides together by an exchange"
        return [_parts(stage, sources, {0: (one,)}, 0) for one in _cut(scans[0], config)]
    count = max((_partitions(leaf) for leaf in stage.leaves), default=1)
    return [_parts(stage, sources, {}, partition) for partition in range(count)]


def _cut(scan: Scan, config: Config) -> list[MapInput]:
    return cut_files(
        scan.source.shapes,
        split_bytes_target=config.split_bytes_target,
        map_tasks_max=config.map_tasks_max,
    )


def _partitions(leaf: Scan | ReadStage) -> int:
    match leaf:
        case ReadStage(placement=ByHash(partitions=partitions)):
            return partitions
        case _:
            return 1


def _parts(
    stage: Stage,
    sources: Sequence[int],
    files: Mapping[int, tuple[MapInput, ...]],
    partition: int,
) -> tuple[FilePart | ShufflePart, ...]:
    parts: list[FilePart | ShufflePart] = []
    scans = 0
    for leaf in stage.leaves:
        match leaf:
            case Scan(source=source, columns=columns):
                parts.append(FilePart(source.reader(columns), files[scans]))
                scans += 1
            case ReadStage(stage=number, placement=ByHash()):
                parts.append(ShufflePart(sources.index(number), (partition,)))
            case ReadStage(stage=number):
                parts.append(ShufflePart(sources.index(number), (0,)))
    return tuple(parts)


def _task(
    number: int,
    parts: tuple[FilePart | ShufflePart, ...],
    made_of: Mapping[str, Any],
    sources: Sequence[Shuffle],
) -> StageTask:
    inputs: list[dict[str, Any]] = []
    size = 0
    recent: dict[str, str] = {}
    for part in parts:
        match part:
            case FilePart(inputs=files):
                for one in files:
                    inputs += one.identity()
                    size += one.bytes
                    recent |= one.recent()
            case ShufflePart(source=source, partitions=partitions):
                consumed = _consumed(sources[source], partitions)
                inputs.append({"path": _label(made_of, source, partitions), "consumed": consumed})
                size += sum(sources[source].manifest.partition_bytes[p] for p in partitions)
    return StageTask(
        map_task=MapTask(number),
        parts=parts,
        bytes=size,
        made_from={"inputs": inputs, **made_of},
        recent=recent,
    )


def _consumed(shuffle: Shuffle, partitions: Sequence[int]) -> list[list[Any]]:
    """Checksums of all that a task reads of an earlier stage, in order."""
    found = []
    for index in shuffle.indexes():
        for partition in partitions:
            meta = reader.partition_meta(index, partition)
            if meta.rows:
                found.append([meta.rows, meta.checksum])
    return found


def _label(made_of: Mapping[str, Any], source: int, partitions: Sequence[int]) -> str:
    """A name for what is read, the same in every run of the same query."""
    digest = hashlib.blake2b(str(made_of["work"]["sql"]).encode(), digest_size=8).hexdigest()
    return f"stage read {source} of {digest}, partitions {list(partitions)}"
