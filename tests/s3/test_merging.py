"""Map outputs of a shuffle are merged on a real server: counted by what stands before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.s3.s3_kit import Proxy, Server
from tests.unit.execute.bucket_world import ROWS, all_rows, world_in, write_files

import millrace as mr
from millrace.storage.objects.object_store import open_object_store

TASKS, PARTITIONS = 40, 32


def test_a_shuffle_sends_few_requests_and_its_rows_are_right(
    server: Server, url: str, tmp_path: Path
) -> None:
    with Proxy(server.port).running() as proxy:
        store = open_object_store(f"{url}?endpoint_override={proxy.endpoint}", mr.Config())
        with world_in(store, tmp_path / "in") as world:
            write_files(world, TASKS)
            proxy.seen.clear()

            shuffle = world.shuffle(PARTITIONS)
            written = proxy.seen.total()
            rows = all_rows(world.reader(shuffle))

            assert sorted(rows) == list(range(TASKS * ROWS))
            # The manifest and the workspace; for each partition its column and two merged objects.
            assert proxy.seen.total() - written <= PARTITIONS * 3 + 2
            assert written <= TASKS * 9 + 30
            merged = store.names("merged")
            assert len(merged) == 2
            for name in merged:
                store.remove_file(f"merged/{name}")
            assert all_rows(world.reader(shuffle)) == rows
            for name in merged:
                store.replace(f"merged/{name}", b"what somebody else put there")
            assert all_rows(world.reader(shuffle)) == rows
            store.remove_file(f"shuffle/{shuffle.manifest.chosen[3].attempt}/data.ipc")
            with pytest.raises(mr.DataLost, match="is gone"):
                all_rows(world.reader(shuffle))
