"""A host's folder, and an agent in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from millrace.config import Config
from millrace.execute.task_folders import Folders
from millrace.ids import AttemptId, FolderId
from millrace.keys import HashPartitioner
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.writer import Provenance, begin_attempt, write_map_output
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.transport.agent import host_folder
from millrace.transport.agent.agent_server import AgentServer
from millrace.transport.agent.remote_outputs import Agents

WORKSPACE = "0123456789abcdef"
TOKEN = "a-token-for-tests"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Host:
    """A host's folder with its id, and what a map task does there."""

    folder: FolderId
    store: LocalStore

    def write(
        self,
        attempt: AttemptId,
        values: list[int],
        *,
        partitions: int = 4,
        made_from: Mapping[str, object] | None = None,
        recent: Mapping[str, str] | None = None,
    ) -> MapTaskIndex:
        """Write one attempt with a column of numbers."""
        batch = pa.record_batch({"n": pa.array(values, pa.int64())})
        begin_attempt(self.store, attempt)
        return write_map_output(
            self.store,
            attempt,
            [batch],
            schema=batch.schema,
            partitioner=HashPartitioner("n", partitions),
            config=Config(),
            now_ms=lambda: 1,
            provenance=None
            if made_from is None
            else Provenance(made_from=made_from, recent=recent or {}),
        )

    def payload(self, index: MapTaskIndex, partition: int) -> Path:
        """The file of a partition."""
        name = index.partitions[partition].file
        assert name is not None
        return Path(self.store.path(f"{layout.attempt_folder(index.id)}/{name}"))


def make_host(root: Path) -> Host:
    """A host's folder as a task leaves it."""
    store = LocalStore(str(root))
    folder = host_folder.open_folder(store)
    host_folder.write_token(store, TOKEN)
    return Host(folder, store)


@dataclass(frozen=True, slots=True)
class Serving:
    """An agent in this process, and a client of it."""

    server: AgentServer
    address: str
    agents: Agents


Serve = Callable[..., Serving]


def folders_at(path: Path) -> Folders:
    return Folders(path=str(path), workspace_id=WORKSPACE, token=TOKEN, loopback=True)


def own_folder(path: Path, config: Config) -> tuple[FolderId, str, LocalStore]:
    """What a task on a host without the workspace gets."""
    folder, address, store = folders_at(path).here(config)
    assert folder is not None
    assert address is not None
    assert isinstance(store, LocalStore)
    return folder, address, store


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


def client(address: str) -> Agents:
    return Agents(token=TOKEN, config=Config(), address_of=lambda _: address)
