"""What a task does for a stage: run its share of the map tasks and report each.

Invariant: a map task that is already finished, by an earlier try of this task or by another run
over the same inputs, is reported and not run. A map task that cannot read an earlier stage's output
reports all outputs that it finds lost, and one that needs too much memory reports that; the task
itself does not fail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, Protocol, Self

import pyarrow as pa

from millrace.config import Config
from millrace.engine.operator_profile import (
    OperatorMeasure,
    profiled,
)
from millrace.engine.partition_matches import groups_to_read
from millrace.engine.stage_work import PassThrough
from millrace.engine.task_inputs import TaskInput
from millrace.errors import OutOfMemory
from millrace.execute.lost_outputs import LOSSES, Lost, find_lost
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import SharedWork, TaskTry
from millrace.execute.tasks.task_results import (
    MapTaskFailed,
    MapTaskTooLarge,
    Outcome,
    Result,
    encode_result,
)
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
from millrace.log_lines import LogSettings, log_ids, show_as, shown_logs
from millrace.metrics.process_reports import reporting
from millrace.metrics.spills import task_spill
from millrace.metrics.traces import TracedWork, flush_spans, span, task_ids, traced_work
from millrace.plan.planner.partition_reads import RowsPart
from millrace.scan.engine_parquet import native_rows
from millrace.scan.source import SplitReader, has_content
from millrace.scan.splits import MapInput
from millrace.scan.value_location import where_is
from millrace.shuffle import reuse
from millrace.shuffle.fetch_counts import FetchCounts
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.stage_entries import SentColumns
from millrace.shuffle.stage_record import time_here
from millrace.shuffle.writer import Provenance, begin_next_attempt, write_map_output
from millrace.storage.store import Store

_LOG: Final = logging.getLogger(__name__)


class TaskRows(Protocol):
    """The work of a task, between reading and writing."""

    @property
    def calls_users(self) -> bool:
        """Whether it calls functions of users."""

    def rows(
        self, inputs: Sequence[TaskInput], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the task writes."""


