"""Tables of queries and shuffles: runs, stages, tasks and partitions, from their manifests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from millrace.errors import Corrupt, FormatError
from millrace.ids import QueryId, StageId
from millrace.shuffle import runs
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.runs import Run
from millrace.shuffle.stage_record import StageRecord
from millrace.storage import layout
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import (
    NUMBER,
    RATIO,
    TEXT,
    TEXTS,
    TIME,
    YES_NO,
    Asked,
    Column,
    SystemTable,
    table_of,
)

RunState = Literal["running", "finished", "died", "damaged"]
_US: Final = 1000
_LAST_RUN: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStage:
    """A finished stage of a run."""

    manifest: Manifest
    record: StageRecord | None

    @property
    def reads(self) -> tuple[tuple[int, int], ...]:
        """The stages that it read, as (run, stage)."""
        return self.record.reads if self.record else ()


def run_ids(workspace: RestingWorkspace, asked: Asked) -> list[QueryId]:
    """The runs that are asked for, newest first."""
    wanted = asked.number("run")
    numbers = [wanted] if wanted is not None else workspace.store.numbers(layout.SHUFFLE)[::-1]
    return [QueryId(number) for number in numbers[: asked.limit]]


def seen_run(workspace: RestingWorkspace, query_id: QueryId) -> Run | Corrupt | None:
    """What a run's file says; None if there is none, or one of a newer version."""
    if not 0 <= query_id <= _LAST_RUN or not workspace.store.exists(layout.query_path(query_id)):
        return None
    try:
        return runs.read_run(workspace.store, query_id)
    except Corrupt as damage:
        return damage
    except FormatError:
        return None


def seen_stages(workspace: RestingWorkspace, query_id: QueryId) -> Iterator[SeenStage]:
    """The finished stages of a run."""
    for stage_id in runs.stages(workspace.store, query_id):
        stage = seen_stage(workspace, query_id, stage_id)
        if stage is not None:
            yield stage


def seen_stage(
    workspace: RestingWorkspace, query_id: QueryId, stage_id: StageId
) -> SeenStage | None:
    """A stage of a run; None while it is not finished, or if its manifest cannot be read."""
    try:
        manifest = runs.find_manifest(workspace.store, query_id, stage_id)
        record = None if manifest is None else StageRecord.of_document(manifest.record)
    except (Corrupt, FormatError, ValueError, KeyError, TypeError, OSError, pa.ArrowException):
        return None
    return None if manifest is None else SeenStage(manifest=manifest, record=record)


def run_state(workspace: RestingWorkspace, run: Run | Corrupt, query_id: QueryId) -> RunState:
    """Whether a run is finished, goes on or died."""
    if isinstance(run, Corrupt):
        return "damaged"
    last = StageId(int(run.about.get("stages") or 1) - 1)
    if workspace.store.exists(layout.manifest_path(query_id, last)):
        return "finished"
    now_ms, config = workspace.now_ms(), workspace.config
    alive = runs.is_alive(workspace.store, query_id, now_ms=now_ms, config=config)
    return "running" if alive else "died"


