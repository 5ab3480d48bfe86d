"""SQL over `USING millrace`: tables in the catalog, and views over what jobs keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import millrace as mr
from millrace.spark import register
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
ROWS = pa.table({"id": range(10), "k": [n % 3 for n in range(10)]})


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    register(spark)
    with mr.open(tmp_path / "mill", spark) as opened:
        opened.journals.create("a/b", ROWS.schema)
        opened.journals.append("a/b", ROWS)
        yield opened
    for kind, name in (("VIEW", "mill_view"), ("TABLE", "mill")):
        spark.sql(f"DROP {kind} IF EXISTS {name}")


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def test_a_table_over_a_journal_is_read_with_what_came_later_and_written(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    where = f"path = '{ws.path}', journal = 'a/b'"
    spark.sql(f"CREATE TABLE mill USING millrace OPTIONS ({where})")
    assert rows(spark, "SELECT sum(id) FROM mill WHERE k = 1") == [(1 + 4 + 7,)]
    assert rows(spark, "SELECT k FROM mill WITH (startOffset = 8)") == [(0,), (2,)]

    # A view in the catalog, which temporary ones are not.
    spark.sql("CREATE VIEW mill_view AS SELECT id * 10 AS ten FROM mill WHERE id > 7")
    assert rows(spark, "SELECT ten FROM mill_view") == [(80,), (90,)]

    spark.sql(f"INSERT INTO mill WITH ({where}) SELECT id + 90, k FROM mill WHERE id = 9")
    assert rows(spark, "SELECT ten FROM mill_view") == [(80,), (90,), (990,)]
    spark.sql("DROP TABLE mill")
    assert ws.journals.end_offset("a/b") == 11
    assert runtime_of(ws).store.exists("workspace.json")


def test_a_write_to_a_table_needs_its_options_since_spark_hands_none_on(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    ws.journals.create("other", ROWS.schema)
    spark.sql(f"CREATE TABLE mill USING millrace OPTIONS (path '{ws.path}', journal 'a/b')")
    for source in ("SELECT 1L, 2L", "SELECT id, k FROM mill", "SELECT 1 AS id, 2 AS k"):
        with pytest.raises(PySparkException, match=r"INSERT INTO \.\.\. WITH \(path = "):
            spark.sql(f"INSERT INTO mill {source}")
    assert ws.journals.end_offset("a/b") == 10


def test_a_table_that_cannot_be_read_says_how_it_is_made(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    where = f"OPTIONS (path '{ws.path}', journal 'a/b')"
    spark.sql(f"CREATE TABLE mill (id long, k long) USING millrace {where}")
    with pytest.raises(PySparkException, match="must be made without columns"):
        spark.sql("SELECT * FROM mill").collect()
    options = f"WITH (path = '{ws.path}', journal = 'a/b')"
    assert rows(spark, f"SELECT count(*) FROM mill {options}") == [(10,)]
    spark.sql("DROP TABLE mill")
    with pytest.raises(PySparkException, match=r"INSERT INTO \.\.\. WITH \(path = "):
        spark.sql(f"CREATE TABLE mill USING millrace {where} AS SELECT 1L AS id, 2L AS k")
    with pytest.raises(PySparkException, match="nobody"):
        spark.sql(f"CREATE TABLE mill USING millrace OPTIONS (path '{ws.path}', journal 'nobody')")


def test_what_a_job_keeps_and_a_shuffle_are_tables_and_views(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    job = ws.job("double")
    taken = job.source("given", spark.createDataFrame(ROWS), partitions=2)
    taken.map("twice", lambda row: {"n": row["id"] * 2}, schema="n bigint").sink_journal("out")
    job.run()
    kept = f"path '{ws.path}', job 'double', step 'given'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW mill_kept USING millrace OPTIONS ({kept})")
    spark.sql(f"CREATE TABLE mill USING millrace OPTIONS ({kept})")
    spark.sql("CREATE VIEW mill_view AS SELECT k, count(*) AS n FROM mill GROUP BY k")
    assert rows(spark, "SELECT * FROM mill_view") == [(0, 4), (1, 3), (2, 3)]
    assert rows(spark, "SELECT count(*) FROM mill_kept JOIN mill USING (id)") == [(10,)]
    spark.catalog.dropTempView("mill_kept")
    spark.sql("DROP TABLE mill")

    made = ws.shuffle(spark.createDataFrame(ROWS), keys="k", partitions=2)
    spark.sql(
        f"CREATE TABLE mill USING millrace LOCATION '{ws.path}' "
        f"TBLPROPERTIES (shuffle '{made.query_id}')"
    )
    assert rows(spark, "SELECT sum(id) FROM mill") == [(45,)]
