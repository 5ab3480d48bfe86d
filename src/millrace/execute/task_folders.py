"""Where a task keeps what it writes: the workspace itself, or a folder of its own host.

A task finds the workspace at its path if the disk is shared: the folder there carries the
workspace's id; a bucket is always shared. Else it uses a folder of its own host, which the host's
agent serves to others: the one that MILLRACE_FOLDER names, or one at the same path.

Invariant: a task that writes to its host's own folder has seen the agent answer for that folder.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.errors import Corrupt, FormatError, StorageError
from millrace.ids import FolderId
from millrace.storage import modes
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_address import is_url
from millrace.storage.objects.object_store import open_object_store
from millrace.storage.store import Store
from millrace.transport.agent import agent_launch, host_folder
from millrace.transport.agent.agent_addresses import AddressOf
from millrace.transport.agent.agent_launch import AgentRequest
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight.tls import trusted_roots

FOLDER_VARIABLE: Final = "MILLRACE_FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """How tasks find their folder."""

    path: str
    workspace_id: str
    token: str
    loopback: bool
    mode: int = modes.PRIVATE
    """Of a host's own folder, as of the workspace."""

    def here(self, config: Config) -> tuple[FolderId | None, str | None, Store]:
        """This host's folder, the address of its agent (both None if shared), and the folder."""
        if is_url(self.path):
            return None, None, self._bucket(config)
        parent = self._own_parent()
        if parent is None:
            return None, None, LocalStore(self.path)
        store = LocalStore(os.path.join(parent, self.workspace_id))
        folder = self._open(store)
        process = _this_process(self, folder, config)
        request = AgentRequest(
            folder=folder,
            store=store,
            service=LocalStore(parent),
            host=agent_launch.own_host(os.environ, loopback=self.loopback),
            config=config,
        )
        with process.lock:
            address = agent_launch.ensure_agent(request, process.agents.calls)
            process.addresses[folder] = address
        process.keep_alive.add(folder)
        return folder, address, store

    def stores(self, config: Config | None = None) -> dict[FolderId | None, Store]:
        """The folders that can be read on this host without an agent."""
        if is_url(self.path):
            return {None: self._bucket(config or Config())}
        stores: dict[FolderId | None, Store] = {}
        if self._is_shared():
            stores[None] = LocalStore(self.path)
        parent = self._own_parent()
        if parent is not None:
            store = LocalStore(os.path.join(parent, self.workspace_id))
            folder = host_folder.find_folder(store)
            if folder is not None:
                stores[folder] = store
        return stores

    def agents(self, config: Config, address_of: AddressOf) -> Agents:
        """A client for the agents of this workspace."""
        return Agents(
            token=self.token,
            config=config,
            address_of=address_of,
            roots=trusted_roots(os.environ),
        )

    def _own_parent(self) -> str | None:
        """The folder that holds this host's own one; None if the workspace is shared."""
        named = os.environ.get(FOLDER_VARIABLE)
        if named:
            return os.path.abspath(os.path.expanduser(named))
        return None if self._is_shared() else self.path

    def _is_shared(self) -> bool:
        return self._is_at(LocalStore(self.path))

    def _is_at(self, store: Store) -> bool:
        try:
            return store.workspace_id() == self.workspace_id
        except (Corrupt, FormatError):
            return False

    def _bucket(self, config: Config) -> Store:
        """The workspace in S3, once it was seen from this process that it is the same one."""
        store = open_object_store(self.path, config)
        seen = (os.getpid(), self.path, self.workspace_id)
        if seen not in _seen:
            if not self._is_at(store):
                raise StorageError(
                    f"workspace {self.workspace_id} is not at {store.path('')} as seen from host "
                    f"{socket.gethostname()}\n  found: {store.address.server}\n"
                    "  to fix: give a url whose server all executors reach under the same name"
                )
            _seen.add(seen)
        return store

    def _open(self, store: LocalStore) -> FolderId:
        try:
            LocalStore(os.path.dirname(store.root)).make_folder(".", self.mode)
            folder = host_folder.open_folder(store, self.mode)
            host_folder.write_token(store, self.token)
        except StorageError as error:
            raise StorageError(
                f"{error}\n  found: no workspace {self.workspace_id} at {self.path} on this host, "
                "so a folder of its own is needed\n"
                f"  to fix: share the workspace's disk, or set {FOLDER_VARIABLE} in the "
                "executors' environment to a folder they can write to"
            ) from error
        return folder


class _Process:
    """What this process keeps for a folder: connections, and the agent's lease renewed."""

    def __init__(self, folders: Folders, config: Config) -> None:
        self.lock = threading.Lock()
        self.addresses: dict[FolderId, str] = {}
        self.agents = folders.agents(config, self.addresses.get)
        self.keep_alive = KeepAlive(self.agents)


_seen: set[tuple[int, str, str]] = set()
_processes: dict[tuple[int, str, FolderId, int], _Process] = {}


def _this_process(folders: Folders, folder: FolderId, config: Config) -> _Process:
    key = (os.getpid(), folders.token, folder, config.agent_lease_ms)
    process = _processes.get(key)
    return process or _processes.setdefault(key, _Process(folders, config))
