"""Batch writes into a keyed shuffle: a run of the workspace, with a name, made by Spark's writer.

The run is begun when Spark plans the write. Each partition of the DataFrame is a map task that
writes attempts; when all have ended, the manifest is written and names the one attempt of each that
its commit message tells. So tries that failed, and second copies of a task, change no answer.

No process lives as long as the write does: tasks keep the run alive while they write, and the
commit checks that all their attempts are still there.

Invariant: without its manifest a run is no shuffle, so a write that ends early leaves none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.errors import DataLost, MillraceError, UnsupportedType, UserError
from millrace.execute.durable_rows import MapOutputs
from millrace.execute.map_task import MapStage
from millrace.execute.shuffle_run import STAGE, begin_run
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import publish
from millrace.execute.tasks import task_results
from millrace.execute.tasks.task_results import Result
from millrace.faults import fault
from millrace.identity.schemas import check_names, plain_schema
from millrace.identity.versions import versions
from millrace.ids import Attempt, AttemptId, QueryId
from millrace.keys import HashPartitioner
from millrace.shuffle import reader, reuse, runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.reports import StageReport
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry
from millrace.spark.spark_tasks import runner_facts, this_task
from millrace.spark.versions.arrow_types import utc_schema
from millrace.storage import layout
from millrace.storage.store import Store
from millrace.transport.agent.agent_addresses import agent_address
from millrace.transport.agent.keep_alive import KeepAlive

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class WrittenOutput(WriterCommitMessage):
    """The map output that a task wrote, as its commit message."""

    result: pa.RecordBatch


class ShuffleWriter(DataSourceArrowWriter):
    """Writes rows by key into a run that was begun for them."""

    def __init__(
        self, entry: WorkspaceEntry, stage: MapStage, name: str, *, overwrite: bool
    ) -> None:
        self._entry = entry
        self._stage = stage
        self._name = name
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOutput:
        """In a task: write an attempt of a map task."""
        with self._showing_life():
            result = MapOutputs(self._stage).write(this_task(), iterator)
        fault("source.shuffle.after_write")
        return WrittenOutput(result)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks have ended: say which attempts count."""
        written = [message for message in messages if isinstance(message, WrittenOutput)]
        assert len(written) == len(messages), "a task that ended told what it wrote"
        results = task_results.finished_results(pa.Table.from_batches([m.result for m in written]))
        results.sort(key=lambda result: result.map_task)
        with self._showing_life():
            self._check_there(results)
            self._check_name()
            fault("source.shuffle.before_manifest")
            try:
                self._publish(results)
            except MillraceError:
                # What comes after the manifest is only tidying.
                if self._manifest() is None:
                    raise
            fault("source.shuffle.after_manifest")
            # A process that dropped the run, or took the name, just now did not see the manifest.
            self._check_not_dropped(self._store)
            try:
                self._check_name()
            except UserError:
                self._take_back()
                raise
        runs.end_run(self._store, self._run)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """In the driver, when a task or the commit failed: remove its files on this host."""
        if self._manifest() is None:
            self._take_back()

    @property
    def _store(self) -> Store:
        return self._entry.store

    @property
    def _run(self) -> QueryId:
        return self._stage.query_id

    def _manifest(self) -> Manifest | None:
        return runs.find_manifest(self._store, self._run, STAGE)

    @contextlib.contextmanager
    def _showing_life(self) -> Iterator[None]:
        """Touch the run's file, on hosts that have the workspace's folder."""
        folders = self._stage.folders
        store = folders.stores().get(None)
        if store is None:
            yield
            return
        self._check_not_dropped(store)
        store.touch(layout.alive_path(self._run))
        with runs.beating(store, self._run, self._stage.config):
            yield

    def _check_not_dropped(self, store: Store) -> None:
        if not store.exists(layout.query_path(self._run)):
            raise DataLost(
                f"run {self._run}, which is shuffle {self._name!r}, was dropped while it was "
                "written\n  to fix: write it again, and drop no runs that are younger than a write "
                "may take"
            )

    def _check_there(self, results: Sequence[Result]) -> None:
        self._check_not_dropped(self._store)
        for result in results:
            if result.folder is None and not _is_there(self._store, result.index):
                raise DataLost(
                    f"map output {result.index.id} is gone before its shuffle was finished\n"
                    "  to fix: write it again; a clean-up removed it, or somebody else"
                )

    def _check_name(self) -> None:
        if not self._overwrite:
            _check_free(self._store, self._name, self._run)

    def _publish(self, results: Sequence[Result]) -> None:
        store, config, folders = self._store, self._entry.config, self._stage.folders
        agents = folders.agents(config, lambda folder: agent_address(store, folder))
        with contextlib.closing(agents), KeepAlive(agents) as keep_alive:
            workspace = ShuffleWorkspace(
                store=store, folders=folders, config=config, agents=agents, keep_alive=keep_alive
            )
            report = StageReport(map_tasks=len(results))
            publish(workspace, self._stage, results, report, choices={})

    def _take_back(self) -> None:
        """Remove the files of tasks on this host. The run's record stays until it is dropped."""
        store = self._store
        store.remove_file(layout.manifest_path(self._run, STAGE))
        for task in runs.map_tasks(store, self._run, STAGE):
            for number in store.numbers(layout.task_folder(task)):
                store.discard(layout.attempt_folder(AttemptId(task, Attempt(number))))
        runs.end_run(store, self._run)


def make_writer(options: SourceOptions, schema: StructType, *, overwrite: bool) -> ShuffleWriter:
    """A writer for rows of these columns; errors are raised before any row is made."""
    assert isinstance(options.shuffle, str), "checked with the options"
    assert options.partitions is not None, "checked with the options"
    entry = WorkspaceEntry.of(options, make=True)
    by = HashPartitioner(options.key_by, options.partitions)
    columns = _columns(schema)
    by.check(columns)
    if not overwrite:
        _check_free(entry.store, options.shuffle)
    plan = f"write DataFrame {schema.simpleString()}\nexchange {by.describe()}"
    about = {
        runs.NAME: options.shuffle,
        "map_tasks": None,
        "partitioner": dict(by.describe()),
    }
    run = begin_run(entry.store, runner_facts(None), plan, about)
    fault("source.shuffle.after_begin")
    stage = MapStage(
        query_id=run.query_id,
        stage_id=STAGE,
        schema=columns,
        partitioner=by,
        config=entry.config,
        # A task that does not see the workspace serves what it wrote to other hosts.
        folders=replace(entry.folders, loopback=False),
        versions=versions(),
    )
    return ShuffleWriter(entry, stage, options.shuffle, overwrite=overwrite)


def _columns(schema: StructType) -> pa.Schema:
    try:
        columns = plain_schema(utc_schema(schema))
    except PySparkTypeError as error:
        raise UnsupportedType(
            f"the DataFrame cannot be written: {error}\n  to fix: cast that column in Spark first"
        ) from error
    check_names(columns)
    return columns


def _check_free(store: Store, name: str, own_run: QueryId | None = None) -> None:
    """Refuse a name that another finished shuffle has."""
    others = [run for run in run_catalog.find_named(store, name) if run != own_run]
    if others:
        raise UserError(
            f"shuffle {name!r} is there already\n  found: run {others[-1]}\n"
            "  to fix: use another name, or mode('overwrite'), which leaves the older one under "
            "its number"
        )


def _is_there(store: Store, index: MapTaskIndex) -> bool:
    stored = reader.find_index(store, index.id)
    same = stored is not None and stored.content_checksum() == index.content_checksum()
    return same and reuse.is_whole(store, index)
