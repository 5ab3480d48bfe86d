"""A workspace folder, what map tasks do in it, and processes that can be killed meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.faults import VARIABLE
from millrace.ids import (
    LATEST,
    Attempt,
    AttemptId,
    FolderId,
    Latest,
    MapTask,
    MapTaskId,
    QueryId,
    StageId,
)
from millrace.keys import CustomPartitioner, HashPartitioner, Partitioner
from millrace.shuffle import reader, runs
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.manifest import Choice, Manifest
from millrace.shuffle.writer import Provenance, begin_attempt, write_map_output
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.testing.fault_injection import armed

HOUR_MS = 3_600_000
KILLED = -9

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.unit.shuffle.shuffle_kit"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def column(values: Iterable[object], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": pa.array(list(values), kind or pa.int64())})


def made_from(name: str = "orders.parquet", size: int = 10, **more: object) -> dict[str, Any]:
    entry = {"path": f"/data/{name}", "size": size, "mtime_ns": 5, "ctime_ns": 5, **more}
    return {"inputs": [entry], "scan": {"format": "parquet"}, "partitioner": {"kind": "hash"}}


def to_partition(number: int, partitions: int) -> Partitioner:
    """Every row to one partition."""
    return CustomPartitioner(lambda batch: pa.array([number] * batch.num_rows), partitions)


def write(
    store: LocalStore,
    attempt: AttemptId,
    rows: pa.Table | Iterable[pa.RecordBatch],
    *,
    by: Partitioner | None = None,
    config: Config | None = None,
    schema: pa.Schema | None = None,
    created_at_ms: int = 1,
    source: Mapping[str, Any] | None = None,
) -> MapTaskIndex:
    """Do what a map task does: claim the attempt and write its rows."""
    begin_attempt(store, attempt)
    if isinstance(rows, pa.Table):
        schema = rows.schema
        rows = rows.to_batches()
    return write_map_output(
        store,
        attempt,
        rows,
        schema=schema,
        partitioner=by or HashPartitioner("x", 2),
        config=config or Config(),
        now_ms=lambda: created_at_ms,
        provenance=None if source is None else Provenance(made_from=source),
    )


def read_partition(
    store: LocalStore,
    task: MapTaskId,
    attempt: Attempt | Latest,
    partition: int,
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows that one map task wrote for one partition."""
    index = reader.read_index(store, task, attempt)
    data = reader.map_partition(store, index.id, reader.partition_meta(index, partition))
    yield from reader.decode(data, index.schema, columns)


def read(
    store: LocalStore, attempt: AttemptId, partition: int, which: Latest | None = None
) -> list[dict[str, Any]]:
    number: Attempt | Latest = attempt.attempt if which is None else which
    batches = read_partition(store, attempt.task, number, partition)
    return [row for batch in batches for row in batch.to_pylist()]


def read_all(store: LocalStore, index: MapTaskIndex) -> list[list[dict[str, Any]]]:
    """The rows of each partition."""
    found = []
    for meta in index.partitions:
        data = reader.map_partition(store, index.id, meta)
        found.append([row for b in reader.decode(data, index.schema) for row in b.to_pylist()])
    return found


def values(store: LocalStore, attempt: AttemptId, which: Latest | Attempt = LATEST) -> list[int]:
    """The `x` of all rows of a map task, sorted."""
    index = reader.read_index(store, attempt.task, which)
    return sorted(row["x"] for part in read_all(store, index) for row in part)


def folder(store: LocalStore, attempt: AttemptId) -> Path:
    return Path(store.path(layout.attempt_folder(attempt)))


def payload_files(store: LocalStore, attempt: AttemptId) -> list[Path]:
    return sorted(folder(store, attempt).glob("*.ipc"))


def everything(store: LocalStore) -> set[str]:
    """All files of a workspace, relative to it."""
    root = Path(store.root)
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def decide(store: LocalStore, query_id: int, chosen: Iterable[MapTaskIndex]) -> Manifest:
    """Write the manifest of a run's stage 0, pointing to these outputs."""
    indexes = list(chosen)
    decided = Manifest(
        query_id=QueryId(query_id),
        stage_id=StageId(0),
        created_at_ms=1,
        partitions=len(indexes[0].partitions),
        partitioner={"kind": "hash"},
        schema=indexes[0].schema,
        chosen=tuple(choice(number, index) for number, index in enumerate(indexes)),
        partition_rows=summed([[p.rows for p in index.partitions] for index in indexes]),
        partition_bytes=summed([[p.bytes for p in index.partitions] for index in indexes]),
    )
    runs.write_manifest(store, decided, sync=False)
    return decided