def _runs(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    ids = run_ids(workspace, asked)
    rows = workspace.store.each(lambda query_id: run_row(workspace, query_id), ids)
    return table_of(filter(None, rows), RUNS.columns)


def run_row(workspace: RestingWorkspace, query_id: QueryId) -> dict[str, Any] | None:
    """A row of `runs`; None if there is no such run."""
    run = seen_run(workspace, query_id)
    if run is None:
        return None
    row: dict[str, Any] = {"run": query_id, "state": run_state(workspace, run, query_id)}
    if isinstance(run, Corrupt):
        return row
    last = StageId(int(run.about.get("stages") or 1) - 1)
    stage = seen_stage(workspace, query_id, last)
    manifest = None if stage is None else stage.manifest
    ended_ms = None if manifest is None else manifest.created_at_ms
    return row | {
        "name": run.about.get(runs.NAME),
        "began": run.created_at_ms * _US,
        "ended": None if ended_ms is None else ended_ms * _US,
        "seconds": None if ended_ms is None else (ended_ms - run.created_at_ms) / 1000,
        "stages": int(run.about.get("stages") or 1),
        "map_tasks": None if manifest is None else len(manifest.chosen),
        "reused": None if manifest is None else len(manifest.reused),
        "rows": None if manifest is None else sum(manifest.partition_rows),
        "bytes": None if manifest is None else sum(manifest.partition_bytes),
        "who": run.about.get("user"),
        "host": run.about.get("host"),
        "master": run.about.get("master"),
        "plan": run.plan,
    }


def _stages(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    rows = [
        stage_row(stage)
        for query_id in run_ids(workspace, Asked(equal=asked.equal))
        for stage in seen_stages(workspace, query_id)
    ]
    return table_of(rows, STAGES.columns)


def stage_row(stage: SeenStage) -> dict[str, Any]:
    """A row of `stages`."""
    manifest, record = stage.manifest, stage.record
    sizes, rows = manifest.partition_bytes, manifest.partition_rows
    fetched = None if record is None else record.fetched
    return {
        "run": manifest.query_id,
        "stage": manifest.stage_id,
        "began": None if record is None else record.began_ms * _US,
        "ended": manifest.created_at_ms * _US,
        "seconds": None if record is None else record.seconds,
        "map_tasks": len(manifest.chosen),
        "reused": len(manifest.reused),
        "partitions": manifest.partitions,
        "rows": sum(rows),
        "bytes": sum(sizes),
        "largest_partition_rows": max(rows, default=0),
        "largest_partition_bytes": max(sizes, default=0),
        "skew": skew(sizes),
        "partitioner": str(manifest.partitioner.get("kind", "")),
        "keys": list(map(str, manifest.partitioner.get("keys", ()))),
        "spilled_bytes": _spilled(record),
        "fetched_bytes": None if fetched is None else fetched.bytes,
        "fetch_queue_bytes_max": None if fetched is None else fetched.queued_bytes_max,
        "reads": [f"{run}/{number}" for run, number in stage.reads],
        "reasons": _reasons(record),
        "notes": list(record.notes) if record else [],
    }


def _spilled(record: StageRecord | None) -> int | None:
    return None if record is None or record.spilled is None else sum(record.spilled.values())


def _reasons(record: StageRecord | None) -> list[str]:
    return [f"{count} x {text}" for text, count in record.reasons.items()] if record else []


def skew(sizes: Sequence[int]) -> float | None:
    """How many times the mean the largest of some sizes is; None of nothing."""
    total = sum(sizes)
    return max(sizes) * len(sizes) / total if total else None


def _tasks(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    number = asked.number("stage")
    rows = [
        row
        for query_id in run_ids(workspace, Asked(equal=asked.equal))
        for stage in _wanted(workspace, query_id, number)
        for row in task_rows(stage)
    ]
    return table_of(rows, TASKS.columns)


def _wanted(
    workspace: RestingWorkspace, query_id: QueryId, number: int | None
) -> Iterator[SeenStage]:
    if number is None:
        return seen_stages(workspace, query_id)
    stage = seen_stage(workspace, query_id, StageId(number))
    return iter(() if stage is None else (stage,))


def task_rows(stage: SeenStage) -> Iterator[dict[str, Any]]:
    """The rows of `tasks` of a stage."""
    manifest = stage.manifest
    times = (
        {} if stage.record is None else {r["map_task"]: r for r in stage.record.times.to_pylist()}
    )
    spilled = None if stage.record is None else stage.record.spilled
    for choice in manifest.chosen:
        is_reused = choice.attempt.task.query_id != manifest.query_id
        time = times.get(choice.map_task, {})
        began, ended = time.get("began_ms"), time.get("ended_ms")
        yield {
            "run": manifest.query_id,
            "stage": manifest.stage_id,
            "task": choice.map_task,
            "attempt": str(choice.attempt),
            "reused": is_reused,
            "rows": choice.rows,
            "bytes": choice.bytes,
            "began": None if began is None else began * _US,
            "ended": None if ended is None else ended * _US,
            "seconds": None if began is None or ended is None else (ended - began) / 1000,
            "host": time.get("host"),
            "worker": time.get("worker"),
            "failed_before": time.get("failed_before"),
            "spilled_bytes": (
                spilled.get(choice.map_task, 0) if time and spilled is not None else None
            ),
            "folder": choice.folder,
        }


def _partitions(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    number = asked.number("stage")
    tables = [
        partitions_of(stage)
        for query_id in run_ids(workspace, Asked(equal=asked.equal))
        for stage in _wanted(workspace, query_id, number)
    ]
    return pa.concat_tables([PARTITIONS.schema.empty_table(), *tables])


def partitions_of(stage: SeenStage) -> pa.Table:
    """The rows of `partitions` of a stage."""
    manifest, count = stage.manifest, stage.manifest.partitions
    columns = [
        pa.array([manifest.query_id] * count, NUMBER),
        pa.array([manifest.stage_id] * count, NUMBER),
        pa.array(range(count), NUMBER),
        pa.array(manifest.partition_rows, NUMBER),
        pa.array(manifest.partition_bytes, NUMBER),
    ]
    return pa.Table.from_arrays(columns, schema=PARTITIONS.schema)


_RUN: Final = Column("run", NUMBER, "The number of the run.")
_STAGE: Final = Column("stage", NUMBER, "The number of the stage in its run; a shuffle has one, 0.")
RUNS: Final = SystemTable(
    name="runs",
    about="Queries and shuffles, newest first.",
    keys=("run",),
    columns=(
        _RUN,
        Column("name", TEXT, "The name that its user gave it, if any."),
        Column("state", TEXT, "`finished`, `running`, `died` or `damaged` (its file)."),
        Column("began", TIME, "When it began."),
        Column("ended", TIME, "When its last stage was finished."),
        Column("seconds", RATIO, "From its begin to its end."),
        Column("stages", NUMBER, "Stages that were planned; some may be left out as it runs."),
        Column("map_tasks", NUMBER, "Map tasks of the last stage."),
        Column("reused", NUMBER, "Those of them that an earlier run had finished."),
        Column("rows", NUMBER, "Rows of the answer."),
        Column("bytes", NUMBER, "Bytes of the answer."),
        Column("who", TEXT, "The user that ran it."),
        Column("host", TEXT, "The host of its driver."),
        Column("master", TEXT, "The Spark master that ran its tasks."),
        Column("plan", TEXT, "The plan in words, as `explain` shows it."),
    ),
    read=_runs,
)
STAGES: Final = SystemTable(
    name="stages",
    about="Finished stages of runs.",
    keys=("run",),
    columns=(
        _RUN,
        _STAGE,
        Column("began", TIME, "When it began; unknown for runs of earlier versions."),
        Column("ended", TIME, "When it was finished."),
        Column("seconds", RATIO, "How long it took."),
        Column("map_tasks", NUMBER, "Its map tasks."),
        Column("reused", NUMBER, "Those of them whose output an earlier run had made."),
        Column("partitions", NUMBER, "The partitions of its output."),
        Column("rows", NUMBER, "Rows that it gives."),
        Column("bytes", NUMBER, "Bytes that it gives."),
        Column("largest_partition_rows", NUMBER, "Rows of its largest partition."),
        Column("largest_partition_bytes", NUMBER, "Bytes of its largest partition."),
        Column("skew", RATIO, "Bytes of the largest partition, by the mean of all."),
        Column("partitioner", TEXT, "How rows are assigned to partitions: `hash`, `range`, ..."),
        Column("keys", TEXTS, "The columns that decide the partition."),
        Column("spilled_bytes", NUMBER, "Bytes that did not fit its tasks' memory."),
        Column("fetched_bytes", NUMBER, "Bytes that its tasks fetched from other hosts."),
        Column("fetch_queue_bytes_max", NUMBER, "The most that a read of them had asked ahead."),
        Column("reads", TEXTS, "The stages that it read, as `run/stage`."),
        Column("reasons", TEXTS, "Why tasks ran instead of being reused, with their number."),
        Column("notes", TEXTS, "What was decided after earlier stages had been measured."),
    ),
    read=_stages,
)
TASKS: Final = SystemTable(
    name="tasks",
    about="Map tasks of finished stages: the attempt that counts of each.",
    keys=("run", "stage"),
    columns=(
        _RUN,
        _STAGE,
        Column("task", NUMBER, "The number of the map task in its stage."),
        Column("attempt", TEXT, "The attempt that counts: `run/stage/task/attempt`."),
        Column("reused", YES_NO, "Whether the attempt belongs to an earlier run."),
        Column("rows", NUMBER, "Rows of its output."),
        Column("bytes", NUMBER, "Bytes of its output."),
        Column("began", TIME, "When it began; null if it was reused."),
        Column("ended", TIME, "When it ended."),
        Column("seconds", RATIO, "How long it took."),
        Column("host", TEXT, "The host that ran it."),
        Column("worker", NUMBER, "The process on that host: it runs one task at a time."),
        Column("failed_before", NUMBER, "How often its Spark task had failed before."),
        Column(
            "spilled_bytes", NUMBER, "Bytes that did not fit its memory; null if it was reused."
        ),
        Column("folder", TEXT, "The id of the host's own folder; null for the workspace's."),
    ),
    read=_tasks,
)
PARTITIONS: Final = SystemTable(
    name="partitions",
    about="Partitions of the outputs of finished stages.",
    keys=("run", "stage"),
    columns=(
        _RUN,
        _STAGE,
        Column("partition", NUMBER, "The number of the partition."),
        Column("rows", NUMBER, "Its rows, over all map tasks."),
        Column("bytes", NUMBER, "Its bytes, over all map tasks."),
    ),
    read=_partitions,
)
