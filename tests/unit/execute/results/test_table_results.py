"""Answers of queries in Delta tables: whole, in one commit, and once if a write is cut off."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.execute.test_query_run import HereRunner, start, totals

from millrace.datasets.dataset import Dataset
from millrace.errors import SchemaMismatch, UserError
from millrace.execute.results.table_results import check_table, write_table
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.faults import VARIABLE
from millrace.shuffle.reports import TableWritten
from millrace.tables.delta.delta_target import DeltaTarget

Query = tuple[ShuffleWorkspace, Dataset]
POINTS = ("before_tasks", "after_write", "before_commit", "after_commit")
__all__ = ["totals"]


def write(query: Query, table: Path, mode: str = "append", *by: str) -> TableWritten:
    workspace, data = query
    target = DeltaTarget(uri=str(table), partition_by=by or None)
    check_table(target, mode, data.arrow_schema, workspace.config)
    run = start(workspace, data, HereRunner())
    return run.with_answer(
        lambda answer: write_table(HereRunner(2), workspace, answer, target, mode)
    )


def keys(table: Path) -> list[int]:
    return sorted(pl.scan_delta(str(table)).collect()["k"].to_list())


def test_rows_are_committed_at_once_and_each_call_is_a_write(
    totals: Query,
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    first, second = write(totals, table), write(totals, table)
    assert (first.version, first.rows, second.version) == (1, 7, 2)
    assert keys(table) == sorted([*range(7), *range(7)])
    assert pl.scan_delta(str(table)).collect()["n"].sum() == 240


def test_partitions_are_made_and_kept(totals: Query, tmp_path: Path) -> None:
    write(totals, tmp_path / "t", "append", "k")
    assert write(totals, tmp_path / "t").files == 7
    assert DeltaTable(str(tmp_path / "t")).metadata().partition_columns == ["k"]
    assert keys(tmp_path / "t") == sorted([*range(7), *range(7)])


def test_overwrite_takes_the_place_of_all_rows_also_of_others(
    totals: Query,
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    write(totals, table)
    other = {"k": pa.array([99], pa.int64()), "n": pa.array([1], pa.int64())}
    write_deltalake(str(table), pa.table(other), mode="append", schema_mode="merge")
    assert write(totals, table, "overwrite").version == 3
    assert keys(table) == list(range(7))
    assert max(pl.scan_delta(str(table), version=2).collect()["k"].to_list()) == 99


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("point", POINTS)
def test_a_write_that_is_cut_off_and_made_again_is_committed_once(
    totals: Query,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    mode: str,
) -> None:
    table = tmp_path / "t"
    with monkeypatch.context() as cut:
        cut.setenv(VARIABLE, f"results.table.{point}:raise")
        with pytest.raises(OSError, match="No space left"):
            write(totals, table, mode)
    again = write(totals, table, mode)
    assert keys(table) == list(range(7))
    assert again.rows == 7
    assert again.version == (None if point == "after_commit" else 1)
    write(totals, table, mode)
    assert keys(table) == sorted([*range(7), *(range(7) if mode == "append" else ())])


def test_what_does_not_fit_is_refused_before_it_is_made(
    totals: Query,
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), pa.table({"k": ["a"]}))
    with pytest.raises(SchemaMismatch, match="column 'k' is long"):
        write(totals, table)
    with pytest.raises(UserError, match="mode is 'replace'\n  to fix: use append or overwrite"):
        write(totals, tmp_path / "u", "replace")
    kept = {"delta.appendOnly": "true"}
    write(totals, tmp_path / "v")
    DeltaTable(str(tmp_path / "v")).alter.set_table_properties(kept)
    with pytest.raises(UserError, match=r"delta\.appendOnly is true"):
        write(totals, tmp_path / "v", "overwrite")
