"""The 99 queries of TPC-DS as SQL text give DuckDB's and Spark's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.tpcds.data import QUERIES, make_data, query_text
from examples.tpcds.judges import (
    difference,
    duckdb_answer,
    name_tables,
    spark_answer,
    spark_tables,
)
from pyspark.sql import SparkSession
from tests.lacking import lacking
from tests.laws import TPC_SCALE

import millrace as mr
from millrace.errors import UserError

pytestmark = pytest.mark.spark
# Between them: correlated subqueries, IN under OR, rollups, set operations, unions, outer joins.
ALWAYS = (1, 9, 18, 38, 45, 77, 97)
SMALL = 0.01


def made(scale: float) -> Path:
    try:
        return make_data(scale)
    except UserError as error:
        lacking("tpcds", str(error))


@pytest.fixture(scope="module")
def few_partitions(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before or "200")


@pytest.mark.parametrize("number", ALWAYS)
def test_a_query_on_little_data_gives_the_answer_of_duckdb(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    folder = made(SMALL)
    with mr.open(tmp_path / "mill", spark) as ws:
        name_tables(ws, folder)
        query = ws.sql(query_text(folder, number))
        assert difference(query.to_arrow(), duckdb_answer(folder, number)) is None
        assert "on Spark" not in str(query.explain())


@pytest.mark.slow
@pytest.mark.parametrize("number", QUERIES)
@pytest.mark.usefixtures("few_partitions")
def test_a_query_gives_the_answers_of_duckdb_and_spark(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    folder = made(TPC_SCALE)
    spark_tables(spark, folder)
    with mr.open(tmp_path / "mill", spark) as ws:
        name_tables(ws, folder)
        answer = ws.sql(query_text(folder, number)).to_arrow()
    theirs = spark_answer(spark, folder, number)
    assert difference(answer, duckdb_answer(folder, number)) is None
    assert difference(answer, theirs) is None
    assert answer.column_names == theirs.column_names
    assert answer.schema.types == theirs.schema.types
