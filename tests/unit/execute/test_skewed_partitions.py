"""Skewed partitions are read in parts, also of one map output; the rows stay DuckDB's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, start

import millrace as mr
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.ids import QueryId, StageId
from millrace.shuffle import runs
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import Workspace, runtime_of

JOINS = ["inner", "left", "right", "full", "semi", "anti"]
PARTS = {
    "one_task_bytes_max": 1,
    "broadcast_bytes_max": 1,
    "partition_bytes_target": 3_000,
    "read_together_bytes_max": 1,
    "skew_bytes_min": 1,
    "skew_factor": 2,
    "reduce_tasks_max": 4,
    "reduce_tasks_min": 4,
}


@contextmanager
def opened(folder: Path, **options: int) -> Iterator[tuple[Workspace, ShuffleWorkspace]]:
    config = mr.Config().with_options(**options)
    with mr.open(folder / "mill", config=config, create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = folders.agents(config, lambda _: None)
        yield (
            ws,
            ShuffleWorkspace(
                store=runtime_of(ws).store,
                folders=folders,
                config=config,
                agents=agents,
                keep_alive=KeepAlive(agents),
            ),
        )


def seeded(seed: int | str) -> Random:
    return Random(seed)  # noqa: S311 - rows of a test


def write_side(folder: Path, column: str, files: int, rows: int, random: Random) -> None:
    """Most rows have one key; some keys are null, some are on one side alone."""
    folder.mkdir()
    hot = random.randrange(20)
    for number in range(files):
        drawn = [hot if random.random() < 0.7 else random.randrange(30) for _ in range(rows)]
        keys = [None if random.random() < 0.05 else key for key in drawn]
        values = [random.randrange(1 << 40) for _ in range(rows)]
        table = pa.table({"k": pa.array(keys, pa.int64()), column: pa.array(values, pa.int64())})
        pq.write_table(table, folder / f"{number}.parquet")


def rows_of(rows: list[tuple[object, ...]]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(repr, row)) for row in rows)


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("how", JOINS)
def test_joins_of_skewed_tables_have_the_rows_of_duckdb(
    tmp_path: Path, how: str, files: int
) -> None:
    random = seeded(f"{how} {files}")
    skewed = random.choice(["l", "r"])
    for side in ("l", "r"):
        write_side(tmp_path / side, side, files, 900 if side == skewed else 12, random)
    with opened(tmp_path, **PARTS) as (ws, workspace):
        left, right = ws.read_parquet(tmp_path / "l"), ws.read_parquet(tmp_path / "r")
        run = start(workspace, left.join(right, on="k", how=how), HereRunner())
        table = pa.Table.from_batches(run.batches(), run.answer.schema)
        notes = run.report.stages[-1].notes

    sql = f"FROM '{tmp_path}/l/*.parquet' {how} JOIN '{tmp_path}/r/*.parquet' USING (k)"
    with duckdb.connect() as engine:
        expected = engine.execute(f"SELECT * {sql}").fetchall()
    assert rows_of([tuple(row.values()) for row in table.to_pylist()]) == rows_of(expected)
    kept = {"left": "l", "semi": "l", "anti": "l", "right": "r", "full": None}.get(how, skewed)
    assert any("skewed" in note for note in notes) == (kept == skewed)


@pytest.mark.parametrize("hows", [("left", "inner"), ("inner", "left"), ("left", "left")])
def test_joins_of_joins_split_a_side_that_is_kept_by_all_of_them(
    tmp_path: Path, hows: tuple[str, str]
) -> None:
    random = seeded(7)
    for side, rows in (("l", 900), ("r", 12), ("s", 12)):
        write_side(tmp_path / side, side, 2, rows, random)
    with opened(tmp_path, **PARTS) as (ws, workspace):
        tables = [ws.read_parquet(tmp_path / side) for side in "lrs"]
        query = tables[0].join(tables[1], on="k", how=hows[0]).join(tables[2], on="k", how=hows[1])
        run = start(workspace, query, HereRunner())
        table = pa.Table.from_batches(run.batches(), run.answer.schema)

    names = [f"'{tmp_path}/{side}/*.parquet'" for side in "lrs"]
    sql = f"FROM {names[0]} {hows[0]} JOIN {names[1]} USING (k) {hows[1]} JOIN {names[2]} USING (k)"
    with duckdb.connect() as engine:
        expected = engine.execute(f"SELECT * {sql}").fetchall()
    assert rows_of([tuple(row.values()) for row in table.to_pylist()]) == rows_of(expected)
    assert any("skewed" in note for note in run.report.stages[-1].notes)


def test_a_part_of_an_output_is_reused_and_runs_again_alone_if_it_is_lost(tmp_path: Path) -> None:
    random = seeded(11)
    write_side(tmp_path / "l", "l", 1, 900, random)
    write_side(tmp_path / "r", "r", 1, 12, random)
    with opened(tmp_path, **PARTS) as (ws, workspace):
        query = ws.read_parquet(tmp_path / "l").join(
            ws.read_parquet(tmp_path / "r"), on="k", how="left"
        )
        first = start(workspace, query, HereRunner())
        rows = pa.Table.from_batches(first.batches())
        tasks = first.report.stages[-1].map_tasks
        again = start(workspace, query, HereRunner())
        attempt = again.answer.manifest.chosen[1].attempt
        for file in Path(workspace.store.root, "shuffle", str(attempt)).glob("data.ipc"):
            file.unlink()
        repaired = start(workspace, query, HereRunner())

        assert tasks > 4
        assert again.report.stages[-1].ran == 0
        assert repaired.report.stages[-1].ran == 1
        assert pa.Table.from_batches(repaired.batches()) == rows


@pytest.mark.parametrize(("factor", "in_two_steps"), [(5, True), (1_000, False)])
def test_groups_with_a_frequent_key_are_made_in_two_steps(
    tmp_path: Path, factor: int, *, in_two_steps: bool
) -> None:
    rows, hot = 3_000, 1_200
    keys = [-1 if number % 5 < 2 else number for number in range(rows)]
    pq.write_table(pa.table({"k": keys, "v": range(rows)}), tmp_path / "a.parquet")
    options = PARTS | {"reduce_tasks_max": 64, "skew_factor": factor, "partition_bytes_target": 500}
    with opened(tmp_path, **options) as (ws, workspace):
        groups = ws.read_parquet(tmp_path / "a.parquet").group_by("k").agg(n="count(*)", s="sum(v)")
        run = start(workspace, groups, HereRunner())
        exchanged = workspace_rows(workspace)
        table = pa.Table.from_batches(run.batches(), run.answer.schema)

    with duckdb.connect() as engine:
        sql = f"SELECT k, count(*), sum(v)::BIGINT FROM '{tmp_path}/a.parquet' GROUP BY k"
        expected = engine.execute(sql).fetchall()
    assert rows_of([tuple(row.values()) for row in table.to_pylist()]) == rows_of(expected)
    assert sum(exchanged) == (rows - hot + 1 if in_two_steps else rows)
    assert (max(exchanged) > hot) != in_two_steps


def workspace_rows(workspace: ShuffleWorkspace) -> list[int]:
    """The rows of each partition that the first stage of the only run wrote."""
    manifest = runs.read_manifest(workspace.store, QueryId(1), StageId(0))
    return list(manifest.partition_rows)


@pytest.mark.parametrize(("least", "most", "tasks"), [(1, 65_536, 1), (3, 8, 3), (1, 2, 2)])
def test_reduce_tasks_are_as_few_and_as_many_as_the_settings_say(
    tmp_path: Path, least: int, most: int, tasks: int
) -> None:
    write_side(tmp_path / "l", "l", 2, 900, seeded(1))
    options = {"one_task_bytes_max": 1, "reduce_tasks_min": least, "reduce_tasks_max": most}
    if tasks == most:
        options |= {"partition_bytes_target": 100, "read_together_bytes_max": 1}
    with opened(tmp_path, **options) as (ws, workspace):
        groups = ws.read_parquet(tmp_path / "l").group_by("k").agg(n="count(*)")
        run = start(workspace, groups, HereRunner())
        ordered = start(workspace, ws.read_parquet(tmp_path / "l").sort("l"), HereRunner())

    assert run.report.stages[-1].map_tasks == tasks
    assert ordered.answer.rows == 2 * 900
    assert ordered.report.stages[-1].map_tasks == tasks
