"""Runs a dataset's plan: cuts it into stages and runs each, reusing what is finished.

A task is recognised by its query, its input files and the checksums of what it consumes of earlier
stages. Invariant: a task runs again if and only if something that it reads or does is not the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import DataLost
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
from millrace.spark.recovery import LOSSES, Lost, OutputsLost, Repairs, find_lost, report
from millrace.spark.shuffle_job import begin_run
from millrace.spark.stage_job import Place, StageRun, run_stage
from millrace.spark.versions import versions
from millrace.transport.addresses import known_agents


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


class QueryRun:
    """A plan on its way to an answer. What is lost on the way, or while it is read, is made again.

    Each round is a run of the workspace of its own; what an earlier round finished is reused.
    """

    def __init__(
        self, spark: SparkSession, place: Place, plan: Node, *, reuse: Reuse = "yes"
    ) -> None:
        for leaf in leaves(plan):
            if isinstance(leaf, Scan):
                check_current(leaf.source)
        self._spark, self._place, self._reuse = spark, place, reuse
        self._zone = spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"
        self._stages = plan_stages(plan, place.config)
        self._repairs = Repairs(place.config.query_repairs_max)
        self._rounds: dict[int, list[StageRun]] = {stage.number: [] for stage in self._stages}
        self._done: dict[int, Shuffle] = {}

    def finish(self) -> Shuffle:
        """Run all stages, again and again as long as what is lost can be made again."""
        while True:
            try:
                return self._round()
            except OutputsLost as error:
                self._note(error.lost)

    @property
    def reports(self) -> tuple[RunReport, ...]:
        """For each stage what ran and what was reused, over all rounds."""
        return tuple(
            report([work.so_far() for work in rounds], len(rounds[-1].tasks))
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

    def _note(self, lost: Sequence[Lost]) -> None:
        self._repairs.on_lost(lost, {n: done.manifest for n, done in self._done.items()})

    def _round(self) -> Shuffle:
        place, stages = self._place, self._stages
        run = begin_run(self._spark, place, explain(stages), {"stages": len(stages)})
        self._done = {}
        with runs.heartbeat(place.store, run.query_id, place.config):
            for stage in stages:
                work = _stage_run(
                    place, run.query_id, stage, self._done, zone=self._zone, reuse=self._reuse
                )
                doubts = self._repairs.of_stage(stage.number)
                work.tasks = [replace(t, suspect=doubts.get(t.map_task)) for t in work.tasks]
                self._rounds[stage.number].append(work)
                self._done[stage.number] = run_stage(self._spark, place, work)
        return self._done[stages[-1].number]


def run_query(spark: SparkSession, place: Place, plan: Node, *, reuse: Reuse = "yes") -> QueryRun:
    """Run a plan stage by stage; the answer's rows and reports are then read from the run."""
    run = QueryRun(spark, place, plan, reuse=reuse)
    run.finish()
    return run


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
