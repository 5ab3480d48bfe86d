"""A workspace in a bucket and files to shuffle, with tasks that run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.unit.execute.memory_bucket import MemoryCalls
from tests.unit.execute.test_query_run import TOKEN, HereRunner

from millrace.execute.shuffle_run import ShuffleRequest, shuffle_files
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.keys import HashPartitioner
from millrace.scan.source import Listing, open_source
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.workspace_file import encode
from millrace.transport.agent.keep_alive import KeepAlive

ROWS = 200
WORKSPACE_ID = "0123456789abcdef"


@dataclass
class World:
    """A workspace in a bucket, and files to shuffle."""

    store: ObjectStore
    workspace: ShuffleWorkspace
    files: Path

    @property
    def calls(self) -> MemoryCalls:
        assert isinstance(self.store.calls, MemoryCalls)
        return self.store.calls

    def shuffle(self, partitions: int) -> Shuffle:
        """Run one, as the driver and its tasks do."""
        source = open_source(str(self.files), Listing(now_ms=2**50, recent_ms=0))
        request = ShuffleRequest(partitioner=HashPartitioner("k", partitions), plan="a plan")
        return shuffle_files(HereRunner(), self.workspace, source, request)

    def reader(self, shuffle: Shuffle) -> Shuffle:
        """What a task of the next stage has: the manifest alone."""
        manifest = runs.read_manifest(self.store, shuffle.query_id, shuffle.stage_id)
        return Shuffle(manifest=manifest, stores={None: self.store})


@contextmanager
def world_in(store: ObjectStore, files: Path) -> Iterator[World]:
    """A new workspace in a bucket that tasks of this process find."""
    store.create("workspace.json", encode(WORKSPACE_ID))
    folders = Folders(path=store.root, workspace_id=WORKSPACE_ID, token=TOKEN, loopback=True)
    agents = folders.agents(store.config, lambda _: None)
    workspace = ShuffleWorkspace(
        store=store,
        folders=folders,
        config=store.config,
        agents=agents,
        keep_alive=KeepAlive(agents),
    )
    files.mkdir()
    yield World(store, workspace, files)
    agents.close()


def write_files(world: World, count: int) -> None:
    for number in range(count):
        rows = range(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"k": rows}), world.files / f"{number:05}.parquet")


def all_rows(shuffle: Shuffle) -> list[int]:
    return [k for n in range(shuffle.partitions) for k in shuffle.read(n)["k"].to_pylist()]