def summed(of_tasks: list[list[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*of_tasks, strict=True)))


def choice(number: int, index: MapTaskIndex, where: FolderId | None = None) -> Choice:
    return Choice(
        map_task=MapTask(number),
        attempt=index.id,
        folder=where,
        content=index.content_checksum(),
        rows=index.rows,
        bytes=index.bytes,
    )


def begin(store: LocalStore, *, created_at_ms: int = 1, alive: bool = False) -> int:
    """Begin a run; unless it is to live on, it dies at once."""
    run = runs.begin_run(store, plan="a plan", about={}, now_ms=created_at_ms)
    if not alive:
        store.remove_file(layout.alive_path(run.query_id))
    return run.query_id


def in_child(
    function: Callable[..., None], *args: object, fault: str | None = None, action: str = "kill"
) -> int:
    """Run a function of this module in a process of its own; its exit code."""
    child = _FORK.Process(target=_run, args=(function, args, fault, action))
    child.start()
    child.join(60)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def in_children(function: Callable[..., None], arguments: Iterable[tuple[object, ...]]) -> None:
    """Run a function in several processes at once, to the end."""
    children = [_FORK.Process(target=_run, args=(function, a, None, "")) for a in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * len(children)


def _run(function: Callable[..., None], args: tuple[Any, ...], fault: str | None, how: str) -> None:
    if fault is not None:
        os.environ[VARIABLE] = armed(fault, how)[VARIABLE]
    function(*args)


def child_writes(root: str, where: tuple[int, int, int, int], rows: list[int]) -> None:
    """A map task that knows what it was made from."""
    attempt = AttemptId.of(*where)
    # Two batches that are not gathered together, so that there is a split before the last.
    config = Config(task_memory_bytes_max=8 * 1024)
    table = column(rows)
    write(
        LocalStore(root),
        attempt,
        table,
        by=HashPartitioner("x", 3),
        config=config,
        source=made_from(),
        created_at_ms=now_ms(),
    )


def child_cleans(root: str, ttl_ms: int, now: int) -> None:
    from millrace.shuffle import cleanup

    cleanup.remove_expired(LocalStore(root), ttl_ms=ttl_ms, now_ms=now, config=Config())


def child_drops(root: str, older_than_ms: int, now: int) -> None:
    from millrace.shuffle import cleanup

    cleanup.drop_runs(LocalStore(root), older_than_ms=older_than_ms, now_ms=now, config=Config())


def child_creates(root: str, name: str, number: int, out: str) -> None:
    made = LocalStore(root).create(name, str(number).encode() * 1000)
    Path(out, str(number)).write_text(json.dumps(made), encoding="utf-8")


def child_begins_runs(root: str, number: int, count: int, out: str) -> None:
    store = LocalStore(root)
    mine = [runs.begin_run(store, plan="p", about={}, now_ms=1).query_id for _ in range(count)]
    Path(out, str(number)).write_text(json.dumps(mine), encoding="utf-8")


def child_measures(out: str, partitions: int, limit: int, total: int) -> None:
    """Write far more than the limit and say how much memory Arrow held at the most."""
    import tempfile

    import numpy as np

    rows = 8192
    random = np.random.default_rng(7)

    def batches() -> Iterable[pa.RecordBatch]:
        done = 0
        while done < total:
            keys = pa.array(random.integers(0, 2**60, rows))
            batch = pa.record_batch({"x": keys, "y": pa.array(random.random(rows))})
            done += batch.nbytes
            yield batch

    schema = pa.schema([("x", pa.int64()), ("y", pa.float64())])
    before = pa.default_memory_pool().max_memory()
    with tempfile.TemporaryDirectory(dir=out) as root:
        index = write(
            LocalStore(root),
            AttemptId.of(1, 0, 0, 1),
            batches(),
            schema=schema,
            by=HashPartitioner("x", partitions),
            config=Config(task_memory_bytes_max=limit),
        )
    found = {
        "before": before,
        "peak": pa.default_memory_pool().max_memory(),
        "rows": index.rows,
        "bytes": index.bytes,
    }
    Path(out, "found.json").write_text(json.dumps(found), encoding="utf-8")
