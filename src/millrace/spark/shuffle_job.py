"""Makes a shuffle on Spark: finds finished work, runs the rest, decides which attempts count.

Invariant: choices are recorded before they are used, and a manifest names exactly one attempt of
each map task, whatever tries, copies or twins there were.
"""

from __future__ import annotations

import getpass
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.errors import DataLost, Retriable
from millrace.faults import fault
from millrace.ids import AttemptId, MapTask, QueryId, StageId
from millrace.keys import CustomPartitioner, Partitioner
from millrace.scan.source import Source, has_content
from millrace.scan.splits import MapInput, cut, share_out
from millrace.shuffle import cleanup, reuse, runs
from millrace.shuffle.functions import Unrecognisable, function_identity
from millrace.shuffle.handle import RunReport, Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.manifest import Choice, Manifest
from millrace.shuffle.registry import Registry
from millrace.shuffle.store import LocalStore
from millrace.spark import map_task
from millrace.spark.folders import Folders
from millrace.spark.map_task import FileMapTask, MapStage, Result, Reuse
from millrace.spark.progress import Progress, print_summary
from millrace.spark.session import slots
from millrace.spark.tasks import collect, run_tasks
from millrace.spark.versions import versions
from millrace.transport.addresses import known_agents, record_agent
from millrace.transport.client import Agents
from millrace.transport.keep_alive import KeepAlive

STAGE: Final = StageId(0)
_ROUNDS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The workspace as a shuffle job sees it."""

    store: LocalStore
    folders: Folders
    config: Config
    agents: Agents
    keep_alive: KeepAlive


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for, beside the rows."""

    partitioner: Partitioner
    reuse: Reuse = "yes"
    plan: str
    choices: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Progressing:
    """A run on its way: what is finished and why the rest is not."""

    tasks: Sequence[FileMapTask]
    unrecognised: str | None
    done: dict[MapTask, Result] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def missing(self) -> list[FileMapTask]:
        """Map tasks without an output."""
        return [task for task in self.tasks if task.map_task not in self.done]


def shuffle_files(spark: SparkSession, place: Place, source: Source, request: Request) -> Shuffle:
    """Shuffle files: each map task reads its part natively."""
    started = time.monotonic()
    work = _plan_work(place, source, request)
    run = _begin(spark, place, request, map_tasks=len(work.tasks))
    with runs.heartbeat(place.store, run.query_id, place.config):
        _reuse_finished(place, run.query_id, work, request.reuse)
        stage = _stage(place, run.query_id, source.schema, request)
        for _ in range(_ROUNDS_MAX):
            if work.missing():
                _run_missing(spark, place, stage, source, work)
            _keep_whole(place, run.query_id, work)
            if not work.missing():
                break
        else:
            raise DataLost(
                f"map outputs vanished {_ROUNDS_MAX} times while run {run.query_id} was made\n"
                "  to fix: see who removes files from the workspace, then run again"
            )
        results = [work.done[task.map_task] for task in work.tasks]
        reported = RunReport(
            map_tasks=len(results),
            reused=sum(not result.ran for result in results),
            seconds=time.monotonic() - started,
            reasons=work.reasons,
        )
        return _decide(place, run.query_id, source.schema, request, results, reported)


def shuffle_frame(
    spark: SparkSession, place: Place, frame: DataFrame, schema: pa.Schema, request: Request
) -> Shuffle:
    """Shuffle a DataFrame: each of its partitions is a map task, and none can be reused."""
    started = time.monotonic()
    run = _begin(spark, place, request, map_tasks=None)
    with runs.heartbeat(place.store, run.query_id, place.config):
        stage = _stage(place, run.query_id, schema, request)
        frame = frame.mapInArrow(map_task.run_frame_tasks(stage), map_task.RESULT_SCHEMA)
        results = sorted(
            map_task.decode_results(collect(frame, spark)), key=lambda result: result.map_task
        )
        reported = RunReport(
            map_tasks=len(results),
            seconds=time.monotonic() - started,
            reasons={r.map_task: "rows of a DataFrame cannot be recognised" for r in results},
        )
        return _decide(place, run.query_id, schema, request, results, reported)


