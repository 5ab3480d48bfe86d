"""What a task does for a stage: run its share of the map tasks and report each.

Invariant: a map task that is already finished, by an earlier try of this task or by another run
over the same inputs, is reported and not run. A map task that cannot read an earlier stage's output
reports all outputs that it finds lost; the task itself does not fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Self

import pyarrow as pa

from millrace.config import Config
from millrace.engine.operator_profile import (
    OperatorMeasure,
    decode_measures,
    encode_measures,
    profiled,
)
from millrace.engine.stage_work import PassThrough, Work
from millrace.engine.task_inputs import TaskInput
from millrace.execute.lost_outputs import LOSSES, Lost, decode_lost, encode_lost, find_lost
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TaskTry, TaskWork
from millrace.faults import fault
from millrace.identity.versions import check_versions
from millrace.ids import (
    FIRST_ATTEMPT,
    Attempt,
    FolderId,
    MapTask,
    MapTaskId,
    QueryId,
    StageId,
)
from millrace.keys import Partitioner
from millrace.scan.engine_parquet import native_rows
from millrace.scan.source import SplitReader, has_content
from millrace.scan.splits import MapInput
from millrace.scan.value_location import where_is
from millrace.shuffle import reuse
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex, decode_json, encode_json
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.writer import Provenance, begin_next_attempt, write_map_output
from millrace.storage.store import Store

Reuse = bool | Literal["verified"]
"""Whether finished work is used again; "verified": after every byte of it was checked."""
RESULT_SCHEMA: Final = pa.schema(
    [
        ("map_task", pa.int64()),
        ("folder", pa.string()),
        ("agent", pa.string()),
        ("ran", pa.bool_()),
        ("index_bytes", pa.int64()),
        ("index", pa.binary()),
        ("lost", pa.string()),
        ("operators", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class FilePart:
    """Files that a task reads, in order."""

    reader: SplitReader
    inputs: tuple[MapInput, ...]


@dataclass(frozen=True, slots=True)
class ShufflePart:
    """Partitions of an earlier stage that a task reads; `source` counts in the stage's sources.

    With `outputs`, only the outputs at these positions in the manifest.
    """

    source: int
    partitions: tuple[int, ...]
    outputs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStage:
    """What every task of a stage needs to know."""

    query_id: QueryId
    stage_id: StageId
    schema: pa.Schema
    partitioner: Partitioner
    config: Config
    folders: Folders
    versions: Mapping[str, str]
    sources: tuple[Manifest, ...] = ()
    addresses: Mapping[FolderId, str] = field(default_factory=dict)
    reuse: Reuse = True
    profile: bool = False
    """Whether tasks measure the operators of their queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """One map task: what it reads and what it is made from (None: it can never be reused).

    `suspect` says why its finished output is in doubt: it is reused only if every byte is right.
    """

    map_task: MapTask
    parts: tuple[FilePart | ShufflePart, ...]
    bytes: int
    made_from: Mapping[str, Any] | None
    work: Work = field(default_factory=PassThrough)
    recent: Mapping[str, str] = field(default_factory=dict)
    suspect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A map task that is finished, the folder of its output, and what its operators did."""

    map_task: MapTask
    folder: FolderId | None
    agent: str | None
    ran: bool
    index: MapTaskIndex
    operators: tuple[OperatorMeasure, ...] = ()


@dataclass(frozen=True, slots=True)
class MapTaskFailed:
    """A map task that could not read what earlier stages wrote."""

    map_task: MapTask
    lost: tuple[Lost, ...]


def run_stage_tasks(stage: MapStage, shares: Sequence[Sequence[StageTask]]) -> TaskWork:
    """What tasks do for a stage: task n runs the map tasks of share n."""

    def run(this: TaskTry) -> Iterator[pa.RecordBatch]:
        check_versions(stage.versions)
        with _Inputs(stage) as inputs:
            for task in shares[this.number]:
                yield encode_result(_run_task(stage, task, inputs, this))

    return run


def write_rows(stage: MapStage, this: TaskTry, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Write rows that a task was given as its map output; returns the result for the driver."""
    check_versions(stage.versions)
    folder, agent, store = stage.folders.here(stage.config)
    map_task = MapTask(this.number)
    index = _write(stage, store, map_task, batches, None, this)
    return encode_result(
        Result(map_task=map_task, folder=folder, agent=agent, ran=True, index=index)
    )


def write_nothing(stage: MapStage, store: Store) -> Result:
    """In the driver: an empty map output, for a stage that would have none."""
    map_task = MapTask(0)
    index = _write(stage, store, map_task, iter(()), None, TaskTry(map_task, 0))
    return Result(map_task=map_task, folder=None, agent=None, ran=True, index=index)


