"""Makes a shuffle on Spark, of files or of a DataFrame: one stage that passes rows on."""

from __future__ import annotations

import getpass
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from millrace.execute.stage_progress import print_summary
from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable
from millrace.identity.versions import versions
from millrace.ids import MapTask, QueryId, StageId
from millrace.keys import CustomPartitioner, Partitioner
from millrace.scan.source import FileSource
from millrace.scan.splits import MapInput, cut
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle, StageReport
from millrace.spark import map_task
from millrace.spark.map_task import FilePart, MapStage, Reuse, StageTask
from millrace.spark.spark_presence import setting
from millrace.spark.spark_tasks import collect
from millrace.spark.stage_job import ShuffleWorkspace, StageRun, decide, run_stage
from millrace.storage.local import Store

STAGE: Final = StageId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for, beside the rows."""

    partitioner: Partitioner
    reuse: Reuse = "yes"
    plan: str
    choices: Mapping[str, Any] = field(default_factory=dict)


def shuffle_files(
    spark: SparkSession, place: ShuffleWorkspace, source: FileSource, request: Request
) -> Shuffle:
    """Shuffle files: each map task reads its part natively."""
    tasks, unrecognised = _file_tasks(place, source, request)
    about = {"map_tasks": len(tasks), "choices": dict(request.choices)}
    run = begin_run(spark, place, request.plan, {**about, **_placed_by(request)})
    with runs.heartbeat(place.store, run.query_id, place.config) as heart:
        stage = _stage(place, run.query_id, source.schema, request)
        work = StageRun(stage, tasks, unrecognised, choices=request.choices)
        shuffle = run_stage(spark, place, work, check=heart.check)
    print_summary(shuffle)
    return shuffle


def shuffle_frame(
    spark: SparkSession,
    place: ShuffleWorkspace,
    frame: DataFrame,
    schema: pa.Schema,
    request: Request,
) -> Shuffle:
    """Shuffle a DataFrame: each of its partitions is a map task, and none can be reused."""
    started = time.monotonic()
    run = begin_run(spark, place, request.plan, {"map_tasks": None, **_placed_by(request)})
    with runs.heartbeat(place.store, run.query_id, place.config) as heart:
        stage = _stage(place, run.query_id, schema, request)
        function = map_task.run_frame_tasks(stage)
        table = collect(
            lambda: frame.mapInArrow(function, map_task.RESULT_SCHEMA),
            spark,
            place.config,
            watch=heart.check,
        )
        results = sorted(map_task.finished_results(table), key=lambda result: result.map_task)
        reported = StageReport(
            map_tasks=len(results),
            seconds=time.monotonic() - started,
            reasons={r.map_task: "rows of a DataFrame cannot be recognised" for r in results},
        )
        shuffle = decide(place, stage, results, reported, choices=request.choices)
    print_summary(shuffle)
    return shuffle


def begin_run(
    spark: SparkSession, place: ShuffleWorkspace, plan: str, about: Mapping[str, Any]
) -> runs.Run:
    """Claim a run's number and say who runs what."""
    master = setting(spark, place.config, "spark.master") or None
    return begin_run_on(place.store, master, plan, about)


def begin_run_on(store: Store, master: str | None, plan: str, about: Mapping[str, Any]) -> runs.Run:
    """The same where there is no session."""
    everything = {
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "versions": {
            **versions(),
            "pyspark": pyspark.__version__,
            "python": platform.python_version(),
        },
        "master": master,
        **about,
    }
    now_ms = time.time_ns() // 1_000_000
    return runs.begin_run(store, plan=plan, about=everything, now_ms=now_ms)


def _placed_by(request: Request) -> dict[str, Any]:
    return {"partitioner": dict(request.partitioner.describe())}


def _file_tasks(
    place: ShuffleWorkspace, source: FileSource, request: Request
) -> tuple[list[StageTask], str | None]:
    """The map tasks, each with what it is made from, or the reason that this cannot be told."""
    config = place.config
    inputs = cut(
        source.shapes,
        split_bytes_target=config.split_bytes_target,
        map_tasks_max=config.map_tasks_max,
    )
    placed_by, reason = None, None
    try:
        placed_by = _recognise(request.partitioner)
    except Unrecognisable as unrecognisable:
        reason = f"without version= the function is not recognised: {unrecognisable}"
    tasks = [
        StageTask(
            map_task=MapTask(number),
            parts=(FilePart(source.reader(), (one,)),),
            bytes=one.bytes,
            made_from=None if placed_by is None else _made_from(source, one, placed_by),
            recent=one.recent(),
        )
        for number, one in enumerate(inputs)
    ]
    return tasks, reason


def _stage(
    place: ShuffleWorkspace, query_id: QueryId, schema: pa.Schema, request: Request
) -> MapStage:
    return MapStage(
        query_id=query_id,
        stage_id=STAGE,
        schema=schema,
        partitioner=request.partitioner,
        config=place.config,
        folders=place.folders,
        versions=versions(),
        reuse=request.reuse,
    )


def _recognise(partitioner: Partitioner) -> dict[str, Any]:
    """What decides where rows go, a function's code included."""
    described = dict(partitioner.describe())
    if isinstance(partitioner, CustomPartitioner) and partitioner.version is None:
        described["function"] = function_identity(partitioner.function)
    return described


def _made_from(
    source: FileSource, map_input: MapInput, placed_by: Mapping[str, Any]
) -> Mapping[str, Any]:
    return {
        "inputs": map_input.identity(),
        "scan": source.describe(),
        "partitioner": placed_by,
        "versions": versions(),
    }
