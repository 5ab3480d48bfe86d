"""Sources of jobs: taken in once and whole, and noticed when they change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from tests.spark.job_kit import CONFIG, happened, ids, rows_in, written

import millrace as mr
from millrace.errors import JobChanged, UserError
from millrace.pipeline.core.job_events import JobEventKind
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", spark, config=CONFIG) as opened:
        yield opened


class Copy:
    """A job that copies its source."""

    def __init__(self, ws: mr.Workspace, out: Path) -> None:
        self.ws, self.out = ws, out

    def run(self, given: object, *, on_change: str = "fail", **options: object) -> mr.Job:
        job = self.ws.job("copy")
        rows = job.source("rows", given, **options)  # type: ignore[arg-type]
        rows.sink_parquet(self.out, name="out")
        job.run(on_change=on_change)  # type: ignore[arg-type]
        return job

    @property
    def takings(self) -> list[int]:
        return [e.detail["rows"] for e in happened(self.ws, "copy", JobEventKind.TAKEN_IN)]


@pytest.fixture
def copy(ws: mr.Workspace, tmp_path: Path) -> Copy:
    return Copy(ws, tmp_path / "out")


def numbers(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).selectExpr("id", "id % 10 AS ten")


def test_rows_in_another_order_are_the_same_rows(copy: Copy, spark: SparkSession) -> None:
    copy.run(numbers(spark, 100))
    copy.run(numbers(spark, 100).orderBy(F.desc("id")))
    copy.run(numbers(spark, 100).repartition(7, "ten"))

    assert copy.takings == [100]
    assert ids(copy.out) == list(range(100))


def test_rows_are_dealt_evenly_whatever_spark_s_partitions(
    copy: Copy, spark: SparkSession, ws: mr.Workspace
) -> None:
    lopsided = numbers(spark, 103).repartitionByRange(5, "ten")

    copy.run(lopsided, partitions=4)

    counts = rows_in(ws, "copy", "rows")
    assert sum(counts.values()) == 103
    assert max(counts.values()) - min(counts.values()) <= 5, "a row for each of Spark's tasks"


def test_a_changed_source_is_refused_with_its_rows_then_and_now(
    copy: Copy, spark: SparkSession
) -> None:
    copy.run(numbers(spark, 100))

    with pytest.raises(JobChanged, match="100 rows then, 101 rows now(.|\n)*on_change='continue'"):
        copy.run(numbers(spark, 101))
    with pytest.raises(JobChanged, match="with other values"):
        copy.run(numbers(spark, 100).withColumn("ten", F.expr("if(id = 3, null, ten)")))
    with pytest.raises(JobChanged, match="columns"):
        copy.run(numbers(spark, 100).withColumn("more", F.lit(1)))
    assert ids(copy.out) == list(range(100))


def test_only_what_is_new_is_taken_in_and_each_copy_of_a_row_counts(
    copy: Copy, spark: SparkSession
) -> None:
    before = numbers(spark, 30).unionAll(numbers(spark, 10))
    copy.run(before)
    after = numbers(spark, 35).unionAll(numbers(spark, 12)).unionAll(numbers(spark, 1))

    copy.run(after.repartition(3), on_change="continue")

    assert copy.takings == [40, 5 + 2 + 1]
    assert ids(copy.out) == sorted([*range(35), *range(12), 0])
    copy.run(after)
    assert copy.takings == [40, 8], "what is there now is what is compared with"


def test_a_restart_takes_all_in_again_and_leaves_nothing_of_before(
    copy: Copy, spark: SparkSession
) -> None:
    copy.run(numbers(spark, 30))

    copy.run(numbers(spark, 20).selectExpr("id + 100 AS id", "ten"), on_change="restart")

    assert copy.takings == [30, 20]
    assert ids(copy.out) == list(range(100, 120))


def test_a_version_is_compared_instead_of_rows_which_are_not_looked_at(
    copy: Copy, spark: SparkSession
) -> None:
    copy.run(numbers(spark, 30), version="may")
    wrong = numbers(spark, 5).withColumn("ten", F.expr("raise_error('looked at')").cast("bigint"))

    copy.run(wrong, version="may")

    assert ids(copy.out) == list(range(30))
    with pytest.raises(JobChanged, match="'?may'?(.|\n)*'?june'?"):
        copy.run(numbers(spark, 40), version="june")
    copy.run(numbers(spark, 40), version="june", on_change="continue")
    assert ids(copy.out) == list(range(40))


def test_a_source_without_rows_works_and_may_get_some(copy: Copy, spark: SparkSession) -> None:
    copy.run(numbers(spark, 0))

    assert written(copy.out).num_rows == 0
    copy.run(numbers(spark, 3), on_change="continue")
    assert ids(copy.out) == [0, 1, 2]


def test_rows_of_every_type_come_through_as_they_are(
    ws: mr.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql(
        """SELECT * FROM VALUES
        (1, 'a', 1.5D, DATE '2024-02-29', TIMESTAMP '2024-01-01 12:00:00', X'00FF', array(1, null),
         named_struct('x', 1, 'y', null), 1.23BD, true),
        (2, null, double('NaN'), null, null, null, null, null, null, null),
        (3, '', -0.0D, DATE '1900-01-01', TIMESTAMP '1969-12-31 23:59:59.999999', X'', array(),
         named_struct('x', null, 'y', 'z'), -9.99BD, false)
        AS t(id, `s.o`, d, day, at, b, list, st, amount, flag)"""
    )

    def job(given: DataFrame, on_change: str = "fail") -> None:
        job = ws.job("types")
        job.source("rows", given).sink_parquet(tmp_path / "out")
        job.run(on_change=on_change)  # type: ignore[arg-type]

    job(frame)

    expected = frame.toArrow().sort_by("id")
    found = written(tmp_path / "out")
    assert str(found.to_pylist()) == str(expected.to_pylist())
    job(frame.orderBy(F.desc("id")))
    swapped = frame.withColumn("list", F.expr("if(id = 1, array(null, 1), list)"))
    with pytest.raises(JobChanged, match="with other values"):
        job(swapped)
    job(frame.unionAll(frame.where("id = 2")), on_change="continue")
    assert ids(tmp_path / "out") == [1, 2, 2, 3]


def test_files_are_taken_in_by_name_and_new_ones_are_noticed(
    copy: Copy, ws: mr.Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text(name)

    def job(on_change: str = "fail") -> None:
        job = ws.job("files")
        job.source("files", mr.files(folder)).select("path", "size AS id").sink_parquet(copy.out)
        job.run(on_change=on_change)  # type: ignore[arg-type]

    job()
    job()

    def names() -> list[str]:
        return sorted(os.path.basename(path) for path in written(copy.out)["path"].to_pylist())

    assert names() == ["a", "b", "c"]
    (folder / "d").write_text("dd")
    with pytest.raises(JobChanged, match="files"):
        job()
    job("continue")
    assert names() == ["a", "b", "c", "d"]
    (folder / "a").unlink()
    job("restart")
    assert names() == ["b", "c", "d"]


def test_a_dataset_is_a_source(copy: Copy, ws: mr.Workspace, spark: SparkSession) -> None:
    table = pa.table({"id": range(50), "ten": [n % 10 for n in range(50)]})
    rows = ws.from_arrow(table).filter("ten > 3")

    copy.run(rows)
    copy.run(rows)

    assert copy.takings == [30]
    assert ids(copy.out) == [n for n in range(50) if n % 10 > 3]
    framed = ws.job("framed")
    framed.source("rows", ws.from_spark(numbers(spark, 9))).sink_parquet(copy.out.parent / "b")
    framed.run()
    assert ids(copy.out.parent / "b") == list(range(9))


def test_what_is_new_cannot_be_told_once_rows_are_gone(
    copy: Copy, ws: mr.Workspace, spark: SparkSession
) -> None:
    from millrace.pipeline.run.retention import free_all

    copy.run(numbers(spark, 30))
    assert free_all(runtime_of(ws).joined_broker(), "copy").rows == 30

    with pytest.raises(UserError, match="run with on_change='restart'"):
        copy.run(numbers(spark, 31), on_change="continue")
    copy.run(numbers(spark, 30))
    copy.run(numbers(spark, 31), on_change="restart")
    assert ids(copy.out) == list(range(31))