def _plan_work(place: Place, source: Source, request: Request) -> _Progressing:
    """The map tasks, each with what it is made from, if that can be told."""
    config = place.config
    inputs = cut(
        source.shapes,
        split_bytes_target=config.split_bytes_target,
        map_tasks_max=config.map_tasks_max,
    )
    try:
        placed_by = _recognise(request.partitioner)
        made_from: list[Mapping[str, Any] | None] = [
            _made_from(source, map_input, placed_by) for map_input in inputs
        ]
        reason = None
    except Unrecognisable as unrecognisable:
        made_from = [None] * len(inputs)
        reason = f"without version= the function is not recognised: {unrecognisable}"
    tasks = [
        FileMapTask(map_task=MapTask(number), input=map_input, made_from=made)
        for number, (map_input, made) in enumerate(zip(inputs, made_from, strict=True))
    ]
    return _Progressing(tasks, unrecognised=reason)


def _recognise(partitioner: Partitioner) -> dict[str, Any]:
    """What decides where rows go, a function's code included."""
    described = dict(partitioner.describe())
    if isinstance(partitioner, CustomPartitioner) and partitioner.version is None:
        described["function"] = function_identity(partitioner.function)
    return described


def _made_from(
    source: Source, map_input: MapInput, placed_by: Mapping[str, Any]
) -> Mapping[str, Any]:
    return {
        "inputs": map_input.identity(),
        "scan": source.describe(),
        "partitioner": placed_by,
        "versions": versions(),
    }


def _begin(
    spark: SparkSession, place: Place, request: Request, *, map_tasks: int | None
) -> runs.Run:
    about = {
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "versions": {
            **versions(),
            "pyspark": pyspark.__version__,
            "python": platform.python_version(),
        },
        "master": spark.conf.get("spark.master", None),
        "map_tasks": map_tasks,
        "choices": dict(request.choices),
        "partitioner": dict(request.partitioner.describe()),
    }
    now_ms = time.time_ns() // 1_000_000
    return runs.begin_run(place.store, plan=request.plan, about=about, now_ms=now_ms)


def _stage(place: Place, query_id: QueryId, schema: pa.Schema, request: Request) -> MapStage:
    return MapStage(
        query_id=query_id,
        stage_id=STAGE,
        schema=schema,
        partitioner=request.partitioner,
        config=place.config,
        folders=place.folders,
        reuse=request.reuse,
        versions=versions(),
    )


def _reuse_finished(place: Place, query_id: QueryId, work: _Progressing, how: Reuse) -> None:
    """Find finished work of other runs, say that it is needed, then see that it is still there."""
    found: dict[MapTask, MapTaskIndex] = {}
    for task in work.tasks:
        if task.made_from is None:
            work.reasons[task.map_task] = work.unrecognised or "not recognised"
        elif how == "no":
            work.reasons[task.map_task] = "reuse was switched off"
        else:
            index = reuse.find(
                place.store, task.made_from, has_content=has_content, verify=how == "verified"
            )
            if index is None:
                work.reasons[task.map_task] = reuse.why_not(place.store, task.made_from)
            else:
                found[task.map_task] = index
    runs.rely_on(place.store, query_id, STAGE, [index.id for index in found.values()])
    fault("shuffle.driver.after_rely")
    for number, index in found.items():
        if reuse.is_whole(place.store, index):
            work.done[number] = Result(
                map_task=number, folder=None, agent=None, ran=False, index=index
            )
        else:
            work.reasons[number] = f"attempt {index.id} was removed just now"
    if how != "no":
        _reuse_elsewhere(place, work, verify=how == "verified")


