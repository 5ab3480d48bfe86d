"""What Spark tasks are sent, and what a workspace holds, as map tasks and partitions grow.

Bytes and files are counted, and no time is measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from tests.unit.execute.test_query_run import TOKEN, HereRunner

import millrace as mr
from millrace.execute.map_task import MapStage, ShufflePart, StageTask, stage_work_of
from millrace.execute.shuffle_run import ShuffleRequest, map_stage, shuffle_files
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import publish
from millrace.execute.stage_tasks import _consumed
from millrace.execute.task_folders import Folders
from millrace.execute.tasks.task_results import Result
from millrace.ids import AttemptId, MapTask, QueryId
from millrace.keys import HashPartitioner
from millrace.scan.source import Listing, open_source
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.partition_entries import DATA_FILE, ENTRY, PartitionEntries
from millrace.shuffle.reports import StageReport
from millrace.spark.shipping.function_shipping import pack_shares
from millrace.storage.local import LocalStore
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

SCHEMA = pa.schema({"k": pa.int64()})
KIB = 1024


@pytest.fixture
def workspace(tmp_path: Path) -> ShuffleWorkspace:
    with mr.open(tmp_path / "mill", create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = folders.agents(ws.config, lambda _: None)
        return ShuffleWorkspace(
            store=runtime_of(ws).store,
            folders=folders,
            config=ws.config,
            agents=agents,
            keep_alive=KeepAlive(agents),
        )


def decided(workspace: ShuffleWorkspace, tasks: int, partitions: int) -> tuple[MapStage, Shuffle]:
    """A stage of so many map outputs with rows in each partition."""
    run = runs.begin_run(workspace.store, plan="a plan", about={}, now_ms=1)
    request = ShuffleRequest(partitioner=HashPartitioner("k", partitions), plan="a plan")
    stage = map_stage(workspace, run.query_id, SCHEMA, request)
    results = [
        Result(
            map_task=MapTask(task),
            folder=None,
            agent=None,
            ran=True,
            index=index_of(run.query_id, task, partitions),
        )
        for task in range(tasks)
    ]
    return stage, publish(workspace, stage, results, StageReport(map_tasks=tasks), choices={})


def index_of(query_id: QueryId, task: int, partitions: int) -> MapTaskIndex:
    random = np.random.default_rng(task)
    entries = np.zeros(partitions, ENTRY)
    entries["bytes"] = random.integers(500, 90_000, partitions)
    entries["offset"] = np.cumsum(entries["bytes"]) - entries["bytes"]
    entries["rows"] = entries["bytes"] // 16
    entries["checksum"] = random.integers(1, 2**63, partitions)
    entries["batches"], entries["form"] = 1, DATA_FILE
    return MapTaskIndex(
        id=AttemptId.of(query_id, 0, task, 1),
        created_at_ms=1,
        partitions=PartitionEntries(entries),
        schema=SCHEMA,
    )


def sent(workspace: ShuffleWorkspace, tasks: int, partitions: int) -> tuple[int, list[int]]:
    """Bytes that all Spark tasks of the next stage are sent, and those of each one's own."""
    stage, shuffle = decided(workspace, tasks, partitions)
    fields = {name: getattr(stage, name) for name in stage.__slots__}
    reading = MapStage(**{**fields, "sources": (shuffle.manifest,)})
    next_tasks = []
    for number in range(partitions):
        part = ShufflePart(0, (number,))
        made = {"inputs": [{"path": f"{number}", "consumed": _consumed(shuffle, part)}]}
        next_tasks.append(
            StageTask(map_task=MapTask(number), parts=(part,), bytes=1, made_from=made)
        )
    work = stage_work_of(reading, [[task] for task in next_tasks])
    packed = pack_shares(lambda *_: iter(()), work.shares)
    return len(cloudpickle.dumps(work.run)), list(map(len, packed.shares))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("tasks", [64, 256, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_spark_task_is_sent_its_own_share_whatever_the_stage_has(
    workspace: ShuffleWorkspace, tasks: int
) -> None:
    common, shares = sent(workspace, tasks, 1_000)

    assert len(shares) == 1_000
    assert max(shares) <= KIB
    assert common + max(shares) <= 40 * KIB + 32 * tasks
    assert sum(shares) <= KIB * KIB  # They travel with their function.


@pytest.mark.slow
def test_what_spark_tasks_have_in_common_grows_with_map_tasks_and_not_with_their_partitions(
    workspace: ShuffleWorkspace,
) -> None:
    few, _ = sent(workspace, 1_000, 10)
    many, _ = sent(workspace, 1_000, 1_000)

    assert many - few <= 40 * 1_000  # Rows, bytes and a checksum of each partition's entries.


def inodes(folder: str) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


@pytest.mark.parametrize("tasks", [4, 8, 16])
def test_a_map_output_takes_as_many_inodes_whatever_its_partitions(
    workspace: ShuffleWorkspace, tmp_path: Path, tasks: int
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    for number in range(tasks):
        pq.write_table(pa.table({"k": range(number, number + 50)}), files / f"{number}.parquet")
    assert isinstance(workspace.store, LocalStore)
    taken = []
    for partitions in (2, 64, 300):
        before = inodes(workspace.store.root)
        source = open_source(str(files), Listing(now_ms=2**50, recent_ms=0))
        request = ShuffleRequest(partitioner=HashPartitioner("k", partitions), plan="a plan")
        shuffle = shuffle_files(HereRunner(), workspace, source, request)
        assert shuffle.rows == 50 * tasks
        taken.append(inodes(workspace.store.root) - before)

    # Two folders, the rows, two indexes, and what finds it again; of a new input two more.
    assert taken[1:] == [7 * tasks + 6, 7 * tasks + 6]
    assert taken[0] == taken[1] + 2 * tasks + 2
