"""Delta tables with Spark's tasks: jobs and datasets write them, others read them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG

import millrace as mr
from millrace.errors import StepFailed, UserError

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, config=CONFIG)


def numbers(first: int, count: int) -> pa.Table:
    every = range(first, first + count)
    return pa.table({"id": list(every), "day": [f"day {n % 3}" for n in every]})


def ids(table: Path) -> list[int]:
    mine = sorted(pl.scan_delta(str(table)).collect()["id"].to_list())
    files = DeltaTable(str(table)).file_uris()
    assert mine == sorted(n for f in files for n in pl.read_parquet(f)["id"].to_list())
    return mine


def test_a_job_appends_each_row_once_over_several_runs_and_beside_others(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    ws.journals.create("in", numbers(0, 1).schema)

    def job() -> mr.Job:
        made = ws.job("copy")
        rows = made.source("rows", journal="in")
        rows.filter("id % 2 = 0").sink_delta(table, "even", partition_by="day")
        return made

    ws.journals.append("in", numbers(0, 100))
    first = job().run()
    write_deltalake(str(table), numbers(-5, 5), mode="append")
    ws.journals.append("in", numbers(100, 50))
    second = job().run()
    third = job().run()

    assert ids(table) == [*range(-5, 0), *range(0, 150, 2)]
    assert [commit.version for commit in first.commits] == [1]
    assert [(c.version, c.rows) for c in second.commits] == [(3, 25)]
    assert third.commits == ()
    assert third.step("even").rows_out == 75
    assert "even: 1 commits, 25 rows, the last is version 3" in str(second)
    assert second.html is not None
    assert "Commits to tables" in Path(second.html).read_text(encoding="utf-8")
    with pytest.raises(UserError, match="has appended rows to table"):
        job().reset("even")
    job().reset("even", append_again=True)
    job().run()
    assert ids(table).count(2) == 2


def test_a_table_that_changes_under_a_job_ends_it_with_the_reason(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), pa.table({"id": ["a"], "day": ["b"]}))
    job = ws.job("copy")
    job.source("rows", ws.from_arrow(numbers(0, 3))).sink_delta(table)
    with pytest.raises((UserError, StepFailed), match="column 'id' is long"):
        job.run()
