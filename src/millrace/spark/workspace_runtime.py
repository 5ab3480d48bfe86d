"""What an open workspace runs on: its store, its Spark, its agents and its journals.

Invariant: nothing is made or started before it is needed. Spark starts with the first call that
runs tasks, the workspace is made by the first call that writes, and an owner of the journals is
elected by the first call on them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.datasets.sql_views import SqlViews
from millrace.durations import ms
from millrace.engine.json_keys import JsonKeys
from millrace.errors import UserError
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.ids import StageId
from millrace.journal.api import Journals, broker_of
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.pipeline.core.job_model import OtherWorkspace
from millrace.plan.builders.build_context import UserFunctions
from millrace.plan.builders.build_scan import scan_of
from millrace.plan.nodes.node import Node
from millrace.plan.relation import relation_of
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.read_files import resolve_read
from millrace.reads.session.session_folder import sessions_folder
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.reads.thread_members import as_threads
from millrace.scan.input_files import Paths
from millrace.scan.source import Listing, open_source
from millrace.shuffle import arrow_inputs, runs
from millrace.shuffle.handle import Shuffle
from millrace.spark.dataset_runner import DatasetRunner
from millrace.spark.open_workspaces import note_opened
from millrace.sql.sql_mode import SqlMode
from millrace.storage.store import Store
from millrace.storage.workspace_home import WorkspaceHome, store_at
from millrace.storage.workspace_token import mode_of, token_of
from millrace.transport.agent.agent_addresses import agent_address
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.owner import broker_address
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import OwnedWorkspace
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.transport.owner.workspace_journals import WorkspaceJournals
from millrace.upkeep.workspace_care import WorkspaceCare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.spark.job_workspace import WorkspaceOfJobs


class WorkspaceRuntime:
    """An open workspace, for the rest of the package."""

    def __init__(
        self,
        home: WorkspaceHome,
        store: Store,
        spark: SparkSession | None,
        config: Config,
        broker: str,
        *,
        accept_loss: AcceptLoss,
        ledger: str | None = None,
    ) -> None:
        self.home = home
        self.store = store
        self.config = config
        self.broker = broker
        self._accept_loss: AcceptLoss = accept_loss
        self._ledger = ledger
        self._spark = spark
        self._has_started_spark = False
        self.is_closed = False
        self._agents: tuple[Agents, KeepAlive] | None = None
        self._dataset_runner: DatasetRunner | None = None
        self.views = SqlViews(config, self, self._files_plan, self._rows_plan)
        self._opening = threading.Lock()
        note_opened(self)
        self._journals = WorkspaceJournals(
            self._owned_workspace,
            config,
            lambda writes: home.make() if writes else home.look(),
            self.read_source,
        )

    @property
    def path(self) -> str:
        """The folder or url of the workspace."""
        return self.store.root

    @property
    def id(self) -> str:
        """The id of the workspace."""
        return self.home.look()

    @property
    def token(self) -> str:
        """The token that callers of this workspace's processes must send."""
        self.home.look()
        return token_of(self.store)

    @property
    def spark(self) -> SparkSession:
        """The session that runs tasks; started now if none was given."""
        if self._spark is None:
            from millrace.spark.session import start_session  # noqa: PLC0415 - reading needs no Spark

            self._spark = start_session()
            self._has_started_spark = True
            if self._dataset_runner is not None:
                self._dataset_runner.registry.tell(self._spark)
        return self._spark

    @property
    def journals(self) -> Journals:
        """The journals, as users see them."""
        return self._journals.journals()

    def joined_broker(self) -> JoinedBroker:
        """The journals, with all calls."""
        return self._journals.broker()

    def journal_address(self) -> JournalAddress:
        """What `join_journals` needs, to be sent to tasks.

        The journals are owned or joined now, so that tasks can reach an owner.
        """
        self.home.make()
        return self.address_of(self)

    def address_of(self, other: OtherWorkspace) -> JournalAddress:
        """The same of another open workspace, for tasks of this one's session."""
        joined = broker_of(other.journals)
        assert isinstance(joined, JoinedBroker), "made by `WorkspaceJournals`"
        address = broker_address.reachable(joined.address, loopback=self._is_local())
        token = token_of(store_at(other.path, self.config), is_for_journals=True)
        return JournalAddress(path=other.path, address=address, token=token, workspace_id=other.id)

    @property
    def journal_token(self) -> str:
        """The token of the owner of the journals."""
        self.home.look()
        return token_of(self.store, is_for_journals=True)

    @property
    def analyzer(self) -> SparkAnalyzer:
        """Tells the columns of what Spark will compute."""
        return self.dataset_runner().analyzer

    @property
    def mode(self) -> SqlMode:
        """The mode of the session."""
        return self.dataset_runner().mode

    @property
    def udfs(self) -> UserFunctions:
        """The functions that users made with PySpark."""
        return self.dataset_runner().udfs

    def _files_plan(self, path: Paths, kind: str) -> Node:
        return plan_of(self.read_files(path, kind))

    def _rows_plan(self, rows: pa.Table) -> Node:
        return plan_of(self.read_arrow_rows(rows))

    def dataset_runner(self) -> DatasetRunner:
        """The runner of datasets."""
        if self._dataset_runner is None:
            self._dataset_runner = DatasetRunner(
                lambda: self.spark,
                lambda: self._spark,
                self.shuffle_workspace,
                lambda: self.shuffle_workspace() if self.home.is_there() else None,
                self.config,
                self.views,
            )
        return self._dataset_runner

    def shuffle_workspace(self) -> ShuffleWorkspace:
        """Where runs write; the workspace is made now if there is none."""
        self.home.make()
        agents, keep_alive = self._reachable_agents()
        return ShuffleWorkspace(
            store=self.store,
            folders=self._folders(),
            config=self.config,
            agents=agents,
            keep_alive=keep_alive,
        )

    def jobs(self) -> WorkspaceOfJobs:
        """What jobs ask of the workspace."""
        from millrace.spark.job_workspace import WorkspaceOfJobs  # noqa: PLC0415 - reading needs no Spark

        return WorkspaceOfJobs(self)

    def read_session(
        self,
        read: CoordinatedRead | Mapping[str, Any] | str | os.PathLike[str],
        options: SessionOptions,
        *,
        on_spark: bool,
    ) -> ReadSession:
        """An open session of a coordinated read; members are threads or Spark tasks."""
        resolved = resolve_read(read)
        folder = sessions_folder(self.store, self.home.look())
        broker = self.joined_broker()
        make = as_threads(broker, self.config, JsonKeys(self.config))
        if on_spark:
            from millrace.spark.read_members import on_spark as as_tasks  # noqa: PLC0415 - threads need no Spark

            make = as_tasks(self.spark, self.journal_address(), self.config)
        frame = self.dataset_runner().table_frame
        workspace = SessionWorkspace(broker, folder, self.config, make, frame)
        return ReadSession(workspace, resolved, options)

    def open_shuffle(self, query_id: int | str, stage_id: int) -> Shuffle:
        """A finished shuffle, with what fetches the map outputs that other hosts keep."""
        self.home.look()
        run = runs.resolve(self.store, query_id)
        manifest = runs.read_manifest(self.store, run, StageId(stage_id))
        shuffle = Shuffle(manifest=manifest, stores={None: self.store}, frame_of=self.shuffle_frame)
        folders = {choice.folder for choice in manifest.chosen if choice.folder is not None}
        if not folders:
            return shuffle
        agents, keep_alive = self._reachable_agents()
        for folder in folders:
            keep_alive.add(folder)
        return replace(shuffle, remote=agents)

    def read_files(
        self,
        paths: Paths,
        format: str,  # noqa: A002 - Spark users know it by this name
        schema: pa.Schema | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        by_content: bool = False,
    ) -> Dataset:
        """Input files as a dataset."""
        if schema is not None and not isinstance(schema, pa.Schema):
            raise UserError(
                f"read_{format}: schema is not a schema of Arrow\n  found: {schema!r}\n"
                '  to fix: give pa.schema({"amount": pa.int64(), ...})'
            )
        runner, is_plain = self.dataset_runner(), schema is None and not options
        if format == "parquet" and is_plain and (setting := runner.files_on_spark):
            return self.dataset(runner.scan_files(paths, setting))
        recent_ms = ms(self.config.recent_change)
        listing = Listing(now_ms=_now_ms(), recent_ms=recent_ms, by_content=by_content)
        source = open_source(paths, listing, format=format, schema=schema, options=options)
        return self.dataset(scan_of(source))

    def read_frame(
        self, frame: DataFrame, version: str | None, call: list[Any] | None = None
    ) -> Dataset:
        """A DataFrame as a dataset: its plan where it can be read, else its rows.

        `call` has the format and all arguments of the reader that made it, if one did.
        """
        from millrace.spark import connect_plans  # noqa: PLC0415 - reading files needs no Spark
        from millrace.spark.frames.connect_plan_identity import read_identity  # noqa: PLC0415 - as above
        from millrace.spark.frames.query_frames import frame_scan  # noqa: PLC0415 - as above

        if version is not None or not connect_plans.is_connect_frame(frame):
            recognise = None if call is None else read_identity(frame, call, self.config)
            return self.dataset(frame_scan(frame, version, self.config, recognise=recognise))
        catalog = SqlViews(self.config, self, self._files_plan, self._rows_plan)
        relation = connect_plans.connect_relation(
            frame,
            self.config,
            catalog,
            self._files_plan,
            self._rows_plan,
            lambda plan: self.dataset(plan).to_arrow(),
        )
        return Dataset(relation, self.dataset_runner())

    def dataset(self, plan: Node) -> Dataset:
        """A dataset of a plan, whose columns have the plan's names."""
        return Dataset(relation_of(plan), self.dataset_runner())

    def read_arrow_rows(self, data: object) -> Dataset:
        """Rows in memory as a dataset; they are saved in the workspace first."""
        rows = arrow_inputs.stream_of(data)
        self.home.make()
        path = arrow_inputs.keep(self.store, rows, sync=self.config.sync)
        return self.read_files(path, "arrow", by_content=True)

    @property
    def care(self) -> WorkspaceCare:
        """What checks the workspace, and removes what is no longer needed."""
        return WorkspaceCare(
            home=self.home,
            store=self.store,
            config=self.config,
            agents=lambda: self._reachable_agents()[0],
            open_shuffle=self.open_shuffle,
            ledger=self._ledger,
        )

    def shuffle_frame(self, shuffle: Shuffle) -> DataFrame:
        """A shuffle as a Spark DataFrame."""
        from millrace.spark.frames.rows_as_frames import to_frame  # noqa: PLC0415 - reading needs no Spark

        return to_frame(self.spark, shuffle, self._folders(), self.config)

    def read_source(self, options: Mapping[str, Any]) -> DataFrame:
        """What `format("millrace")` reads with these options."""
        from millrace.spark.frames.rows_as_frames import read_source  # noqa: PLC0415 - reading needs no Spark

        return read_source(self.spark, self.path, {"broker": self.broker, **options})

    def close(self) -> None:
        """Close everything; stop Spark if it was started here."""
        self.is_closed = True
        self._journals.close()
        with self._opening:
            opened, self._agents = self._agents, None
        if opened is not None:
            agents, keep_alive = opened
            keep_alive.close()
            agents.close()
        if self._has_started_spark and self._spark is not None:
            self._spark.stop()
            self._spark = None
            self._has_started_spark = False

    def _folders(self) -> Folders:
        from millrace.spark.session import is_local  # noqa: PLC0415 - reading needs no Spark

        return Folders(
            path=self.path,
            workspace_id=self.id,
            token=self.token,
            loopback=is_local(self.spark, self.config),
            mode=mode_of(self.store),
        )

    def _reachable_agents(self) -> tuple[Agents, KeepAlive]:
        """What fetches map outputs from other hosts; made when it is first needed."""
        with self._opening:
            if self._agents is None:
                folders = Folders(
                    path=self.path, workspace_id=self.id, token=self.token, loopback=True
                )
                agents = folders.agents(self.config, lambda f: agent_address(self.store, f))
                self._agents = agents, KeepAlive(agents)
            return self._agents

    def _owned_workspace(self) -> OwnedWorkspace:
        return broker_address.owned_workspace(
            self.path,
            workspace_id=self.id,
            token=self.journal_token,
            kind=self.broker,
            config=self.config,
            loopback=self._is_local(),
            joins_only=not self._is_reachable(),
            accept_loss=self._accept_loss,
            ledger=self._ledger,
            upkeep=self.care.look_after,
        )

    def _is_local(self) -> bool:
        return self._spark is None or self._folders().loopback

    def _is_reachable(self) -> bool:
        """Whether tasks can connect to this process."""
        if self._spark is None:
            return True
        from millrace.spark.session import is_reachable  # noqa: PLC0415 - reading needs no Spark

        return is_reachable(self._spark, self.config, os.environ)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
