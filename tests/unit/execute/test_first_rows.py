"""The first rows of a plan in many tasks: few tasks run, and the rows are those of all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, start

import millrace as mr
from millrace import Dataset
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

FILES, ROWS = 30, 10


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


@pytest.mark.parametrize(
    ("condition", "rows", "tasks"),
    [
        ("true", 5, 1),
        ("true", 10, 1),
        ("true", 11, 5),
        ("v >= 40", 5, 5),
        ("v >= 290", 5, 30),
        ("v >= 298", 5, 30),
        ("v < 0", 5, 30),
    ],
)
def test_tasks_stop_when_there_are_enough_rows(
    numbers: tuple[ShuffleWorkspace, Dataset], condition: str, rows: int, tasks: int
) -> None:
    workspace, data = numbers
    query = data.filter(condition).limit(rows)

    run = start(workspace, query, HereRunner())

    every = [v for v in range(FILES * ROWS) if eval(condition, {"true": True, "v": v})]  # noqa: S307 - written above
    values = [v for batch in run.batches() for v in batch["v"].to_pylist()]
    assert values == every[:rows]
    assert run.report.stages[0].ran == tasks


def test_a_second_run_reuses_the_few_tasks_and_a_larger_limit_runs_its_own(
    numbers: tuple[ShuffleWorkspace, Dataset],
) -> None:
    workspace, data = numbers
    start(workspace, data.limit(15), HereRunner())

    runner = HereRunner()
    again = start(workspace, data.limit(15), runner)

    assert runner.titles == []
    assert again.report.stages[0].ran == 0
    assert sum(batch.num_rows for batch in again.batches()) == 15
