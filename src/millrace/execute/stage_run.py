"""Runs one stage: finds finished work, runs the rest, chooses the attempts that count.

Invariant: choices are recorded before they are used, and a manifest names exactly one attempt of
each map task, however often a task was tried, and with any other runs at the same time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from millrace.errors import DataLost, OutOfMemory
from millrace.execute import map_task
from millrace.execute.finished_work import keep_whole, reuse_finished
from millrace.execute.lost_outputs import Lost, OutputsLost
from millrace.execute.map_task import MapStage, StageTask
from millrace.execute.output_merging import with_merged
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_progress import StageProgress
from millrace.execute.stage_tasks import StageRun
from millrace.execute.task_runner import TASK_BYTES_MAX, TaskRunner, Watch, never_stop
from millrace.execute.tasks import task_results
from millrace.execute.tasks.seen_outputs import SeenOutputs
from millrace.execute.tasks.task_results import MapTaskFailed, MapTaskTooLarge, Result
from millrace.faults import fault
from millrace.log_lines import log_ids
from millrace.metrics.process_metrics import SPILLED_BYTES
from millrace.metrics.traces import span
from millrace.scan.splits import SHARE_BYTES_MIN, share_out
from millrace.shuffle import cleanup, runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Choice, Manifest
from millrace.shuffle.reports import StageReport
from millrace.shuffle.stage_entries import StageTable
from millrace.shuffle.stage_record import StageRecord, counted_reasons, times_of
from millrace.text import counted
from millrace.transport.agent.agent_addresses import record_agent

_ROUNDS_MAX: Final = 3
_WAVE_GROWTH: Final = 4

_log = logging.getLogger(__name__)


def run_stage(
    runner: TaskRunner, workspace: ShuffleWorkspace, work: StageRun, *, check: Watch = never_stop
) -> Shuffle:
    """Run the map tasks that are not finished yet, and write the stage's manifest.

    `check` raises when the stage is no longer wanted.
    """
    with log_ids(run=work.stage.query_id, stage=work.stage.stage_id), span("stage"):
        return _run_stage(runner, workspace, work, check)


def _run_stage(
    runner: TaskRunner, workspace: ShuffleWorkspace, work: StageRun, check: Watch
) -> Shuffle:
    started = time.monotonic()
    try:
        reuse_finished(workspace, work)
        work.on_results()
        _log_reuse(work)
        _run_until_whole(runner, workspace, work, check)
    finally:
        work.seconds = time.monotonic() - started
    results = [work.results[task.map_task] for task in work.tasks]
    report = StageReport(
        map_tasks=len(results),
        reused=sum(not result.ran for result in results),
        seconds=work.seconds,
        reasons=work.reasons,
    )
    merge = partial(with_merged, runner, workspace, title=work.title, watch=check)
    return publish(workspace, work.stage, results, report, choices=work.choices, merge=merge)


def _log_reuse(work: StageRun) -> None:
    missing = len(work.missing())
    total = counted(len(work.tasks), "task")
    if missing:
        _log.info("%s: running %d of %s, the rest is reused", work.title, missing, total)
    else:
        _log.info("%s: all of %s reused", work.title, total)
    for number, reason in work.reasons.items():
        _log.debug("%s: map task %d runs: %s", work.title, number, reason)


def _run_until_whole(
    runner: TaskRunner, workspace: ShuffleWorkspace, work: StageRun, check: Watch
) -> None:
    """Run what is missing; again if outputs of other runs vanished meanwhile."""
    for _ in range(_ROUNDS_MAX):
        check()
        _run_in_waves(runner, workspace, work, check)
        keep_whole(workspace, work)
        if not work.missing():
            return
        _log.info("%s: %d outputs vanished, running again", work.title, len(work.missing()))
    raise DataLost(
        f"map outputs vanished {_ROUNDS_MAX} times while run {work.stage.query_id} was made\n"
        "  to fix: see who removes files from the workspace, then run again"
    )


def _run_in_waves(
    runner: TaskRunner, workspace: ShuffleWorkspace, work: StageRun, check: Watch
) -> None:
    """Run what is missing; if the first rows are enough, few tasks first, then more and more."""
    wave = len(work.tasks) if work.rows_wanted is None else 1
    while not work.cut_when_enough() and work.missing():
        _run_missing(runner, workspace, work, check, tasks_max=wave)
        wave *= _WAVE_GROWTH


def _run_missing(
    runner: TaskRunner,
    workspace: ShuffleWorkspace,
    work: StageRun,
    check: Watch,
    *,
    tasks_max: int,
) -> None:
    missing, stage, config = work.missing()[:tasks_max], work.stage, workspace.config
    slots = runner.slots()
    shares = share_out(
        [_share_bytes(task) for task in missing],
        slots=slots,
        bytes_max=TASK_BYTES_MAX,
        runners_max=config.spark_tasks_max,
        in_order=work.in_order,
    )
    stage = _with_idle_threads(runner, stage, slots // max(1, len(shares)))
    tasks = map_task.stage_work_of(stage, [[missing[n] for n in share] for share in shares])
    numbers = [task.map_task for task in missing]
    seen = SeenOutputs(workspace.store, stage.query_id, stage.stage_id, numbers)
    with StageProgress(stage.query_id, stage.stage_id, total=len(missing)) as progress:

        def watch() -> None:
            check()
            if progress.is_shown or work.in_order:
                outputs = seen.look()
                work.on_outputs(outputs)
                progress.on_outputs(outputs)

        title = f"{work.title}, {counted(len(missing), 'task')}"
        table = runner.run(tasks, len(shares), task_results.RESULT_SCHEMA, title=title, watch=watch)
    fault("shuffle.driver.after_tasks", stage.stage_id)
    lost: list[Lost] = []
    too_large: list[str] = []
    for result in task_results.decode_results(table):
        match result:
            case Result():
                work.take(result)
                if not result.ran:
                    work.reasons.pop(result.map_task, None)
            case MapTaskFailed():
                lost += result.lost
            case MapTaskTooLarge():
                too_large.append(result.text)
    work.on_results()
    if too_large:
        raise OutOfMemory(too_large[0])
    if lost:
        raise OutputsLost(lost)


def _share_bytes(task: StageTask) -> int:
    """The size of a task; one that calls code of users may take long whatever it reads."""
    return max(task.bytes, SHARE_BYTES_MIN) if task.work.calls_users else task.bytes


def _with_idle_threads(runner: TaskRunner, stage: MapStage, slots: int) -> MapStage:
    """The stage with the threads of so many slots for each of its tasks."""
    threads = max(1, min(slots, stage.config.query_threads_max))
    if threads > 1:
        threads = min(threads, runner.slots_of_host())
    return replace(stage, threads=threads)


def publish(
    workspace: ShuffleWorkspace,
    stage: MapStage,
    results: Sequence[Result],
    report: StageReport,
    *,
    choices: Mapping[str, Any],
    merge: Callable[[Shuffle], Shuffle] | None = None,
) -> Shuffle:
    """Write the manifest, remove attempts that do not count, and return the shuffle.

    `merge` may put outputs together before the manifest names them.
    """
    for result in results:
        if result.folder is not None and result.agent is not None:
            record_agent(workspace.store, result.folder, result.agent)
            workspace.keep_alive.add(result.folder)
    shuffle = shuffle_of(workspace, stage, results, report, choices=choices)
    shuffle = _with_entries(workspace, shuffle if merge is None else merge(shuffle))
    fault("shuffle.driver.before_manifest", stage.stage_id)
    runs.write_manifest(workspace.store, shuffle.manifest, sync=workspace.config.sync)
    fault("shuffle.driver.after_manifest", stage.stage_id)
    SPILLED_BYTES.add(sum(_spilled(results).values()))
    cleanup.sweep_stage(workspace.store, stage.query_id, stage.stage_id)
    return shuffle


def _with_entries(workspace: ShuffleWorkspace, shuffle: Shuffle) -> Shuffle:
    """Write the entries of all outputs side by side, for later readers of one partition."""
    table, decided = shuffle.columns, shuffle.manifest
    # Of a single output, its own index is as quick to read.
    if not isinstance(table, StageTable) or len(decided.chosen) <= 1:
        return shuffle
    sync = workspace.config.sync
    if not table.write(workspace.store, decided.query_id, decided.stage_id, sync=sync):
        return shuffle
    return replace(shuffle, manifest=replace(decided, entries=table.sums()))


def shuffle_of(
    workspace: ShuffleWorkspace,
    stage: MapStage,
    results: Sequence[Result],
    report: StageReport,
    *,
    choices: Mapping[str, Any],
) -> Shuffle:
    """The shuffle that these results make, its manifest not written yet."""
    table = StageTable.of([result.index for result in results], stage.partitioner.partitions)
    manifest = Manifest(
        query_id=stage.query_id,
        stage_id=stage.stage_id,
        created_at_ms=time.time_ns() // 1_000_000,
        partitions=stage.partitioner.partitions,
        partitioner=dict(stage.partitioner.describe()),
        schema=stage.schema,
        chosen=tuple(_choice(result) for result in results),
        partition_rows=table.rows(),
        partition_bytes=table.bytes(),
        choices=choices,
        record=_record(stage, results, report).document(),
    )
    return Shuffle(
        manifest=manifest,
        stores={None: workspace.store},
        remote=workspace.agents,
        report=report,
        columns=table,
    )


def _record(stage: MapStage, results: Sequence[Result], report: StageReport) -> StageRecord:
    """How the stage came about, for people who look at it later."""
    return StageRecord(
        began_ms=time.time_ns() // 1_000_000 - round(report.seconds * 1000),
        seconds=report.seconds,
        reads=tuple((source.query_id, source.stage_id) for source in stage.sources),
        reasons=counted_reasons(list(report.reasons.values())),
        notes=report.notes,
        times=times_of((result.map_task, result.time) for result in results),
        spilled=_spilled(results),
        fetched=report.fetched,
    )


def _spilled(results: Sequence[Result]) -> dict[int, int]:
    """The bytes that tasks spilled, of those that did."""
    return {
        result.map_task: result.time.spilled_bytes
        for result in results
        if result.time is not None and result.time.spilled_bytes
    }


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
