"""What grows with map tasks times partitions: what a reader, a task and the driver take on.

    python benchmarks/shuffle_growth.py
    python benchmarks/shuffle_growth.py --driver 100000 64

For each size: CPU time, bytes read and memory of a reader that finds one partition in all map
outputs; and what Spark ships to each task of the next stage. `--driver` measures the memory of a
driver that decides a stage of so many map tasks and partitions.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

import millrace as mr
from millrace.engine.stage_work import PassThrough
from millrace.execute.map_task import MapStage, ShufflePart, StageTask, stage_work_of
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import publish
from millrace.execute.stage_tasks import _consumed
from millrace.execute.task_folders import Folders
from millrace.execute.tasks.task_results import Result, decode_results, encode_result
from millrace.ids import AttemptId, MapTask, QueryId, StageId
from millrace.keys import HashPartitioner
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.partition_entries import DATA_FILE, ENTRY, PartitionEntries
from millrace.shuffle.reports import StageReport
from millrace.spark.shipping.function_shipping import _pack
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

SIZES = ((256, 1000), (1024, 1000), (4096, 1000))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])


def index_of(task: int, partitions: int, random: np.random.Generator) -> MapTaskIndex:
    """The index of a map output with rows in each partition."""
    array = np.zeros(partitions, ENTRY)
    array["bytes"] = random.integers(500, 90_000, partitions)
    array["offset"] = np.cumsum(array["bytes"]) - array["bytes"]
    array["rows"] = array["bytes"] // 16
    array["checksum"] = random.integers(1, 2**63, partitions)
    array["batches"], array["form"] = 1, DATA_FILE
    path = f"/data/orders/day=2026-11-18/part-{task:05}-c000.snappy.parquet"
    return MapTaskIndex(
        id=AttemptId.of(1, 0, task, 1),
        created_at_ms=time.time_ns() // 1_000_000,
        partitions=PartitionEntries(array),
        schema=SCHEMA,
        made_from={
            "inputs": [{"path": path, "size": task, "mtime_ns": task, "ctime_ns": task}],
            "scan": {"format": "parquet", "schema": [["k", "int64"], ["v", "double"]]},
            "versions": {"millrace": "0.1.0", "pyarrow": pa.__version__},
        },
    )


def stage_of(workspace: ShuffleWorkspace, number: int, partitions: int) -> MapStage:
    """A stage of the query."""
    return MapStage(
        query_id=QueryId(1),
        stage_id=StageId(number),
        schema=SCHEMA,
        partitioner=HashPartitioner("k", partitions),
        config=workspace.config,
        folders=workspace.folders,
        versions={},
    )


def decide(workspace: ShuffleWorkspace, tasks: int, partitions: int) -> Shuffle:
    """What the driver does when the tasks of a stage have reported."""
    random = np.random.default_rng(7)
    batches = [
        encode_result(
            Result(
                map_task=MapTask(task),
                folder=None,
                agent=None,
                ran=True,
                index=index_of(task, partitions, random),
            )
        )
        for task in range(tasks)
    ]
    table = pa.Table.from_batches(batches)
    del batches
    results = [result for result in decode_results(table) if isinstance(result, Result)]
    report = StageReport(map_tasks=tasks)
    return publish(workspace, stage_of(workspace, 0, partitions), results, report, choices={})


def opened(folder: str) -> ShuffleWorkspace:
    """A workspace as a driver sees it."""
    config = mr.Config()
    ws = mr.open(folder, create=True, config=config)
    folders = Folders(path=ws.path, workspace_id=ws.id, token="t" * 32, loopback=True)
    agents = folders.agents(config, lambda _: None)
    runs.begin_run(runtime_of(ws).store, plan="a plan", about={}, now_ms=1)
    return ShuffleWorkspace(
        store=runtime_of(ws).store,
        folders=folders,
        config=config,
        agents=agents,
        keep_alive=KeepAlive(agents),
    )


def cpu_s() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(tasks: int, partitions: int) -> None:
    """One size."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = opened(folder)
        began = cpu_s()
        made = decide(workspace, tasks, partitions)
        deciding = cpu_s() - began
        manifest = made.manifest
        tracemalloc.start()
        began = cpu_s()
        reader = Shuffle(manifest=manifest, stores={None: workspace.store})
        column = reader._column(partitions // 2)  # noqa: SLF001 - all but the rows themselves
        parts = reader._parts(partitions // 2, column)  # noqa: SLF001
        finding = cpu_s() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(parts) == tasks
        began = cpu_s()
        loaded = runs.read_manifest(workspace.store, QueryId(1), StageId(0))
        manifest_s = cpu_s() - began
        assert loaded == manifest

        stage = stage_of(workspace, 1, partitions)
        stage = MapStage(
            **{**{n: getattr(stage, n) for n in stage.__slots__}, "sources": (manifest,)}
        )
        next_tasks = []
        began = cpu_s()
        for number in range(partitions):
            part = ShufflePart(0, (number,))
            made_from = {"inputs": [{"path": f"{number}", "consumed": _consumed(made, part)}]}
            next_tasks.append(
                StageTask(
                    map_task=MapTask(number),
                    parts=(part,),
                    bytes=1,
                    made_from=made_from,
                    work=PassThrough(),
                )
            )
        digests = cpu_s() - began
        work = stage_work_of(stage, [[task] for task in next_tasks])
        common = cloudpickle.dumps(work.run)  # type: ignore[no-untyped-call]
        shares = [_pack(share) for share in work.shares]
        began = cpu_s()
        cloudpickle.loads(common)
        unpickling = cpu_s() - began
        print(
            f"{tasks:>6} x {partitions}: deciding {deciding:.2f} s; "
            f"manifest read {manifest_s:.3f} s; "
            f"a reader finds its partition in {finding * 1000:.0f} ms, "
            f"{40 * tasks / 1000:.0f} kB read, {peak / 1e6:.1f} MB at most; "
            f"digests {digests:.2f} s; a task gets {len(common) / 1000:.0f} kB in common "
            f"(unpickled in {unpickling * 1000:.0f} ms) and {max(map(len, shares))} B of its own; "
            f"all shares {sum(map(len, shares)) / 1000:.0f} kB"
        )


def driver(tasks: int, partitions: int) -> None:
    """The memory of a driver, from the tasks' reports on."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        began = cpu_s()
        made = decide(opened(folder), tasks, partitions)
        used = cpu_s() - began
        size = Path(folder, "shuffle/1/0/entries.bin").stat().st_size
        json = Path(folder, "shuffle/1/0/manifest.json").stat().st_size
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pickled = len(pickle.dumps(made.manifest))
    print(
        f"{tasks} x {partitions}: {(after - before) / 1024:.0f} MiB more at most, {used:.1f} s of "
        f"CPU (a part of it makes the reports); entries.bin {size / 1e6:.0f} MB, manifest "
        f"{json / 1e6:.1f} MB, pickled {pickled / 1e6:.2f} MB; load {os.getloadavg()[0]:.0f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", nargs=2, type=int)
    given = parser.parse_args()
    if given.driver:
        driver(*given.driver)
    else:
        for size in SIZES:
            measure(*size)
