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


def test_datasets_are_written_and_read_under_sparks_words(ws: mr.Workspace, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    rows = ws.from_arrow(numbers(0, 9))
    rows.write.format("delta").mode("append").partitionBy("day").save(table)
    rows.write.format("delta").mode("append").save(table)
    assert ids(tmp_path / "t") == sorted([*range(9), *range(9)])
    rows.write.format("delta").mode("overwrite").save(table)
    new = ws.from_arrow(numbers(30, 3)).filter("day = 'day 1'")
    writer = new.write.format("delta").mode("overwrite")
    writer.option("replaceWhere", "day = 'day 1'").save(table)
    assert ids(tmp_path / "t") == [0, 2, 3, 5, 6, 8, 31]

    read = ws.read.format("delta").load(table)
    assert sorted(read.to_arrow()["id"].to_pylist()) == [0, 2, 3, 5, 6, 8, 31]
    assert read.filter("day = 'day 1'").count() == 1
    before = ws.read.format("delta").option("versionAsOf", 1).load(table)
    assert before.count() == 9
    with pytest.raises(UserError, match="not among those that they replace"):
        rows.write_delta(table, mode="overwrite", replace_where="day = 'day 1'")

    marked = ws.from_arrow(numbers(5, 4)).select("id", "'new' AS day", "id = 8 AS gone")
    made = marked.write_delta(table, mode="upsert", keys="id", delete_column="gone")
    assert ids(tmp_path / "t") == [0, 2, 3, 5, 6, 7, 31]
    assert ws.read_delta(table, version=made.version).filter("day = 'new'").count() == 3


def test_a_job_keeps_the_last_row_of_each_key(ws: mr.Workspace, tmp_path: Path) -> None:
    table = tmp_path / "t"
    ws.journals.create("in", numbers(0, 1).schema)

    def job() -> mr.Job:
        made = ws.job("latest")
        rows = made.source("rows", journal="in").select(
            "id % 10 AS id", "day", "id % 10 = 7 AND id > 50 AS gone", "id AS number"
        )
        rows.sink_delta(table, "latest", keys="id", delete_column="gone")
        return made

    ws.journals.append("in", numbers(0, 50))
    job().run()
    assert ids(table) == list(range(10))
    ws.journals.append("in", numbers(50, 25))
    report = job().run()
    assert [commit.version for commit in report.commits][-1] == DeltaTable(str(table)).version()
    found = pl.scan_delta(str(table)).collect()
    last = {n % 10: n for n in range(75) if n % 10 != 7}
    assert dict(zip(found["id"], found["number"], strict=True)) == last


def test_what_a_job_cannot_do_with_a_table_is_refused(ws: mr.Workspace, tmp_path: Path) -> None:
    rows = ws.job("j").source("rows", ws.from_arrow(numbers(0, 3)))
    with pytest.raises(UserError, match="a job cannot overwrite a table"):
        rows.sink_delta(tmp_path / "t", mode="overwrite")
    with pytest.raises(UserError, match="leave mode= out; give keys="):
        rows.sink_delta(tmp_path / "t", mode="upsert")
    with pytest.raises(UserError, match="leave mode= out; give keys="):
        rows.sink_delta(tmp_path / "t", delete_column="day")
