"""`open` and `Workspace`: the calls of a user. `spark/workspace_runtime.py` does the work below.

Invariant: opening touches no Spark and no data, and makes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from millrace.calls.workspace_files import WorkspaceFiles
from millrace.calls.workspace_session import WorkspaceSession
from millrace.calls.workspace_sql import WorkspaceSql
from millrace.calls.workspace_system import WorkspaceSystem
from millrace.calls.workspace_ui import WorkspaceUi
from millrace.calls.workspace_upkeep import WorkspaceUpkeep
from millrace.config import Config, checked_config
from millrace.journal.api import Journals
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.keys import Partitioner
from millrace.names import path_text
from millrace.shuffle import runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.spark.workspace_runtime import WorkspaceRuntime
from millrace.storage.modes import parse_mode
from millrace.storage.workspace_home import WorkspaceHome, store_at
from millrace.storage.workspace_token import given_token
from millrace.transport.owner import broker_address
from millrace.upkeep.retention_rules import Retention
from millrace.upkeep.retention_rules import checked as checked_retention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.datasets.dataset import Dataset
    from millrace.execute.map_task import Reuse
    from millrace.pipeline.define.job import Job
    from millrace.pipeline.restore.job_state import JobState
    from millrace.reads.api import ReadSession
    from millrace.reads.model.coordinated_read import CoordinatedRead
    from millrace.scan.input_files import Paths


def open(  # noqa: A001 - `millrace.open` reads as what it does
    path: str | os.PathLike[str],
    spark: SparkSession | None = None,
    *,
    broker: str = broker_address.EMBEDDED,
    ledger: str | None = None,
    config: Config | None = None,
    accept_loss: AcceptLoss = False,
    create: bool | None = None,
    mode: str | None = None,
    retention: Retention | None = None,
) -> Workspace:
    """Open a workspace. The first call that writes makes a new one; a call that reads makes none.

    Args:
        path: a folder on a local disk, or on one that all hosts share, or a part of a bucket, as
            "s3://bucket/prefix".
        spark: the session that runs tasks, classic or Connect. Without one, a local session is
            started when it is first needed.
        broker: what stores journals: "embedded" (in this folder), "embedded:///folder" (on another
            local disk), "memory" (not stored) or "kafka://host:port". It is opened by the first
            call of `Workspace.journals`.
        ledger: where it is kept what counts in journals: "sqlite" (on the owner's disk, the default
            of folders), "files" (in the folder or bucket itself, so that any host can take over;
            the default of buckets) or "postgresql://user@host/database". It is recorded: later
            calls need not give it.
        config: settings to use instead of the defaults.
        accept_loss: what to do if acknowledged commits of journals are missing, as after a disk
            failure. The default raises `DataLost`. "read_only" reads the rest. True records the
            loss in the ledger and continues without the missing commits.
        create: by default the first write makes the workspace, in a new or empty folder. True
            makes it now, also in a folder with other files. False makes none: a path without a
            workspace is an error at once.
        mode: permissions of a new workspace, as for `chmod`: "0750" lets the group read, "2770"
            lets it write too. By default only this user has access, whatever the umask. The
            workspace stores its mode, and all processes follow it.
        retention: how long shuffles and rows of journals and jobs are kept. It is recorded now, and
            holds until another one is given; `Retention()` keeps everything again.

    Example:
        >>> import millrace as mr
        >>> with mr.open("./mill", spark) as ws:
        ...     shuffle = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4)
        ...     shuffle.read(1).num_rows
        2
    """
    text, limits = path_text(path, "open"), checked_config(config)
    wanted = None if mode is None else parse_mode(mode)
    store = store_at(text, limits, mode=wanted)
    rules = None if retention is None else checked_retention(retention)
    given_token()  # One that cannot be used is refused before anything is made.
    home = WorkspaceHome(store, create=create, mode=wanted)
    kind = broker_address.check_broker(broker)
    kept = broker_address.check_ledger(ledger, kind, is_bucket=store.remote)
    runtime = WorkspaceRuntime(
        home, store, spark, limits, kind, accept_loss=accept_loss, ledger=kept
    )
    if rules is not None:
        runtime.care.keep_rules(rules)
    return Workspace(runtime)


class Workspace(
    WorkspaceFiles, WorkspaceSql, WorkspaceSession, WorkspaceSystem, WorkspaceUi, WorkspaceUpkeep
):
    """A folder or bucket with shuffles, journals, jobs and reads. Made by `millrace.open`.

    Example:
        >>> ws.read_parquet("orders/").join(customers, on="cust_id").count()
        3
    """

    def __init__(self, runtime: WorkspaceRuntime) -> None:
        """Use `millrace.open`."""
        self._runtime = runtime
        self.config = runtime.config

    @property
    def id(self) -> str:
        """The id of this workspace. It never changes.

        Example:
            >>> ws.id == mr.open(ws.path).id
            True
        """
        return self._runtime.id

    @property
    def path(self) -> str:
        """The folder or url of the workspace.

        Example:
            >>> ws.path
            '/.../mill'
        """
        return self._runtime.path

    @property
    def spark(self) -> SparkSession:
        """The Spark session that runs tasks. Starts a local one if none was given.

        Example:
            >>> ws.spark.range(3).count()
            3
        """
        return self._runtime.spark

    @property
    def journals(self) -> Journals:
        """The journals of this workspace: named, append-only, typed logs.

        Opening elects no owner. At the first call on the journals this process becomes their owner
        and serves them to other processes, or joins the owner that there is.

        Example:
            >>> info = ws.journals.create("clicks", pa.schema([("id", pa.int64())]))
            >>> ws.journals.append("clicks", pa.table({"id": [1, 2]})).rows
            2
        """
        return self._runtime.journals

    def shuffle(
        self,
        source: Paths | DataFrame,
        keys: str | Sequence[str] | None = None,
        partitions: int | None = None,
        partitioner: str | Partitioner | Callable[[pa.RecordBatch], Any] = "hash",
        *,
        bounds: pa.Table | Sequence[Any] | None = None,
        version: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark users know it by this name
        schema: pa.Schema | None = None,
        options: Mapping[str, Any] | None = None,
        reuse: Reuse = True,
        checksum: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Shuffle:
        """Save rows by key: map tasks on Spark write each row to the files of its partition.

        Map tasks that an earlier run has finished for the same inputs are reused. `shuffle.report`
        says which, and why the others ran.

        Args:
            source: Parquet, Arrow, CSV or JSON files (a path, folder, glob or several), or a Spark
                DataFrame.
            keys: column or columns that decide a row's partition.
            partitions: number of partitions; by default chosen by the size of the input.
            partitioner: "hash" (as Spark's `hash`), "range", "round_robin", "broadcast", or a
                function that gets a RecordBatch and returns partition numbers.
            bounds: upper bounds for "range"; sampled if not given.
            version: identifies a custom function whose code alone does not.
            format: "parquet", "arrow", "csv" or "json", if file names do not say it.
            schema: columns and types of CSV or JSON files; by default inferred from the first file.
            options: for CSV: `delimiter`, `header`.
            reuse: True, "verified" (check every byte of finished work first) or False.
            checksum: identify input files by their bytes, not by size and modification time.
            storage_options: how files in a bucket are reached; see `read_parquet`.

        Example:
            >>> shuffle = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4)
            >>> [size.rows for size in shuffle.sizes]
            [1, 2, 0, 0]
        """
        from millrace.execute.shuffle_requests import FileOptions, ShuffleArguments  # noqa: PLC0415 - reading needs no Spark
        from millrace.spark.frames import frame_shuffle  # noqa: PLC0415 - as above

        arguments = ShuffleArguments(
            keys=keys,
            partitions=partitions,
            partitioner=partitioner,
            bounds=bounds,
            version=version,
            reuse=reuse,
        )
        files = FileOptions(
            format=format,
            schema=schema,
            options=options,
            checksum=checksum,
            storage_options=storage_options,
        )
        workspace = self._runtime.shuffle_workspace()
        made = frame_shuffle.shuffle(self.spark, workspace, source, arguments, files)
        return replace(made, frame_of=self._runtime.shuffle_frame)

    def from_arrow(self, data: object) -> Dataset:
        """Rows in memory as a dataset: a Table, RecordBatch, RecordBatchReader or a DataFrame.

        The rows are saved in the workspace, equal rows once, so that later runs can reuse work.

        Example:
            >>> ws.from_arrow(pa.table({"x": [1, 2]})).columns
            ['x']
        """
        return self._runtime.datasets.read_arrow_rows(data)

    def job(self, name: str) -> Job:
        """A pipeline: add `source`, `map` and sinks, then `run`.

        Its progress is saved under its name. The next run continues from there.

        Example:
            >>> job = ws.job("sizes")
            >>> job.source("texts", mr.files("texts/*.txt")).columns
            ['path', 'size', 'modified']
        """
        from millrace.pipeline.define.job import Job  # noqa: PLC0415 - its steps have SQL, which is large

        return Job(name, self._runtime.jobs())

    def state(self, name: str) -> JobState:
        """What a step of a job remembers of each key, as a table: `state("job/step")`.

        It is as published: also while the job runs, and from any process. Needs no Spark.

        Example:
            >>> sorted(ws.state("sums/totals").to_arrow()["total"].to_pylist())
            [20, 40]
        """
        from millrace.pipeline.restore.job_state import job_state  # noqa: PLC0415 - as above

        return job_state(self.journals, name, self.path, self.from_arrow)

    def reads(
        self,
        read: CoordinatedRead | Mapping[str, Any] | str | os.PathLike[str],
        *,
        members: int = 1,
        on_spark: bool = False,
        restart: bool = False,
        take_over: bool = False,
        last_commit: int | None = None,
        read_through: int | None = None,
    ) -> ReadSession:
        """Read many journals together: members share rows by key, checkpoints are consistent.

        Args:
            read: what to read: a `CoordinatedRead`, the same as a mapping, or a TOML or JSON file.
            members: number of members that share the keys. It may differ between sessions.
            on_spark: run members as Spark tasks instead of threads of this process.
            restart: reopen the session automatically after a failure, from its last checkpoint.
            take_over: end a session of this read in another process instead of waiting for it.
            last_commit: the last checkpoint that the caller has processed, by its own log. Default:
                the last committed one.
            read_through: repeat checkpoints up to this one exactly and forget later ones. Default:
                all checkpoints that were not committed.

        Example:
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(read) as session:
            ...     checkpoint = session.next_checkpoint(timeout=60)
            ...     found = session.read(0, checkpoint)
            ...     session.commit(checkpoint)
            >>> found.num_rows
            3
        """
        from millrace.reads.session_run import SessionOptions  # noqa: PLC0415 - most processes have no session
        from millrace.spark.read_sessions import read_session  # noqa: PLC0415 - as above

        options = SessionOptions(
            members=members,
            last_commit=last_commit,
            read_through=read_through,
            take_over=take_over,
            restart=restart,
        )
        return read_session(self._runtime, read, options, on_spark=on_spark)

    def open_shuffle(self, query_id: int | str, stage_id: int = 0) -> Shuffle:
        """A finished shuffle of this workspace, by its run's number or its name. Needs no Spark.

        Names are given by `df.write.format("millrace").option("shuffle", name)`.

        Example:
            >>> ws.open_shuffle(shuffle.query_id).rows  # in any process, today or next week
            3
        """
        return self._runtime.open_shuffle(query_id, stage_id)

    def runs(self) -> list[runs.Run]:
        """All runs of this workspace, oldest first.

        Example:
            >>> shuffle.query_id in [run.query_id for run in ws.runs()]
            True
        """
        self._runtime.home.look()
        return run_catalog.all_runs(self._runtime.store)

    def stop(self) -> None:
        """End as `spark.stop()` does: the same as `close`.

        Example:
            >>> mr.open(ws.path).stop()
        """
        self.close()

    def close(self) -> None:
        """Close the workspace. Stops Spark if the workspace started it.

        Example:
            >>> mr.open("./other").close()  # or: with mr.open("./other") as ws
        """
        self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Workspace({self.path!r})"


def is_closed(workspace: Workspace) -> bool:
    """Whether `close` was called."""
    return workspace._runtime.is_closed  # noqa: SLF001 - as below


def runtime_of(workspace: Workspace) -> WorkspaceRuntime:
    """What is below the public face, for the rest of the package."""
    return workspace._runtime  # noqa: SLF001 - the one way for the package
