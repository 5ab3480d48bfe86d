"""Queries whose rows are many times the memory of a task are cut into pieces that fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import TOKEN, HereRunner, start

import millrace as mr
from millrace.config import KIB, MIB, Config
from millrace.errors import OutOfMemory
from millrace.execute.memory_fit import fitted, smaller_pieces
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.workspace import runtime_of

LIMIT = 8 * MIB
TIMES = 10
ROW_BYTES = 24
TEXT = "x" * 1000
TEXTS, KEYS = 24_000, 16
LISTS = "collect_list(concat(t, k))"
"""Lists that the engine cannot spill."""


@contextmanager
def opened(folder: Path, **limits: int) -> Iterator[tuple[mr.Workspace, ShuffleWorkspace]]:
    config = mr.Config().with_options(**limits)
    with mr.open(folder / "mill", config=config, create=True) as ws:
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = folders.agents(config, lambda _: None)
        workspace = ShuffleWorkspace(
            store=runtime_of(ws).store,
            folders=folders,
            config=config,
            agents=agents,
            keep_alive=KeepAlive(agents),
        )
        yield ws, workspace


def write_rows(path: Path, rows: int) -> None:
    """Each key once, in an order that helps nobody."""
    numbers = np.arange(rows)
    keys = (numbers * 2_654_435_761) % (1 << 32)
    table = pa.table({"k": keys, "v": numbers, "w": numbers * 3})
    pq.write_table(table, path, row_group_size=rows // 16, use_dictionary=False)


def write_texts(path: Path, keys: int) -> None:
    """Texts that take a hundred times as much in memory as in the file."""
    table = pa.table({"k": np.arange(TEXTS) % keys, "t": [TEXT] * TEXTS})
    pq.write_table(table, path, row_group_size=TEXTS // 16)


def test_the_default_settings_stay_and_less_memory_makes_smaller_pieces() -> None:
    assert fitted(Config()) == Config()
    small = fitted(Config(query_memory_bytes_max=64 * MIB))
    assert small.one_task_bytes_max == 32 * MIB
    assert small.partition_bytes_target == small.read_together_bytes_max == 16 * MIB
    assert fitted(small) == small
    again, *_, smallest = smaller_pieces(small)
    assert again.partition_bytes_target == 4 * MIB
    assert fitted(again) == again
    assert smallest.partition_bytes_target == 4 * KIB
    assert again.query_memory_bytes_max == small.query_memory_bytes_max
    assert fitted(Config(query_memory_bytes_max=1)).partition_bytes_target == 1


@pytest.mark.slow
def test_a_join_of_ten_times_the_memory_finishes(tmp_path: Path) -> None:
    rows = LIMIT * TIMES // ROW_BYTES // 2
    write_rows(tmp_path / "left.parquet", rows)
    write_rows(tmp_path / "right.parquet", rows)
    with opened(tmp_path, query_memory_bytes_max=LIMIT) as (ws, workspace):
        left = ws.read_parquet(tmp_path / "left.parquet")
        right = ws.read_parquet(tmp_path / "right.parquet").select("k", "w AS x")
        sums = left.join(right, on="k").agg(n="count(*)", v="sum(v)", x="sum(x)")
        (row,) = pa.Table.from_batches(start(workspace, sums, HereRunner()).batches()).to_pylist()

    total = rows * (rows - 1) // 2
    assert row == {"n": rows, "v": total, "x": total * 3}


@pytest.mark.slow
def test_a_group_by_of_ten_times_the_memory_finishes(tmp_path: Path) -> None:
    rows = LIMIT * TIMES // ROW_BYTES
    write_rows(tmp_path / "rows.parquet", rows)
    with opened(tmp_path, query_memory_bytes_max=LIMIT) as (ws, workspace):
        groups = (
            ws.read_parquet(tmp_path / "rows.parquet").group_by("k").agg(v="sum(v)", w="max(w)")
        )
        sums = groups.agg(n="count(*)", v="sum(v)", w="sum(w)")
        (row,) = pa.Table.from_batches(start(workspace, sums, HereRunner()).batches()).to_pylist()

    total = rows * (rows - 1) // 2
    assert row == {"n": rows, "v": total, "w": total * 3}


def test_a_task_without_enough_memory_is_planned_again_in_smaller_pieces_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    write_texts(tmp_path / "texts.parquet", keys=KEYS)
    with opened(tmp_path, query_memory_bytes_max=32 * MIB) as (ws, workspace):
        texts = ws.read_parquet(tmp_path / "texts.parquet")
        run = start(workspace, texts.group_by("k").agg(texts=LISTS), HereRunner())
        found = pa.Table.from_batches(run.batches())

    assert sorted(found["k"].to_pylist()) == list(range(KEYS))
    lists = {key: set(some) for key, some in zip(*found.to_pydict().values(), strict=True)}
    assert lists == {key: {f"{TEXT}{key}"} for key in range(KEYS)}
    assert {len(some) for some in found["texts"].to_pylist()} == {TEXTS // KEYS}
    (note,) = [note for note in run.report.stages[-1].notes if "planned again" in note]
    assert "planned again with partitions of" in note
    assert "query_memory_bytes_max (32.0 MiB)" in note


def test_rows_that_do_not_fit_however_they_are_cut_end_with_the_setting(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.parquet", keys=1)
    with opened(tmp_path, query_memory_bytes_max=16 * MIB) as (ws, workspace):
        lists = ws.read_parquet(tmp_path / "texts.parquet").group_by("k").agg(texts=LISTS)
        with pytest.raises(OutOfMemory, match=r"query_memory_bytes_max=33554432") as caught:
            start(workspace, lists, HereRunner())

    assert "limit: 16.0 MiB" in str(caught.value)
    assert "tried: " in str(caught.value)
    assert "reduce_tasks_max" not in str(caught.value)


def test_the_most_partitions_that_the_user_allows_are_kept_and_named_when_memory_runs_out(
    tmp_path: Path,
) -> None:
    write_texts(tmp_path / "texts.parquet", keys=KEYS)
    with opened(tmp_path, query_memory_bytes_max=16 * MIB, reduce_tasks_max=1) as (ws, workspace):
        lists = ws.read_parquet(tmp_path / "texts.parquet").group_by("k").agg(texts=LISTS)
        with pytest.raises(OutOfMemory, match=r"at most 1 partition \(reduce_tasks_max\)"):
            start(workspace, lists, HereRunner())
