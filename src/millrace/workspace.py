"""The workspace: the place that holds everything durable, and what a user does with it.

Invariant: opening touches no Spark and no data, and makes nothing; Spark is started, or asked, when
work needs it, and the workspace is made by the first call that writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from millrace.config import Config
from millrace.dataset import Dataset
from millrace.durations import Duration, milliseconds, ms
from millrace.engine.json_keys import JsonKeys
from millrace.errors import UserError
from millrace.execute.shuffle_requests import FileOptions, ShuffleArguments
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.ids import StageId
from millrace.journal.api import Journals
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.keys import Partitioner
from millrace.names import path_text
from millrace.pipeline.define.job import Job
from millrace.plan.nodes.scan import Scan
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.read_files import resolve_read
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.reads.thread_members import as_threads
from millrace.scan.input_files import Paths
from millrace.scan.source import Listing, open_source
from millrace.shuffle import arrow_inputs, cleanup, runs
from millrace.shuffle.cleanup import CleanupReport
from millrace.shuffle.handle import Shuffle
from millrace.spark.dataset_runner import DatasetRunner
from millrace.storage.local import LocalStore
from millrace.storage.modes import parse_mode
from millrace.storage.store import Store
from millrace.storage.workspace_home import WorkspaceHome, store_at
from millrace.storage.workspace_token import given_token, mode_of, token_of
from millrace.transport.agent.agent_addresses import agent_address
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.owner import broker_address
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import OwnedWorkspace as JournalPlace
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.transport.owner.workspace_journals import WorkspaceJournals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.execute.map_task import Reuse


def open(  # noqa: A001 - `millrace.open` reads as what it does
    path: str | os.PathLike[str],
    spark: SparkSession | None = None,
    *,
    broker: str = broker_address.EMBEDDED,
    config: Config | None = None,
    accept_loss: AcceptLoss = False,
    create: bool | None = None,
    mode: str | None = None,
) -> Workspace:
    """Open a workspace. A new one is made by the first call that writes; looking creates nothing.

    Args:
        path: a folder on a local disk, or on one that all hosts share; for shuffles and datasets
            also a part of a bucket, as "s3://bucket/prefix".
        spark: the session that runs tasks, classic or Connect. Without one, a local session is
            started when it is first needed.
        broker: what serves journals: "embedded" (in this folder), "embedded:///folder" (on a
            local disk elsewhere), "memory" (kept nowhere) or "kafka://host:port". Nothing of it is
            opened before `Workspace.journals` is used.
        config: limits to use instead of the defaults.
        accept_loss: what to do where commits of journals are missing that were acknowledged, as
            after a failing disk. By default that is `DataLost`. "read_only" lets what is left be
            read; True notes the loss in the ledger and goes on without what is missing.
        create: by default a workspace is made with the first write, in a folder that is new or
            empty. True makes it now, beside other files as well. False makes none: a path that is
            no workspace is an error at once.
        mode: who may use the folders of a workspace that is made, as `chmod` takes it: "0750" lets
            the group read, "2770" lets it write, too. Without it they are this user's alone,
            whatever the umask. It is kept in the workspace, and all processes follow it.

    Example:
        >>> import millrace as mr
        >>> with mr.open("./mill", spark) as ws:
        ...     shuffle = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4)
        ...     shuffle.read(1).num_rows
        2
    """
    text, limits = path_text(path, "open"), config or Config()
    if not isinstance(limits, Config):
        raise UserError(
            f"config is not a Config\n  found: {limits!r}\n"
            "  to fix: give millrace.Config(...), as in Config(one_task_bytes_max=1024)"
        )
    wanted = None if mode is None else parse_mode(mode)
    store = store_at(text, limits, mode=wanted)
    given_token()  # One that cannot be used is refused before anything is made.
    home = WorkspaceHome(store, create=create, mode=wanted)
    return Workspace(
        home, store, spark, limits, broker_address.check_broker(broker), accept_loss=accept_loss
    )


class Workspace:
    """Everything durable in one place. Made by `millrace.open`.

    Example:
        >>> ws.read_parquet("orders/").join(customers, on="cust_id").count()
        3
        >>> ws.journals.read("orders", 0).num_rows
        3
    """

    def __init__(
        self,
        home: WorkspaceHome,
        store: Store,
        spark: SparkSession | None,
        config: Config,
        broker: str = broker_address.EMBEDDED,
        *,
        accept_loss: AcceptLoss = False,
    ) -> None:
        """Use `millrace.open`."""
        self.store = store
        self.broker = broker
        self.config = config
        self._home = home
        self._reaching: tuple[Agents, KeepAlive] | None = None
        self._spark = spark
        self._started_spark = False
        self._journals = WorkspaceJournals(
            self._journal_place,
            config,
            lambda writes: home.make() if writes else home.look(),
            self._read_source,
        )
        self._accept_loss: AcceptLoss = accept_loss
        self._opening = threading.Lock()

    @property
    def id(self) -> str:
        """What tells this workspace from every other one; made with it and never changed.

        Example:
            >>> ws.id == mr.open(ws.path).id
            True
        """
        return self._home.look()

    @property
    def token(self) -> str:
        """What callers of this workspace's processes must show."""
        self._home.look()
        return token_of(self.store)

    @property
    def path(self) -> str:
        """The workspace's folder.

        Example:
            >>> ws.path
            '/.../mill'
        """
        return self.store.root

    @property
    def spark(self) -> SparkSession:
        """The session that runs tasks; started now if none was given.

        Example:
            >>> ws.spark.range(3).count()
            3
        """
        if self._spark is None:
            from millrace.spark.session import start_session  # noqa: PLC0415 - reading needs no Spark

            self._spark = start_session()
            self._started_spark = True
        return self._spark

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
        self._on_disk("journals")
        return self._journals.journals()

    def _joined_broker(self) -> JoinedBroker:
        self._on_disk("journals")
        return self._journals.broker()

    def _read_source(self, options: Mapping[str, Any]) -> DataFrame:
        from millrace.spark.frames.rows_as_frames import read_source  # noqa: PLC0415 - reading needs no Spark

        return read_source(self.spark, self.path, {"broker": self.broker, **options})

    def journal_address(self) -> JournalAddress:
        """What `millrace.transport.owner.election.join_journals` needs, to be sent to tasks.

        The journals are owned or joined now, so that there is somebody to reach.
        """
        self._home.make()
        address = broker_address.reachable(self._joined_broker().address, loopback=self._is_local())
        return JournalAddress(
            path=self.path, address=address, token=self.token, workspace_id=self.id
        )

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
    ) -> Shuffle:
        """Put rows at rest by key: map tasks on Spark write every row to its partition's files.

        Map tasks that are already finished for the same inputs, in this or any earlier run of the
        workspace, are reused; `shuffle.report` says which and why not the others.

        Args:
            source: Parquet, Arrow, CSV or JSON files (a path, folder, glob or several), or a Spark
                DataFrame.
            keys: column or columns that decide a row's partition.
            partitions: how many; by default as the input's size asks for.
            partitioner: "hash" (as Spark's `hash`), "range", "round_robin", "broadcast", or a
                function that gets a RecordBatch and returns partition numbers.
            bounds: upper bounds for "range"; sampled if not given.
            version: names a custom function where its code alone does not tell what it does.
            format: "parquet", "arrow", "csv" or "json" where file names do not tell.
            schema: columns and types of CSV or JSON files; by default inferred from the first file.
            options: for CSV: `delimiter`, `header`.
            reuse: True, "verified" (check every byte of finished work first) or False.
            checksum: tell input files apart by their bytes, not by size and time of change.

        Example:
            >>> shuffle = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4)
            >>> [size.rows for size in shuffle.sizes]
            [1, 2, 0, 0]
        """
        from millrace.spark.frames import frame_shuffle  # noqa: PLC0415 - reading needs no Spark

        arguments = ShuffleArguments(
            keys=keys,
            partitions=partitions,
            partitioner=partitioner,
            bounds=bounds,
            version=version,
            reuse=reuse,
        )
        files = FileOptions(format=format, schema=schema, options=options, checksum=checksum)
        workspace = self._place()
        made = frame_shuffle.shuffle(self.spark, workspace, source, arguments, files)
        return replace(made, frame_of=self._frame_of)

    def read_parquet(self, paths: Paths) -> Dataset:
        """Parquet files as a dataset.

        Example:
            >>> ws.read_parquet("orders/*.parquet").columns
            ['cust_id', 'amount']
        """
        return self._read(paths, "parquet")

    def read_arrow(self, paths: Paths) -> Dataset:
        """Arrow IPC files as a dataset.

        Example:
            >>> ws.read_arrow("orders.arrow").columns
            ['cust_id', 'amount']
        """
        return self._read(paths, "arrow")

    def read_csv(
        self,
        paths: Paths,
        *,
        schema: pa.Schema | None = None,
        delimiter: str = ",",
        header: bool = True,
    ) -> Dataset:
        """CSV files as a dataset; types are inferred from the first file if not given.

        Example:
            >>> ws.read_csv("orders.csv").schema.types
            [DataType(int64), DataType(int64)]
        """
        return self._read(paths, "csv", schema, {"delimiter": delimiter, "header": header})

    def read_json(self, paths: Paths, *, schema: pa.Schema | None = None) -> Dataset:
        """JSON files, an object a line, as a dataset.

        Example:
            >>> ws.read_json("orders.json").columns
            ['cust_id', 'amount']
        """
        return self._read(paths, "json", schema)

    def from_arrow(self, data: object) -> Dataset:
        """Rows in memory as a dataset: a Table, RecordBatch, RecordBatchReader or a DataFrame.

        They are written to the workspace, once for equal rows, so that finished work over them is
        recognised as that over files is.

        Example:
            >>> ws.from_arrow(pa.table({"x": [1, 2]})).columns
            ['x']
        """
        store, rows = self._on_disk("rows of from_arrow"), arrow_inputs.stream_of(data)
        self._home.make()
        path = arrow_inputs.keep(store, rows, sync=self.config.sync)
        return self._read(path, "arrow", by_content=True)

    def from_spark(self, frame: DataFrame, version: str | None = None) -> Dataset:
        """A Spark DataFrame as a dataset. Spark calculates it when the dataset is run, once a run.

        Args:
            frame: its rows pass through Spark's tasks into the workspace.
            version: names the rows for good, as "customers 2024-05-01". Rows that were taken in
                under this name and with these columns are not asked of Spark again.

        Example:
            >>> numbers = ws.from_spark(spark.range(10), version="the first ten")
            >>> numbers.filter("id > 6").count()
            3
        """
        from millrace.spark.frames.query_frames import frame_scan  # noqa: PLC0415 - reading needs no Spark

        return Dataset(frame_scan(frame, version, self.config), self._runner())

    def job(self, name: str) -> Job:
        """A pipeline, to be written down with `source`, `map` and the like, and run.

        What it has done is kept under its name; the next run goes on from there.

        Example:
            >>> job = ws.job("sizes")
            >>> job.source("texts", mr.files("texts/*.txt")).columns
            ['path', 'size', 'modified']
        """
        from millrace.spark.job_workspace import WorkspaceOfJobs  # noqa: PLC0415 - reading needs no Spark

        self._on_disk("jobs")
        return Job(name, WorkspaceOfJobs(self))

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
        """Read journals together: rows by key to members, in checkpoints that are consistent.

        Args:
            read: what to read: a `CoordinatedRead`, the same as a mapping, or a TOML or JSON file.
            members: how many share the keys. It may change from one session to the next.
            on_spark: run members as Spark tasks, instead of as threads of this process.
            restart: open the session again by itself when it fails, from the last checkpoint.
            take_over: end a session of this read that is open elsewhere, instead of waiting for it.
            last_commit: the checkpoint that the caller's own log says is done; by default, the last
                one that was committed here.
            read_through: the checkpoint up to which everything comes again exactly as it was; what
                was handed out beyond it is forgotten. By default, all that was not committed.

        Example:
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(read) as session:
            ...     checkpoint = session.next_checkpoint(timeout=60)
            ...     found = session.read(0, checkpoint)
            ...     session.commit(checkpoint)
            >>> found.num_rows
            3
        """
        folder = self._on_disk("coordinated reads").path("reads")
        resolved = resolve_read(read)
        self._home.look()
        broker = self._joined_broker()
        make = as_threads(broker, self.config, JsonKeys(self.config))
        if on_spark:
            from millrace.spark.read_members import on_spark as as_tasks  # noqa: PLC0415 - threads need no Spark

            make = as_tasks(self.spark, self.journal_address(), self.config)

        options = SessionOptions(
            members=members,
            last_commit=last_commit,
            read_through=read_through,
            take_over=take_over,
            restart=restart,
        )
        workspace = SessionWorkspace(broker, folder, self.config, make, self._runner().table_frame)
        return ReadSession(workspace, resolved, options)

    def open_shuffle(self, query_id: int | str, stage_id: int = 0) -> Shuffle:
        """A finished shuffle of this workspace, by its run's number or its name. Needs no Spark.

        Names are given by `df.write.format("millrace").option("shuffle", name)`.

        Example:
            >>> ws.open_shuffle(shuffle.query_id).rows  # in any process, today or next week
            3
        """
        self._home.look()
        run = runs.resolve(self.store, query_id)
        found = runs.read_manifest(self.store, run, StageId(stage_id))
        shuffle = Shuffle(manifest=found, stores={None: self.store}, frame_of=self._frame_of)
        elsewhere = {choice.folder for choice in found.chosen if choice.folder is not None}
        if not elsewhere:
            return shuffle
        agents, keep_alive = self._remote()
        for folder in elsewhere:
            keep_alive.add(folder)
        return replace(shuffle, remote=agents)

    def runs(self) -> list[runs.Run]:
        """All runs of this workspace, oldest first.

        Example:
            >>> shuffle.query_id in [run.query_id for run in ws.runs()]
            True
        """
        self._home.look()
        return runs.list_runs(self.store)

    def cleanup(self, *, ttl: Duration) -> CleanupReport:
        """Remove attempts, and rows of `from_arrow`, that are older than `ttl` and not needed.

        Files of tasks that died are removed too.

        Example:
            >>> ws.cleanup(ttl="7d").bytes
            0
        """
        ttl_ms = milliseconds(ttl, "cleanup(): ttl")
        self._home.look()
        now_ms = time.time_ns() // 1_000_000
        return cleanup.remove_expired(self.store, ttl_ms=ttl_ms, now_ms=now_ms, config=self.config)

    def drop_runs(self, *, older_than: Duration) -> CleanupReport:
        """Remove whole runs that have ended and that began longer ago than this.

        Example:
            >>> ws.drop_runs(older_than="30d").runs
            ()
        """
        age_ms = milliseconds(older_than, "drop_runs(): older_than")
        self._home.look()
        now = time.time_ns() // 1_000_000
        return cleanup.drop_runs(self.store, older_than_ms=age_ms, now_ms=now, config=self.config)

    def close(self) -> None:
        """Let go of what was opened; stop Spark if it was started here.

        Example:
            >>> other = mr.open("./other")  # or: with mr.open("./other") as other
            >>> other.close()
        """
        self._journals.close()
        with self._opening:
            reaching, self._reaching = self._reaching, None
        if reaching is not None:
            agents, keep_alive = reaching
            keep_alive.close()
            agents.close()
        if self._started_spark and self._spark is not None:
            self._spark.stop()
            self._spark = None
            self._started_spark = False

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

    def _read(
        self,
        paths: Paths,
        format: str,  # noqa: A002 - Spark users know it by this name
        schema: pa.Schema | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        by_content: bool = False,
    ) -> Dataset:
        if schema is not None and not isinstance(schema, pa.Schema):
            raise UserError(
                f"read_{format}: schema is not a schema of Arrow\n  found: {schema!r}\n"
                '  to fix: give pa.schema({"amount": pa.int64(), ...})'
            )
        listing = Listing(
            now_ms=time.time_ns() // 1_000_000,
            recent_ms=ms(self.config.recent_change),
            by_content=by_content,
        )
        source = open_source(paths, listing, format=format, schema=schema, options=options)
        return Dataset(Scan(source, tuple(source.schema.names)), self._runner())

    def _on_disk(self, what: str) -> LocalStore:
        """The workspace's folder, for what a bucket cannot keep."""
        if isinstance(self.store, LocalStore):
            return self.store
        raise UserError(
            f"{what} need a workspace on a local or shared disk\n  found: {self.store.path('')}\n"
            "  to fix: open a second workspace in a folder for them; a bucket keeps shuffles and "
            "what datasets make of files and DataFrames"
        )

    def _runner(self) -> DatasetRunner:
        return DatasetRunner(
            lambda: self.spark,
            lambda: self._spark,
            self._place,
            lambda: self._place() if self._home.is_there() else None,
            self.config,
        )

    def _frame_of(self, shuffle: Shuffle) -> DataFrame:
        from millrace.spark.frames.rows_as_frames import to_frame  # noqa: PLC0415 - reading needs no Spark

        return to_frame(self.spark, shuffle, self._folders(), self.config)

    def _folders(self) -> Folders:
        from millrace.spark.session import is_local  # noqa: PLC0415 - reading needs no Spark

        return Folders(
            path=self.path,
            workspace_id=self.id,
            token=self.token,
            loopback=is_local(self.spark, self.config),
            mode=mode_of(self.store),
        )

    def _remote(self) -> tuple[Agents, KeepAlive]:
        """What fetches map outputs from other hosts; made when it is first needed."""
        with self._opening:
            if self._reaching is None:
                folders = Folders(
                    path=self.path, workspace_id=self.id, token=self.token, loopback=True
                )
                agents = folders.agents(
                    self.config, lambda folder: agent_address(self.store, folder)
                )
                self._reaching = agents, KeepAlive(agents)
            return self._reaching

    def _journal_place(self) -> JournalPlace:
        return broker_address.owned_workspace(
            self.path,
            workspace_id=self.id,
            token=self.token,
            kind=self.broker,
            config=self.config,
            loopback=self._is_local(),
            joins_only=not self._is_reachable(),
            accept_loss=self._accept_loss,
        )

    def _is_local(self) -> bool:
        return self._spark is None or self._folders().loopback

    def _is_reachable(self) -> bool:
        """Whether tasks can connect to this process."""
        if self._spark is None:
            return True
        from millrace.spark.session import is_reachable  # noqa: PLC0415 - reading needs no Spark

        return is_reachable(self._spark, self.config, os.environ)

    def _place(self) -> ShuffleWorkspace:
        """Where runs write; the workspace is made now if there is none."""
        self._home.make()
        agents, keep_alive = self._remote()
        return ShuffleWorkspace(
            store=self.store,
            folders=self._folders(),
            config=self.config,
            agents=agents,
            keep_alive=keep_alive,
        )
