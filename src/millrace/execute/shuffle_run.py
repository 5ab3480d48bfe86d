"""Shuffles files: a run of one stage, whose tasks give every row to its partition."""

from __future__ import annotations

import getpass
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.execute.map_task import FilePart, MapStage, Reuse, StageTask
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_progress import print_summary
from millrace.execute.stage_run import run_stage
from millrace.execute.stage_tasks import StageRun
from millrace.execute.task_runner import TaskRunner
from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable
from millrace.identity.versions import versions
from millrace.ids import MapTask, QueryId, StageId
from millrace.keys import CustomPartitioner, Partitioner
from millrace.log_lines import log_ids
from millrace.metrics.traces import run_span
from millrace.scan.source import FileSource
from millrace.scan.splits import MapInput, cut
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.storage.store import Store
from millrace.text import counted

STAGE: Final = StageId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleRequest:
    """What the user wants, beside the rows."""

    partitioner: Partitioner
    reuse: Reuse = True
    plan: str
    choices: Mapping[str, Any] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """For the record of the run."""
        return {"partitioner": dict(self.partitioner.describe())}


def shuffle_files(
    runner: TaskRunner, workspace: ShuffleWorkspace, source: FileSource, request: ShuffleRequest
) -> Shuffle:
    """Shuffle files: each map task reads its part natively."""
    tasks, unrecognised = _file_tasks(workspace, source, request)
    about = {"map_tasks": len(tasks), "choices": dict(request.choices), **request.about()}
    run = begin_run(workspace.store, runner.about(), request.plan, about)
    with (
        log_ids(run=run.query_id),
        run_span("shuffle"),
        runs.heartbeat(workspace.store, run.query_id, workspace.config) as heart,
    ):
        stage = map_stage(workspace, run.query_id, source.schema, request)
        title = f"shuffle {run.query_id} of {counted(len(source.shapes), 'file')}"
        work = StageRun(stage, tasks, unrecognised, choices=request.choices, title=title)
        shuffle = run_stage(runner, workspace, work, check=heart.check)
    print_summary(shuffle)
    return shuffle


def begin_run(
    store: Store, runner: Mapping[str, Any], plan: str, about: Mapping[str, Any]
) -> runs.Run:
    """Claim a run's number and record runner and plan; `runner` as `TaskRunner.about` gives it."""
    libraries = {**versions(), **runner["versions"], "python": platform.python_version()}
    everything = {
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        **runner,
        "versions": libraries,
        **about,
    }
    now_ms = time.time_ns() // 1_000_000
    return runs.begin_run(store, plan=plan, about=everything, now_ms=now_ms)


def map_stage(
    workspace: ShuffleWorkspace, query_id: QueryId, schema: pa.Schema, request: ShuffleRequest
) -> MapStage:
    """What every task of the shuffle needs to know."""
    return MapStage(
        query_id=query_id,
        stage_id=STAGE,
        schema=schema,
        partitioner=request.partitioner,
        config=workspace.config,
        folders=workspace.folders,
        versions=versions(),
        reuse=request.reuse,
    )


def _file_tasks(
    workspace: ShuffleWorkspace, source: FileSource, request: ShuffleRequest
) -> tuple[list[StageTask], str | None]:
    """The map tasks, each with what it is made from, or the reason why that is not known."""
    config = workspace.config
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
            parts=(FilePart(source.reader(), (split,)),),
            bytes=split.bytes,
            made_from=None if placed_by is None else _made_from(source, split, placed_by),
            recent=split.recent(),
        )
        for number, split in enumerate(inputs)
    ]
    return tasks, reason


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
