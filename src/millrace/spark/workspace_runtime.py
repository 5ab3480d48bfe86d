"""What an open workspace runs on: its store, its Spark, its agents and its journals.

Invariant: nothing is made or started before it is needed. Spark starts with the first call that
runs tasks, the workspace is made by the first call that writes, and an owner of the journals is
elected by the first call on them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from millrace.config import Config
from millrace.execute.task_folders import Folders
from millrace.extras import check_extra
from millrace.ids import StageId
from millrace.journal.api import Journals, broker_of
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.metrics.process_reports import begin_report, end_report
from millrace.pipeline.core.job_model import OtherWorkspace
from millrace.shuffle import runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.spark.open_workspaces import note_opened
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

    from millrace.execute.shuffle_workspace import ShuffleWorkspace
    from millrace.spark.job_workspace import WorkspaceOfJobs
    from millrace.spark.workspace_datasets import WorkspaceDatasets


class Closable(Protocol):
    """A server, which ends with the workspace."""

    def close(self) -> None:
        """Stop serving."""


StartPages = Callable[["WorkspaceRuntime"], tuple[str, Closable]]


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
        self.ledger = ledger
        self._spark = spark
        self._has_started_spark = False
        self.is_closed = False
        self._agents: tuple[Agents, KeepAlive] | None = None
        self._datasets: WorkspaceDatasets | None = None
        self._opening = threading.Lock()
        self._pages: tuple[str, Closable] | None = None
        self._is_reported = False
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
            check_extra("spark", "work that runs on Spark")
            from millrace.spark.session import start_session  # noqa: PLC0415 - reading needs no Spark

            self._spark = start_session()
            self._has_started_spark = True
            if self._datasets is not None:
                self._datasets.on_session(self._spark)
        return self._spark

    @property
    def started_spark(self) -> SparkSession | None:
        """The session, if one was given or has been started."""
        return self._spark

    @property
    def datasets(self) -> WorkspaceDatasets:
        """What makes and runs the datasets of this workspace."""
        if self._datasets is None:
            check_extra("spark", "a dataset")
            from millrace.spark.workspace_datasets import WorkspaceDatasets  # noqa: PLC0415 - half of what there is to load

            self._datasets = WorkspaceDatasets(self)
        return self._datasets

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

    def shuffle_workspace(self) -> ShuffleWorkspace:
        """Where runs write; the workspace is made now if there is none."""
        from millrace.execute.shuffle_workspace import ShuffleWorkspace  # noqa: PLC0415 - reading writes nothing

        self.home.make()
        agents, keep_alive = self._reachable_agents()
        with self._opening:
            if not self._is_reported:
                self._is_reported = True
                begin_report(self.store)
        return ShuffleWorkspace(
            store=self.store,
            folders=self._folders(),
            config=self.config,
            agents=agents,
            keep_alive=keep_alive,
        )

    def jobs(self) -> WorkspaceOfJobs:
        """What jobs ask of the workspace."""
        check_extra("spark", "a job")
        from millrace.spark.job_workspace import WorkspaceOfJobs  # noqa: PLC0415 - reading needs no Spark

        return WorkspaceOfJobs(self)

    def open_shuffle(self, query_id: int | str, stage_id: int) -> Shuffle:
        """A finished shuffle, with what fetches the map outputs that other hosts keep."""
        self.home.look()
        run = run_catalog.resolve(self.store, query_id)
        manifest = runs.read_manifest(self.store, run, StageId(stage_id))
        shuffle = Shuffle(manifest=manifest, stores={None: self.store}, frame_of=self.shuffle_frame)
        folders = {choice.folder for choice in manifest.chosen if choice.folder is not None}
        if not folders:
            return shuffle
        agents, keep_alive = self._reachable_agents()
        for folder in folders:
            keep_alive.add(folder)
        return replace(shuffle, remote=agents)

    @property
    def care(self) -> WorkspaceCare:
        """What checks the workspace, and removes what is no longer needed."""
        return WorkspaceCare(
            home=self.home,
            store=self.store,
            config=self.config,
            agents=lambda: self._reachable_agents()[0],
            open_shuffle=self.open_shuffle,
            ledger=self.ledger,
        )

    def shuffle_frame(self, shuffle: Shuffle) -> DataFrame:
        """A shuffle as a Spark DataFrame."""
        from millrace.spark.frames.rows_as_frames import to_frame  # noqa: PLC0415 - reading needs no Spark

        return to_frame(self.spark, shuffle, self._folders(), self.config)

    def read_source(self, options: Mapping[str, Any]) -> DataFrame:
        """What `format("millrace")` reads with these options."""
        from millrace.spark.frames.rows_as_frames import read_source  # noqa: PLC0415 - reading needs no Spark

        return read_source(self.spark, self.path, {"broker": self.broker, **options})

    def served_pages(self, start: StartPages) -> str:
        """The address of the pages of this workspace, which are served from now on."""
        with self._opening:
            if self._pages is None:
                self._pages = start(self)
            return self._pages[0]

    def close(self) -> None:
        """Close everything; stop Spark if it was started here."""
        self.is_closed = True
        with self._opening:
            pages, self._pages = self._pages, None
        if pages is not None:
            pages[1].close()
        self._journals.close()
        with self._opening:
            opened, self._agents = self._agents, None
            was_reported, self._is_reported = self._is_reported, False
        if was_reported:
            end_report(self.store)
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
            ledger=self.ledger,
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
