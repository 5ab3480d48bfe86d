"""What makes a written run a shuffle: one attempt of each task, all there, under a free name."""

from __future__ import annotations

import json
import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, LongType, StructType

import millrace as mr
from millrace.config import Config
from millrace.errors import DataLost, UserError
from millrace.ids import StageId
from millrace.shuffle import cleanup, runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.spark.source.shuffle_writer import ShuffleWriter, WrittenOutput, make_writer
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry
from millrace.storage import layout

LONG = LongType()
COLUMNS = StructType().add("id", LONG).add("k", LONG)


@pytest.fixture
def options(tmp_path: Path) -> SourceOptions:
    return SourceOptions(path=str(tmp_path / "mill"), shuffle="n", key_by=("k",), partitions=2)


@pytest.fixture
def as_task(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Which task and try of it writes next."""
    task = SimpleNamespace(number=0, attempt=0)
    context = SimpleNamespace(partitionId=lambda: task.number, attemptNumber=lambda: task.attempt)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    return task


def written(writer: ShuffleWriter, task: SimpleNamespace, number: int, *ids: int) -> WrittenOutput:
    """As the next try of a task would, in another process."""
    task.number = number
    there = pickle.loads(pickle.dumps(writer))
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), "k": pa.array(ids, pa.int64())})
    message = there.write(iter([rows]))
    task.attempt += 1
    assert isinstance(message, WrittenOutput)
    return pickle.loads(pickle.dumps(message))  # type: ignore[no-any-return]


def ids_in(options: SourceOptions, name: str = "n") -> list[int]:
    store = WorkspaceEntry.of(options).store
    found = runs.read_manifest(store, run_catalog.resolve(store, name), StageId(0))
    shuffle = Shuffle(manifest=found, stores={None: store})
    return sorted(i for n in range(shuffle.partitions) for i in shuffle.read(n)["id"].to_pylist())


def test_the_attempt_that_its_message_names_counts_whatever_else_lies_there(
    options: SourceOptions, as_task: SimpleNamespace
) -> None:
    writer = make_writer(options, COLUMNS, overwrite=False)
    second = written(writer, as_task, 1, 3, 4)
    first = written(writer, as_task, 0, 1, 2)
    written(writer, as_task, 0, 1, 2)  # A second copy, which ended later.
    writer.commit([second, first])
    assert ids_in(options) == [1, 2, 3, 4]
    store = WorkspaceEntry.of(options).store
    assert not store.exists(layout.alive_path(run_catalog.resolve(store, "n")))


def test_a_run_lives_while_tasks_write_and_without_a_manifest_is_dropped_when_silent(
    options: SourceOptions, as_task: SimpleNamespace
) -> None:
    writer = make_writer(options, COLUMNS, overwrite=False)
    store = WorkspaceEntry.of(options).store
    (run,) = run_catalog.all_runs(store)
    alive = store.path(layout.alive_path(run.query_id))
    os.utime(alive, (1, 1))
    written(writer, as_task, 0, 1)
    now_ms = store.changed_at_ms(layout.alive_path(run.query_id)) or 0
    assert cleanup.drop_runs(store, older_than_ms=0, now_ms=now_ms, config=Config()).runs == ()

    os.utime(alive, (1, 1))  # The application was killed long ago.
    dropped = cleanup.drop_runs(store, older_than_ms=0, now_ms=now_ms, config=Config())
    assert dropped.runs == (run.query_id,)
    assert run_catalog.all_runs(store) == []


def test_a_write_whose_run_or_rows_were_removed_fails_whole(
    options: SourceOptions, as_task: SimpleNamespace
) -> None:
    store = WorkspaceEntry.of(options, make=True).store
    dropped = make_writer(options, COLUMNS, overwrite=False)
    message = written(dropped, as_task, 0, 1)
    store.remove_file(layout.query_path(run_catalog.all_runs(store)[-1].query_id))
    with pytest.raises(DataLost, match="was dropped while it was written"):
        dropped.commit([message])
    with pytest.raises(DataLost, match="was dropped while it was written"):
        written(dropped, as_task, 1, 2)

    cleaned = make_writer(options, COLUMNS, overwrite=False)
    for ids in ((), (1, 2)):  # Also where there is no row that could be missed.
        message = written(cleaned, as_task, 0, *ids)
        (folder,) = Path(store.root).glob(f"shuffle/2/0/0/{as_task.attempt}")
        store.discard(str(folder.relative_to(store.root)))
        with pytest.raises(DataLost, match="is gone before its shuffle was finished"):
            cleaned.commit([message])
    with pytest.raises(UserError, match="none that has a name"):
        ids_in(options)


def test_of_two_that_write_under_one_name_one_is_refused_also_at_the_last_moment(
    options: SourceOptions, as_task: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = make_writer(options, COLUMNS, overwrite=False)
    quick = make_writer(options, COLUMNS, overwrite=False)
    unseen = make_writer(options, COLUMNS, overwrite=False)
    messages = [written(one, as_task, 0, n) for n, one in enumerate((slow, quick, unseen))]
    quick.commit([messages[1]])
    with pytest.raises(UserError, match="found: run 2"):
        slow.commit([messages[0]])
    with pytest.raises(UserError, match="found: run 2"):
        make_writer(options, COLUMNS, overwrite=False)

    look, looked = run_catalog.find_named, []

    def not_at_first(*given: object) -> object:
        looked.append(given)
        return look(*given) if len(looked) > 1 else []  # type: ignore[arg-type]

    monkeypatch.setattr(run_catalog, "find_named", not_at_first)
    with pytest.raises(UserError, match="found: run 2"):
        unseen.commit([messages[2]])
    monkeypatch.undo()
    assert ids_in(options) == [1]
    assert run_catalog.find_named(WorkspaceEntry.of(options).store, "n") == [2]


def test_the_newest_counts_that_was_written_over_the_others(
    options: SourceOptions, as_task: SimpleNamespace
) -> None:
    for n in range(2):
        writer = make_writer(options, COLUMNS, overwrite=n > 0)
        writer.commit([written(writer, as_task, 0, n)])
    assert ids_in(options) == [1]
    assert len(run_catalog.find_named(WorkspaceEntry.of(options).store, "n")) == 2


def test_abort_removes_attempts_unless_the_manifest_is_there(
    options: SourceOptions, as_task: SimpleNamespace
) -> None:
    failed = make_writer(options, COLUMNS, overwrite=False)
    failed.abort([written(failed, as_task, 0, 1), None])
    assert list(Path(options.path).glob("shuffle/*/*/*/*/*")) == []
    assert not (Path(options.path) / "shuffle/1/alive").exists()

    done = make_writer(options, COLUMNS, overwrite=False)
    message = written(done, as_task, 0, 1)
    done.commit([message])
    done.abort([message])  # What Spark does if the commit's answer was lost.
    assert ids_in(options) == [1]


def test_columns_that_no_shuffle_can_hold_are_refused_before_a_run_is_begun(
    options: SourceOptions,
) -> None:
    for columns, keys, message in (
        (StructType().add("id", LONG).add("k", ArrayType(LONG)), ("k",), "k"),
        (StructType().add("id", LONG).add("id", LONG), ("id",), "id"),
        (StructType().add("id", LONG), ("k",), "k"),
    ):
        with pytest.raises(UserError, match=message):
            make_writer(replace(options, key_by=keys), columns, overwrite=False)
    assert run_catalog.all_runs(WorkspaceEntry.of(options).store) == []


def test_a_host_that_does_not_see_the_workspace_serves_what_its_tasks_wrote(
    options: SourceOptions,
    as_task: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = make_writer(options, COLUMNS, overwrite=False)
    here = written(writer, as_task, 0, 1, 2)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MILLRACE_FOLDER", str(tmp_path / "host"))
        elsewhere.setenv("MILLRACE_AGENT_HOST", "127.0.0.1")
        there = written(writer, as_task, 1, 3, 4)
    (agent,) = (tmp_path / "host").glob("*/agent.json")
    try:
        writer.commit([here, there])
        with mr.open(options.path) as ws:
            made = ws.open_shuffle("n")
            assert {choice.folder is None for choice in made.manifest.chosen} == {True, False}
            assert made.verify().ok
            found = [i for n in range(made.partitions) for i in made.read(n)["id"].to_pylist()]
            assert sorted(found) == [1, 2, 3, 4]
    finally:
        os.kill(json.loads(agent.read_bytes())["pid"], signal.SIGKILL)