def encode_result(result: Result | MapTaskFailed) -> pa.RecordBatch:
    """Encode a result as one row for the driver."""
    row: list[Any]
    match result:
        case Result():
            index = encode_json(result.index)
            packed = pa.Codec("zstd").compress(index).to_pybytes()
            row = [result.map_task, result.folder, result.agent, result.ran, len(index), packed]
            row += [None, encode_measures(result.operators)]
        case MapTaskFailed(map_task, lost):
            row = [map_task, None, None, True, None, None, encode_lost(lost), None]
    columns = [pa.array([value], f.type) for value, f in zip(row, RESULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT_SCHEMA)


def decode_results(table: pa.Table) -> list[Result | MapTaskFailed]:
    """Decode the results of all tasks, in the driver."""
    results: list[Result | MapTaskFailed] = []
    for row in table.to_pylist():
        map_task = MapTask(row["map_task"])
        if row["lost"] is not None:
            results.append(MapTaskFailed(map_task, tuple(decode_lost(row["lost"]))))
            continue
        packed, size = row["index"], row["index_bytes"]
        payload = pa.Codec("zstd").decompress(packed, decompressed_size=size).to_pybytes()
        folder = row["folder"]
        results.append(
            Result(
                map_task=map_task,
                folder=None if folder is None else FolderId(folder),
                agent=row["agent"],
                ran=row["ran"],
                index=decode_json(payload, where=f"the result of map task {map_task}"),
                operators=decode_measures(row["operators"]),
            )
        )
    return results


def finished_results(table: pa.Table) -> list[Result]:
    """The results of tasks that read no earlier stages, and so find nothing lost."""
    results = decode_results(table)
    assert not any(isinstance(result, MapTaskFailed) for result in results)
    return [result for result in results if isinstance(result, Result)]


def _run_task(
    stage: MapStage, task: StageTask, inputs: _Inputs, this: TaskTry
) -> Result | MapTaskFailed:
    folder, agent, store = stage.folders.here(stage.config)
    fault("shuffle.task.start", stage.stage_id)
    done = _finished(stage, store, task)
    if done is not None:
        return Result(map_task=task.map_task, folder=folder, agent=agent, ran=False, index=done)
    made = None
    if task.made_from is not None:
        made = Provenance(made_from=task.made_from, recent=task.recent)
    operators: list[OperatorMeasure] = []
    try:
        opened = [inputs.open(part) for part in task.parts]
        with profiled() if stage.profile else nullcontext(operators) as operators:
            rows = task.work.rows(opened, stage.config, store.spill_folder())
            index = _write(stage, store, task.map_task, rows, made, this)
    except LOSSES:
        lost = inputs.find_lost(task)
        if not lost:
            raise
        return MapTaskFailed(task.map_task, lost)
    return Result(
        map_task=task.map_task,
        folder=folder,
        agent=agent,
        ran=True,
        index=index,
        operators=tuple(operators),
    )


class _Inputs:
    """Opens what tasks read; earlier stages from this host's folders or through agents.

    The index of an earlier map output is read once, however many tasks read parts of it.
    """

    def __init__(self, stage: MapStage) -> None:
        self._stage = stage
        self._agents = stage.folders.agents(stage.config, stage.addresses.get)
        stores = stage.folders.stores(stage.config) if stage.sources else {}
        self._sources = [
            Shuffle(manifest=manifest, stores=stores, remote=self._agents)
            for manifest in stage.sources
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._agents.close()

    def open(self, part: FilePart | ShufflePart) -> TaskInput:
        """The rows of a part."""
        if isinstance(part, ShufflePart):
            return TaskInput(partial(self._shuffled, part))
        native = partial(native_rows, part.reader, part.inputs)
        find = partial(where_is, part.reader, part.inputs, batch_bytes=self._batch_bytes)
        return TaskInput(partial(self._from_files, part), native, find)

    @property
    def _batch_bytes(self) -> int:
        return max(1, self._stage.config.task_memory_bytes_max // 16)

    def _from_files(self, part: FilePart) -> pa.RecordBatchReader:
        size = self._batch_bytes
        rows = (batch for split in part.inputs for batch in part.reader.batches(split, size))
        return pa.RecordBatchReader.from_batches(part.reader.schema, rows)

    def _shuffled(self, part: ShufflePart) -> pa.RecordBatchReader:
        shuffle = self._read(part)
        rows = (batch for number in part.partitions for batch in shuffle.batches(number))
        return pa.RecordBatchReader.from_batches(shuffle.schema, rows)

    def find_lost(self, task: StageTask) -> tuple[Lost, ...]:
        """All that a task cannot read of earlier stages."""
        return tuple(
            lost
            for part in task.parts
            if isinstance(part, ShufflePart)
            for lost in find_lost(self._read(part), part.partitions)
        )

    def _read(self, part: ShufflePart) -> Shuffle:
        return self._sources[part.source].of_outputs(part.outputs)


def _finished(stage: MapStage, store: Store, task: StageTask) -> MapTaskIndex | None:
    """What another run, or an earlier try of this task, finished meanwhile."""
    if task.made_from is None:
        return None
    verify = stage.reuse == "verified" or task.suspect is not None
    done = reuse.find(store, task.made_from, has_content=has_content, verify=verify)
    if done is not None and not stage.reuse and done.id.task.query_id != stage.query_id:
        return None
    return done


def _write(
    stage: MapStage,
    store: Store,
    map_task: MapTask,
    batches: Iterator[pa.RecordBatch],
    made: Provenance | None,
    this: TaskTry,
) -> MapTaskIndex:
    task = MapTaskId(stage.query_id, stage.stage_id, map_task)
    first = Attempt(FIRST_ATTEMPT + this.failed_before)
    return write_map_output(
        store,
        begin_next_attempt(store, task, first),
        batches,
        schema=stage.schema,
        partitioner=stage.partitioner,
        config=stage.config,
        now_ms=_now_ms,
        provenance=made,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