def _reuse_elsewhere(place: Place, work: _Progressing, *, verify: bool) -> None:
    """Ask the agents of other hosts for work that is not finished here."""
    for folder, address in known_agents(place.store).items():
        asked = [(t.map_task, t.made_from) for t in work.missing() if t.made_from is not None]
        if not asked:
            return
        try:
            found = place.agents.find(folder, [made for _, made in asked], verify=verify)
        except Retriable:
            for number, _ in asked:
                work.reasons[number] += f"; the agent at {address} does not answer"
            continue
        for (number, _), index in zip(asked, found, strict=True):
            if index is not None:
                work.done[number] = Result(
                    map_task=number, folder=folder, agent=address, ran=False, index=index
                )
                work.reasons.pop(number, None)


def _run_missing(
    spark: SparkSession, place: Place, stage: MapStage, source: Source, work: _Progressing
) -> None:
    missing = work.missing()
    config = place.config
    shares = share_out(
        [task.input.bytes for task in missing],
        slots=slots(spark),
        bytes_max=config.spark_task_bytes_max,
        runners_max=config.spark_tasks_max,
    )
    function = map_task.run_file_tasks(
        stage, source.reader(), [[missing[n] for n in share] for share in shares]
    )
    with Progress(place.store, stage.query_id, STAGE, total=len(missing)) as progress:
        table = run_tasks(spark, len(shares), function, map_task.RESULT_SCHEMA, watch=progress.look)
    fault("shuffle.driver.after_tasks")
    for result in map_task.decode_results(table):
        work.done[result.map_task] = result
        if not result.ran:
            work.reasons.pop(result.map_task, None)


def _keep_whole(place: Place, query_id: QueryId, work: _Progressing) -> None:
    """Say which other runs' outputs are needed; what vanished before that counts as missing."""
    others = {
        number: result.index
        for number, result in work.done.items()
        if result.folder is None and result.index.id.task.query_id != query_id
    }
    runs.rely_on(place.store, query_id, STAGE, [index.id for index in others.values()])
    for number, index in others.items():
        if not reuse.is_whole(place.store, index):
            del work.done[number]
            work.reasons[number] = f"attempt {index.id} was removed just now"


def _decide(
    place: Place,
    query_id: QueryId,
    schema: pa.Schema,
    request: Request,
    results: Sequence[Result],
    reported: RunReport,
) -> Shuffle:
    """Write the manifest, sweep what the tasks left, and hand out the shuffle."""
    count = request.partitioner.partitions
    rows = np.zeros(count, np.int64)
    size = np.zeros(count, np.int64)
    registry = Registry()
    for result in results:
        if result.folder is not None and result.agent is not None:
            record_agent(place.store, result.folder, result.agent)
            place.keep_alive.add(result.folder)
        rows += np.array([meta.rows for meta in result.index.partitions])
        size += np.array([meta.bytes for meta in result.index.partitions])
        registry.register(result.index, result.folder)
    decided = Manifest(
        query_id=query_id,
        stage_id=STAGE,
        created_at_ms=time.time_ns() // 1_000_000,
        partitions=count,
        partitioner=dict(request.partitioner.describe()),
        schema=schema,
        chosen=tuple(_choice(result) for result in results),
        partition_rows=tuple(rows.tolist()),
        partition_bytes=tuple(size.tolist()),
        choices=request.choices,
    )
    fault("shuffle.driver.before_manifest")
    runs.write_manifest(place.store, decided, sync=place.config.sync)
    fault("shuffle.driver.after_manifest")
    cleanup.sweep_stage(place.store, query_id, STAGE)
    shuffle = Shuffle(
        manifest=decided,
        stores={None: place.store},
        remote=place.agents,
        report=reported,
        registry=registry,
    )
    print_summary(shuffle)
    return shuffle


def _choice(result: Result) -> Choice:
    index = result.index
    attempt: AttemptId = index.id
    return Choice(
        map_task=result.map_task,
        attempt=attempt,
        folder=result.folder,
        content=index.content_checksum(),
        rows=index.rows,
        bytes=index.bytes,
    )
