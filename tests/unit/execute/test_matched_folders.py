"""Files of partition folders that no row of the small side of a join asks for are not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, start

import millrace as mr
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

DAYS = 12


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, mr.Workspace]]:
    for day in [*range(DAYS), "__HIVE_DEFAULT_PARTITION__"]:
        folder = tmp_path / "facts" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": [1, 2, 3]}), folder / "a.parquet")
    ids = pa.array(range(DAYS), pa.int32())
    days = pa.table({"id": ids, "name": [f"d{n % 4}" for n in range(DAYS)]})
    pq.write_table(days, tmp_path / "days.parquet")
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
        yield workspace, ws


@pytest.mark.parametrize(
    ("how", "condition", "rows", "tasks"),
    [
        ("inner", "name = 'd1'", 9, 3),
        ("semi", "name = 'd1'", 9, 3),
        ("inner", "name = 'none'", 0, 1),
        ("left", "name = 'd1'", 3 * (DAYS + 1), DAYS + 1),
        ("anti", "name = 'd1'", 3 * (DAYS - 3 + 1), DAYS + 1),
    ],
)
def test_only_folders_of_joined_keys_are_read(
    opened: tuple[ShuffleWorkspace, mr.Workspace],
    tmp_path: Path,
    how: str,
    condition: str,
    rows: int,
    tasks: int,
) -> None:
    workspace, ws = opened
    days = ws.read_parquet(tmp_path / "days.parquet").filter(condition)
    facts = ws.read_parquet(tmp_path / "facts")
    query = facts.join(days, left_on="day", right_on="id", how=how)

    run = start(workspace, query, HereRunner())

    assert sum(batch.num_rows for batch in run.batches()) == rows
    assert run.report.stages[-1].map_tasks == tasks


def test_a_key_that_is_widened_for_the_join_leaves_out_folders_too(
    opened: tuple[ShuffleWorkspace, mr.Workspace], tmp_path: Path
) -> None:
    workspace, ws = opened
    days = ws.read_parquet(tmp_path / "days.parquet").filter("name = 'd1'")
    facts = ws.read_parquet(tmp_path / "facts").with_columns(long="CAST(day AS BIGINT)")
    query = facts.join(
        days.with_columns(id="CAST(id AS BIGINT)"), left_on="long", right_on="id"
    ).select("v")

    run = start(workspace, query, HereRunner())

    assert sum(batch.num_rows for batch in run.batches()) == 9
    assert run.report.stages[-1].map_tasks == 3


def test_rows_are_not_reused_where_a_folder_replaced_a_column_of_the_file(
    opened: tuple[ShuffleWorkspace, mr.Workspace], tmp_path: Path
) -> None:
    workspace, ws = opened
    folder = tmp_path / "own" / "day=5"
    folder.mkdir(parents=True)
    own = {"day": pa.array([1, 2], pa.int32()), "v": [7, 8]}
    pq.write_table(pa.table(own), folder / "a.parquet")
    rows = []

    for named in (tmp_path / "own", folder):
        days = ws.read_parquet(named).group_by("day").agg(n="count(*)").sort("day")
        run = start(workspace, days, HereRunner())
        rows.append([tuple(row.values()) for batch in run.batches() for row in batch.to_pylist()])

    assert rows == [[(5, 2)], [(1, 1), (2, 1)]]  # As Spark: the folder counts if it was not named.
