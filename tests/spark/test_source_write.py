"""`df.write.format("millrace")`: DataFrames into journals, all or nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.types_kit import TYPES

import millrace as mr
from millrace.keys import partition_ids

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, create=True)


def numbers(spark: SparkSession, count: int = 200) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr("id", "id % 7 AS k")


def write(frame: DataFrame, ws: mr.Workspace, **options: object) -> None:
    writer = frame.write.format("millrace").mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save(ws.path)


def read(ws: mr.Workspace, name: str) -> pa.Table:
    return ws.journals.read(name, 0).rows()


def test_a_frame_becomes_the_rows_of_a_new_journal_in_its_order(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    write(numbers(spark), ws, journal="n")  # Nobody owns the journals.
    assert read(ws, "n")["id"].to_pylist() == list(range(200))
    write(numbers(spark).select("k", "id"), ws, journal="n")  # This process does.
    assert read(ws, "n")["id"].to_pylist() == [*range(200), *range(200)]
    write(numbers(spark).where("id < 0"), ws, journal="none")
    assert read(ws, "none").num_rows == 0
    ws.close()


def test_all_types_go_there_and_back(spark: SparkSession, ws: mr.Workspace) -> None:
    frame = spark.createDataFrame(TYPES).coalesce(1)
    write(frame, ws, journal="types")
    back = spark.read.format("millrace").option("journal", "types").load(ws.path)
    assert repr(back.collect()) == repr(frame.collect())
    ws.close()


def test_rows_go_by_key_into_several_journals_in_one_transaction(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    write(numbers(spark), ws, journals="by/{n}", keyBy="k", partitions=3)
    given = pa.table({"id": range(200), "k": [n % 7 for n in range(200)]})
    homes = partition_ids(given, "k", 3).to_pylist()
    for number in range(3):
        expected = [n for n in range(200) if homes[n] == number]
        assert read(ws, f"by/{number}")["id"].to_pylist() == expected
    raw = ws.journals.read("by/0", 0, isolation="raw").stored()
    assert raw["_mr_hints"][-1].as_py() is not None  # An ACK, which names the others.
    ws.close()


def test_a_task_that_fails_for_good_leaves_no_row(spark: SparkSession, ws: mr.Workspace) -> None:
    broken = numbers(spark).where("id < 199 OR raise_error('broken') IS NULL")
    with pytest.raises(PySparkException, match="broken"):
        write(broken, ws, journal="n")
    assert ws.journals.list() == ()
    ws.close()


@pytest.mark.slow
def test_a_try_that_failed_leaves_one_copy(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    mark = str(tmp_path / "failed")

    def fails_once(batches):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        import os

        for batch in batches:
            yield batch
        if batch["id"][0].as_py() == 0 and not os.path.exists(mark):
            with open(mark, "x", encoding="utf-8"):
                pass
            raise RuntimeError("this try fails")

    frame = numbers(spark).mapInArrow(fails_once, "id long, k long")
    write(frame, ws, journal="n")
    assert Path(mark).exists()
    assert read(ws, "n")["id"].to_pylist() == list(range(200))
    ws.close()


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (["id"], "field 'k' .bigint. is missing"),
        (["id", "CAST(k AS int) AS k"], "field 'k' is int, expected bigint"),
        (["*", "1 AS more"], "field 'more' is not in"),
    ],
)
def test_another_schema_is_refused_before_any_row_is_made(
    spark: SparkSession, ws: mr.Workspace, select: list[str], message: str
) -> None:
    ws.journals.create("n", pa.schema([("id", pa.int64()), ("k", pa.int64())]))
    frame = numbers(spark).where("raise_error('a row was made') IS NULL").selectExpr(*select)
    with pytest.raises(PySparkException, match=message):
        write(frame, ws, journal="n")
    ws.close()


def test_a_journal_is_a_view_that_sql_reads_and_writes(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    make = (
        "CREATE OR REPLACE TEMPORARY VIEW mill_n USING millrace "
        f"OPTIONS (path '{ws.path}', journal 'n')"
    )
    write(numbers(spark), ws, journal="n")
    spark.sql(make)
    spark.sql("INSERT INTO mill_n SELECT id, k FROM mill_n WHERE id < 10")
    assert read(ws, "n")["id"].to_pylist() == [*range(200), *range(10)]
    spark.sql(make)  # A view shows what there was when it was first used.
    (found,) = spark.sql("SELECT count(*), sum(id) FROM mill_n").collect()
    spark.catalog.dropTempView("mill_n")
    assert tuple(found) == (210, sum(range(200)) + 45)
    ws.close()


def test_overwriting_is_refused(spark: SparkSession, ws: mr.Workspace) -> None:
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        numbers(spark).write.format("millrace").mode("overwrite").option("journal", "n").save(
            ws.path
        )
