"""Runs one stage on Spark: finds finished work, runs the rest, decides which attempts count.

Invariant: choices are recorded before they are used, and a manifest names exactly one attempt of
each map task, whatever tries, copies or twins there were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import DataLost, Retriable
from millrace.execute.lost_outputs import Lost, OutputsLost, StageRound
from millrace.execute.stage_progress import StageProgress
from millrace.execute.task_folders import Folders
from millrace.faults import fault
from millrace.ids import MapTask
from millrace.scan.source import has_content
from millrace.scan.splits import share_out
from millrace.shuffle import cleanup, reuse, runs
from millrace.shuffle.handle import Shuffle, StageReport
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.known_outputs import KnownOutputs
from millrace.shuffle.manifest import Choice, Manifest
from millrace.spark import map_task
from millrace.spark.map_task import MapStage, MapTaskFailed, Result, StageTask
from millrace.spark.session import slots
from millrace.spark.spark_tasks import run_tasks
from millrace.storage.local import Store
from millrace.transport.agent.agent_addresses import known_agents, record_agent
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents

_ROUNDS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleWorkspace:
    """The workspace as a shuffle job sees it."""

    store: Store
    folders: Folders
    config: Config
    agents: Agents
    keep_alive: KeepAlive


@dataclass(slots=True)
class StageRun:
    """A stage on its way: what is finished and why the rest is not."""

    stage: MapStage
    tasks: Sequence[StageTask]
    unrecognised: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    done: dict[MapTask, Result] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def missing(self) -> list[StageTask]:
        """Map tasks without an output."""
        return [task for task in self.tasks if task.map_task not in self.done]

    def so_far(self) -> StageRound:
        """Which tasks were run, which were found finished."""
        ran = {n: self.reasons.get(n, "") for n, result in self.done.items() if result.ran}
        return StageRound(
            ran=ran,
            reused=frozenset(self.done.keys() - ran.keys()),
            seconds=self.seconds,
            notes=tuple(self.choices.get("reading", ())),
        )


def run_stage(
    spark: SparkSession,
    place: ShuffleWorkspace,
    work: StageRun,
    *,
    check: Callable[[], None] = lambda: None,
) -> Shuffle:
    """Run what is not finished yet and decide; `check` raises when this is no longer wanted."""
    started = time.monotonic()
    try:
        _finish_all(spark, place, work, check)
    finally:
        work.seconds = time.monotonic() - started
    results = [work.done[task.map_task] for task in work.tasks]
    reported = StageReport(
        map_tasks=len(results),
        reused=sum(not result.ran for result in results),
        seconds=work.seconds,
        reasons=work.reasons,
    )
    return decide(place, work.stage, results, reported, choices=work.choices)


def _finish_all(
    spark: SparkSession, place: ShuffleWorkspace, work: StageRun, check: Callable[[], None]
) -> None:
    """Reuse, run the rest, and see that all of it is still there."""
    _reuse_finished(place, work)
    for _ in range(_ROUNDS_MAX):
        check()
        if work.missing():
            _run_missing(spark, place, work, check)
        _keep_whole(place, work)
        if not work.missing():
            return
    run = work.stage.query_id
    raise DataLost(
        f"map outputs vanished {_ROUNDS_MAX} times while run {run} was made\n"
        "  to fix: see who removes files from the workspace, then run again"
    )


def decide(
    place: ShuffleWorkspace,
    stage: MapStage,
    results: Sequence[Result],
    reported: StageReport,
    *,
    choices: Mapping[str, Any],
) -> Shuffle:
    """Write the manifest, sweep what the tasks left, and hand out the shuffle."""
    for result in results:
        if result.folder is not None and result.agent is not None:
            record_agent(place.store, result.folder, result.agent)
            place.keep_alive.add(result.folder)
    decided = put_together(place, stage, results, reported, choices=choices)
    fault("shuffle.driver.before_manifest", stage.stage_id)
    runs.write_manifest(place.store, decided.manifest, sync=place.config.sync)
    fault("shuffle.driver.after_manifest", stage.stage_id)
    cleanup.sweep_stage(place.store, stage.query_id, stage.stage_id)
    return decided


def put_together(
    place: ShuffleWorkspace,
    stage: MapStage,
    results: Sequence[Result],
    reported: StageReport,
    *,
    choices: Mapping[str, Any],
) -> Shuffle:
    """The shuffle that these results make, its manifest not written yet."""
    count = stage.partitioner.partitions
    rows = np.zeros(count, np.int64)
    size = np.zeros(count, np.int64)
    registry = KnownOutputs()
    for result in results:
        rows += np.array([meta.rows for meta in result.index.partitions])
        size += np.array([meta.bytes for meta in result.index.partitions])
        registry.register(result.index, result.folder)
    manifest = Manifest(
        query_id=stage.query_id,
        stage_id=stage.stage_id,
        created_at_ms=time.time_ns() // 1_000_000,
        partitions=count,
        partitioner=dict(stage.partitioner.describe()),
        schema=stage.schema,
        chosen=tuple(_choice(result) for result in results),
        partition_rows=tuple(rows.tolist()),
        partition_bytes=tuple(size.tolist()),
        choices=choices,
    )
    return Shuffle(
        manifest=manifest,
        stores={None: place.store},
        remote=place.agents,
        report=reported,
        registry=registry,
    )


def _reuse_finished(place: ShuffleWorkspace, work: StageRun) -> None:
    """Find finished work of other runs, say that it is needed, then see that it is still there."""
    found = _find_here(place, work)
    relied = [index.id for index in found.values()]
    runs.rely_on(place.store, work.stage.query_id, work.stage.stage_id, relied)
    fault("shuffle.driver.after_rely", work.stage.stage_id)
    whole = place.store.each(lambda index: reuse.is_whole(place.store, index), found.values())
    for (number, index), is_whole in zip(found.items(), whole, strict=True):
        if is_whole:
            work.done[number] = _found_here(number, index)
        else:
            work.reasons[number] = f"attempt {index.id} was removed just now"
    _find_elsewhere(place, work)


def foresee(place: ShuffleWorkspace, work: StageRun) -> Shuffle | None:
    """Find finished work and leave it at that; what the stage has written if that is all of it."""
    for number, index in _find_here(place, work).items():
        work.done[number] = _found_here(number, index)
    _find_elsewhere(place, work)
    if work.missing():
        return None
    results = [work.done[task.map_task] for task in work.tasks]
    return put_together(place, work.stage, results, StageReport(), choices=work.choices)


def _find_here(place: ShuffleWorkspace, work: StageRun) -> dict[MapTask, MapTaskIndex]:
    """Finished work in the workspace's own folder; notes the reasons where there is none."""
    how = work.stage.reuse

    def find(task: StageTask) -> MapTaskIndex | str:
        if task.made_from is None:
            return work.unrecognised or "not recognised"
        if how == "no":
            return "reuse was switched off"
        verify = how == "verified" or task.suspect is not None
        index = reuse.find(place.store, task.made_from, has_content=has_content, verify=verify)
        return index or task.suspect or reuse.why_not(place.store, task.made_from)

    found: dict[MapTask, MapTaskIndex] = {}
    for task, answer in zip(work.tasks, place.store.each(find, work.tasks), strict=True):
        if isinstance(answer, str):
            work.reasons[task.map_task] = answer
        else:
            found[task.map_task] = answer
    return found