Reuse = bool | Literal["verified"]
"""Whether finished work is used again; "verified": after every byte of it was checked."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """Files that a task reads, in order."""

    reader: SplitReader
    inputs: tuple[MapInput, ...]


@dataclass(frozen=True, slots=True)
class ShufflePart:
    """Partitions of an earlier stage that a task reads; `source` counts in the stage's sources.

    With `outputs`, only the outputs at these positions in the manifest; with `rows`, only a part of
    the rows of each partition there.
    """

    source: int
    partitions: tuple[int, ...]
    outputs: tuple[int, ...] | None = None
    rows: RowsPart | None = None
    sent: SentColumns | None = None
    """The entries of these partitions, for a host that does not see the workspace's folder."""


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
    threads: int = 1
    """How many threads the query of each task may have."""
    logs: LogSettings | None = field(default_factory=shown_logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """One map task: what it reads and what it is made from (None: it can never be reused).

    `suspect` says why its finished output is in doubt: it is reused only if every byte is right.
    """

    map_task: MapTask
    parts: tuple[FilePart | ShufflePart, ...]
    bytes: int
    made_from: Mapping[str, Any] | None
    work: TaskRows = field(default_factory=PassThrough)
    recent: Mapping[str, str] = field(default_factory=dict)
    suspect: str | None = None


@dataclass(frozen=True, slots=True)
class _StageWork:
    """What all tasks of a stage have in common. Many map tasks do the same work."""

    stage: MapStage
    works: tuple[TaskRows, ...]
    traced: TracedWork | None = field(default_factory=traced_work)

    def __call__(
        self, this: TaskTry, share: Sequence[tuple[StageTask, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Run the map tasks of a share."""
        stage = self.stage
        check_versions(stage.versions)
        show_as(stage.logs)
        ids = task_ids(self.traced)
        try:
            with _reported(stage), _Inputs(stage) as inputs:
                for task, work in share:
                    whole = replace(task, work=self.works[work])
                    about = {"run": stage.query_id, "stage": stage.stage_id, "task": task.map_task}
                    with log_ids(**ids, **about), span("task"):
                        made = encode_result(_run_task(stage, whole, inputs, this))
                    yield made
        finally:
            flush_spans(self.traced)


def _reported(stage: MapStage) -> AbstractContextManager[None]:
    """What this process counts is in the workspace meanwhile, if it sees the workspace."""
    folder, _, store = stage.folders.here(stage.config)
    return reporting(store) if folder is None else nullcontext()


def stage_work_of(stage: MapStage, shares: Sequence[Sequence[StageTask]]) -> SharedWork:
    """What tasks do for a stage: task n runs the map tasks of share n."""
    works = {id(task.work): task.work for share in shares for task in share}
    numbers = {key: number for number, key in enumerate(works)}
    nothing = PassThrough()
    return SharedWork(
        _StageWork(stage, tuple(works.values())),
        [
            [(replace(task, work=nothing), numbers[id(task.work)]) for task in share]
            for share in shares
        ],
        calls_users=any(work.calls_users for work in works.values()),
    )


def write_rows(stage: MapStage, this: TaskTry, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Write rows that a task was given as its map output; returns the result for the driver."""
    check_versions(stage.versions)
    folder, agent, store = stage.folders.here(stage.config)
    map_task = MapTask(this.number)
    began_ms = _now_ms()
    with task_spill() as spilled:
        index = _write(stage, store, map_task, batches, None, this)
    time = time_here(began_ms, _now_ms(), this.failed_before, spilled_bytes=spilled.bytes)
    return encode_result(
        Result(map_task=map_task, folder=folder, agent=agent, ran=True, index=index, time=time)
    )


def write_nothing(stage: MapStage, store: Store) -> Result:
    """In the driver: an empty map output, for a stage that would have none."""
    map_task = MapTask(0)
    index = _write(stage, store, map_task, iter(()), None, TaskTry(map_task, 0))
    return Result(map_task=map_task, folder=None, agent=None, ran=True, index=index)


def _run_task(stage: MapStage, task: StageTask, inputs: _Inputs, this: TaskTry) -> Outcome:
    folder, agent, store = stage.folders.here(stage.config)
    fault("shuffle.task.start", stage.stage_id)
    done = _finished(stage, store, task)
    if done is not None:
        return Result(map_task=task.map_task, folder=folder, agent=agent, ran=False, index=done)
    if this.failed_before:
        _LOG.info("the task is tried again: %d tries failed", this.failed_before)
    made = None
    if task.made_from is not None:
        made = Provenance(made_from=task.made_from, recent=task.recent)
    operators: list[OperatorMeasure] = []
    began_ms = _now_ms()
    fetched_before = inputs.fetched
    try:
        opened = [inputs.open(part) for part in task.parts]
        measured = profiled() if stage.profile else nullcontext(operators)
        with task_spill() as spilled, measured as operators:
            config = stage.config.with_options(query_threads_max=stage.threads)
            rows = task.work.rows(opened, config, store.spill_folder())
            index = _write(stage, store, task.map_task, rows, made, this)
    except OutOfMemory as error:
        _LOG.info("the task needs more memory than it may have")
        return MapTaskTooLarge(task.map_task, str(error))
    except LOSSES:
        lost = inputs.find_lost(task)
        if not lost:
            raise
        return MapTaskFailed(task.map_task, lost)
    _LOG.debug("the task has run in %d ms", _now_ms() - began_ms)
    return Result(
        map_task=task.map_task,
        folder=folder,
        agent=agent,
        ran=True,
        index=index,
        operators=tuple(operators),
        fetched=inputs.fetched.since(fetched_before),
        time=time_here(began_ms, _now_ms(), this.failed_before, spilled_bytes=spilled.bytes),
    )


class _Inputs:
    """Opens what tasks read; earlier stages from this host's folders or through agents.

    A task reads where its partitions are from the entries of a whole stage, one small read for each
    partition, or from the entries that were sent with it where the workspace is not seen. Only of a
    stage without such a file, or with a single output, the output's own index is read.
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

    @property
    def fetched(self) -> FetchCounts:
        """What was fetched from other hosts so far."""
        return self._agents.counts

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
        possible = part.reader.possible
        choose = partial(groups_to_read, possible) if possible else None
        rows = (b for split in part.inputs for b in part.reader.batches(split, size, choose))
        return pa.RecordBatchReader.from_batches(part.reader.schema, rows)

    def _shuffled(self, part: ShufflePart) -> pa.RecordBatchReader:
        shuffle = self._read(part)
        rows = (batch for number in part.partitions for batch in _rows_of(shuffle, number, part))
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
        return replace(self._sources[part.source], columns=part.sent).of_outputs(part.outputs)


def _rows_of(shuffle: Shuffle, partition: int, part: ShufflePart) -> Iterable[pa.RecordBatch]:
    """The rows of a partition that a task reads."""
    batches: Iterable[pa.RecordBatch] = shuffle.batches(partition)
    if part.rows is None:
        return batches
    return part.rows.of(batches, int(shuffle.entries(partition)["rows"].sum()))


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
