"""The way into a workspace's journals for the processes that Spark runs: planners and tasks.

None of them lives long, and none can count on another. Each joins the owner of the journals if
there is one. If there is none, and the workspace's folder is this host's own, it becomes the owner
until it is done; others join it, and when it goes the next call of any of them takes over.

Invariant: journals that are kept nowhere but in their owner's memory are only ever joined.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from millrace.config import Config
from millrace.errors import Corrupt, FormatError, OwnerUnreachable
from millrace.spark.source.source_options import SourceOptions
from millrace.storage.store import Store
from millrace.storage.workspace_home import WorkspaceHome, store_at
from millrace.storage.workspace_token import mode_of, token_of
from millrace.transport.owner import broker_address, owner_endpoint
from millrace.transport.owner.election import join_journals, own_or_join
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.owner_endpoint import JournalAddress

if TYPE_CHECKING:
    from millrace.execute.task_folders import Folders


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceEntry:
    """A workspace and how to reach its journals; small, and can be pickled."""

    path: str
    workspace_id: str
    token: str = field(repr=False)
    kind: str
    """The kind of broker that keeps the journals."""
    address: str | None = None
    """The address of an owner that outlives planning, for hosts without the folder."""
    config: Config = field(default_factory=Config)

    @classmethod
    def of(cls, options: SourceOptions, *, make: bool = False) -> WorkspaceEntry:
        """The workspace that options name; made only if asked to."""
        store = store_at(options.path, Config())
        home = WorkspaceHome(store)
        workspace_id = home.make() if make else home.look()
        token = token_of(store, is_for_journals=True)
        owner = owner_endpoint.read(store)
        kind = options.broker or broker_address.recorded(store) or (owner.broker if owner else None)
        return cls(
            path=options.path,
            workspace_id=workspace_id,
            token=token,
            kind=broker_address.check_broker(kind or broker_address.EMBEDDED),
        )

    @property
    def store(self) -> Store:
        """The workspace's folder or bucket."""
        return store_at(self.path, self.config)

    @property
    def folders(self) -> Folders:
        """How tasks find the folders of map outputs."""
        from millrace.execute.task_folders import Folders  # noqa: PLC0415 - not for journals

        return Folders(
            path=self.path,
            workspace_id=self.workspace_id,
            token=self.token,
            loopback=True,
            mode=mode_of(self.store),
        )

    @contextlib.contextmanager
    def journals(self) -> Iterator[JoinedBroker]:
        """The journals, owned or joined for as long as the block lasts."""
        broker = self._open()
        try:
            yield broker
        finally:
            broker.close()

    def reachable(self, broker: JoinedBroker) -> WorkspaceEntry:
        """The same entry with the owner's address, unless this process is the owner."""
        address = broker.address
        endpoint = owner_endpoint.read(self.store)
        is_own = (
            endpoint is not None and endpoint.pid == os.getpid() and endpoint.address == address
        )
        return self if is_own else replace(self, address=address)

    def _open(self) -> JoinedBroker:
        if self._is_here() and self.kind != broker_address.MEMORY:
            workspace = broker_address.owned_workspace(
                self.path,
                workspace_id=self.workspace_id,
                token=self.token,
                kind=self.kind,
                config=self.config,
            )
            return own_or_join(workspace)
        where = JournalAddress(
            path=self.path, address=self.address, token=self.token, workspace_id=self.workspace_id
        )
        if self.address is None and where.owner() is None:
            raise OwnerUnreachable(
                f"nobody serves the journals of {self.path}\n"
                f"  found: no owner, and this process cannot be it ({self.kind})\n"
                "  to fix: run `millrace serve` on the host of the workspace, with --host if tasks "
                "run elsewhere"
            )
        return join_journals(where, self.config)

    def _is_here(self) -> bool:
        """Whether the folder at this path on this host is the workspace's own."""
        try:
            return self.store.workspace_id() == self.workspace_id
        except (Corrupt, FormatError):
            return False