def _found_here(number: MapTask, index: MapTaskIndex) -> Result:
    return Result(map_task=number, folder=None, agent=None, ran=False, index=index)


def _find_elsewhere(place: ShuffleWorkspace, work: StageRun) -> None:
    how = work.stage.reuse
    if how != "no":
        _reuse_elsewhere(place, work, suspect=False, verify=how == "verified")
        _reuse_elsewhere(place, work, suspect=True, verify=True)


def _reuse_elsewhere(
    place: ShuffleWorkspace, work: StageRun, *, suspect: bool, verify: bool
) -> None:
    """Ask the agents of other hosts for work that is not finished here."""
    for folder, address in known_agents(place.store).items():
        missing = [task for task in work.missing() if (task.suspect is not None) == suspect]
        asked = [(t.map_task, t.made_from) for t in missing if t.made_from is not None]
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
    spark: SparkSession, place: ShuffleWorkspace, work: StageRun, check: Callable[[], None]
) -> None:
    missing = work.missing()
    config = place.config
    shares = share_out(
        [task.bytes for task in missing],
        slots=slots(spark, config),
        bytes_max=config.spark_task_bytes_max,
        runners_max=config.spark_tasks_max,
    )
    stage = work.stage
    function = map_task.run_stage_tasks(stage, [[missing[n] for n in share] for share in shares])
    with StageProgress(place.store, stage.query_id, stage.stage_id, total=len(missing)) as progress:

        def watch() -> None:
            check()
            progress.look()

        schema = map_task.RESULT_SCHEMA
        table = run_tasks(spark, config, len(shares), function, schema, watch=watch)
    fault("shuffle.driver.after_tasks", stage.stage_id)
    lost: list[Lost] = []
    for result in map_task.decode_results(table):
        match result:
            case Result():
                work.done[result.map_task] = result
                if not result.ran:
                    work.reasons.pop(result.map_task, None)
            case MapTaskFailed():
                lost += result.lost
    if lost:
        raise OutputsLost(lost)


def _keep_whole(place: ShuffleWorkspace, work: StageRun) -> None:
    """Say which other runs' outputs are needed; what vanished before that counts as missing."""
    others = {
        number: result.index
        for number, result in work.done.items()
        if result.folder is None and result.index.id.task.query_id != work.stage.query_id
    }
    relied = [index.id for index in others.values()]
    runs.rely_on(place.store, work.stage.query_id, work.stage.stage_id, relied)
    whole = place.store.each(lambda index: reuse.is_whole(place.store, index), others.values())
    for (number, index), is_whole in zip(others.items(), whole, strict=True):
        if not is_whole:
            del work.done[number]
            work.reasons[number] = f"attempt {index.id} was removed just now"


def _choice(result: Result) -> Choice:
    index = result.index
    return Choice(
        map_task=result.map_task,
        attempt=index.id,
        folder=result.folder,
        content=index.content_checksum(),
        rows=index.rows,
        bytes=index.bytes,
    )
