"""Rows of an answer are handed out while its last stage runs, and are those of the whole run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, NoFrames, start

import millrace as mr
from millrace import Dataset
from millrace.errors import DataLost, OutOfMemory, TaskFailed
from millrace.execute.query_run import QueryRun
from millrace.execute.results.early_rows import EarlyRows
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TaskTry, TaskWork, Watch
from millrace.execute.tasks import seen_outputs
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

FILES, ROWS = 6, 10
WAIT_S = 60


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_outputs, "_LOOK_S", 0.0)
    monkeypatch.setattr(seen_outputs, "_LOOK_SHARE", 0)


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, Dataset]]:
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        table = pa.table({"v": range(number * ROWS, (number + 1) * ROWS)})
        pq.write_table(table, tmp_path / "data" / f"{number:02}.parquet")
    config = mr.Config(one_task_bytes_max=1, partition_bytes_target=64, read_together_bytes_max=1)
    with mr.open(tmp_path / "mill", config=config, create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = folders.agents(config, lambda _: None)
        workspace = ShuffleWorkspace(
            store=runtime_of(ws).store,
            folders=folders,
            config=config,
            agents=agents,
            keep_alive=KeepAlive(agents),
        )
        yield workspace, ws.read_parquet(tmp_path / "data")


class Stepwise(HereRunner):
    """Runs one Spark task after the other, and before each does what the test says."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__()
        self._before = before
        self.ran: list[int] = []

    def slots(self) -> int:
        return FILES

    def run(
        self, work: TaskWork, tasks: int, schema: pa.Schema, *, title: str, watch: Watch
    ) -> pa.Table:
        self.titles.append(title)
        rows: list[pa.RecordBatch] = []
        for number in range(tasks):
            watch()
            self._before(number)
            rows += work(TaskTry(number, 0))
            self.ran.append(number)
        watch()
        return pa.Table.from_batches(rows, schema)


def early(
    workspace: ShuffleWorkspace, query: Dataset, runner: HereRunner
) -> Iterator[pa.RecordBatch]:
    rows = EarlyRows(workspace)
    return rows.read(QueryRun(runner, workspace, NoFrames(query._plan), zone="UTC", early=rows))


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [v for batch in batches for v in batch["v"].to_pylist()]


def test_the_first_rows_are_there_before_the_second_task_begins(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, data = numbers
    got_first = threading.Event()

    def before(task: int) -> None:
        assert task == 0 or got_first.wait(WAIT_S)

    rows = early(workspace, data, Stepwise(before))
    first = next(rows)
    got_first.set()

    assert first["v"].to_pylist() == list(range(ROWS))
    assert values(rows) == list(range(ROWS, FILES * ROWS))


def test_a_reader_that_ends_cancels_the_rest_and_finished_tasks_are_reused(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, data = numbers
    ended = threading.Event()

    def before(task: int) -> None:
        assert task == 0 or ended.wait(WAIT_S)

    runner = Stepwise(before)
    rows = early(workspace, data, runner)
    next(rows)
    threading.Timer(0.1, ended.set).start()
    rows.close()  # type: ignore[attr-defined]

    assert len(runner.ran) < FILES
    assert not any(thread.name == "millrace-query" for thread in threading.enumerate())
    again = start(workspace, data, HereRunner())
    assert again.report.reused >= len(runner.ran)
    assert values(again.batches()) == list(range(FILES * ROWS))


def test_an_error_after_the_first_rows_is_raised_behind_them(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, data = numbers
    got_first = threading.Event()

    def before(task: int) -> None:
        if task == 2:
            assert got_first.wait(WAIT_S)
            raise TaskFailed("the third task failed")

    rows = early(workspace, data, Stepwise(before))
    first = next(rows)
    got_first.set()

    with pytest.raises(TaskFailed, match="the third task failed"):
        list(rows)
    assert first["v"].to_pylist() == list(range(ROWS))


def test_an_error_before_the_first_rows_is_raised_at_once(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    def before(_: int) -> None:
        raise TaskFailed("the first task failed")

    with pytest.raises(TaskFailed, match="the first task failed"):
        next(early(*numbers, Stepwise(before)))


def test_rows_that_were_handed_out_are_not_planned_again_in_smaller_pieces(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, data = numbers
    got_first = threading.Event()

    def before(task: int) -> None:
        if task == 1:
            assert got_first.wait(WAIT_S)
            raise OutOfMemory("too little memory")

    rows = early(workspace, data, Stepwise(before))
    next(rows)
    got_first.set()

    with pytest.raises(OutOfMemory):
        list(rows)


@pytest.mark.parametrize("lost", range(3))
def test_an_output_that_is_lost_meanwhile_is_made_again_and_no_row_comes_twice(
    numbers: tuple[ShuffleWorkspace, Dataset], lost: int
) -> None:
    workspace, data = numbers
    got_first = threading.Event()

    def before(task: int) -> None:
        if task == 2:
            assert got_first.wait(WAIT_S)
        if task == 4:
            (path,) = Path(workspace.store.root).glob(f"shuffle/*/0/{lost}/1/data.ipc")
            path.unlink()

    rows = early(workspace, data, Stepwise(before))
    first = next(rows)
    got_first.set()

    assert [*first["v"].to_pylist(), *values(rows)] == list(range(FILES * ROWS))


def test_a_reused_answer_is_read_at_once(numbers: tuple[ShuffleWorkspace, Dataset]) -> None:
    workspace, data = numbers
    start(workspace, data, HereRunner())
    runner = HereRunner()

    assert values(early(workspace, data, runner)) == list(range(FILES * ROWS))
    assert runner.titles == []


def test_an_output_that_comes_out_different_ends_reading_with_an_error(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, data = numbers
    rows = EarlyRows(workspace)
    run = QueryRun(HereRunner(), workspace, NoFrames(data._plan), zone="UTC", early=rows)
    rows.handed_out.append("the content of other rows")

    with pytest.raises(DataLost, match="rows that were handed out already come out different"):
        list(rows.read(run))
