"""TPC-H as people have it: as SQL text and as PySpark DataFrames, run unchanged on both sides.

The programs are those of `examples/tpch`. On Millrace, only their imports and the session differ;
through Spark Connect nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples.tpch.data import LARGE, SMALL, make_data
from examples.tpch.dataframes import programs
from examples.tpch.judges import (
    difference,
    duckdb_answer,
    duckdb_tables,
    order_of,
    spark_answer,
    spark_tables,
    sql_text,
)
from pyspark.sql import SparkSession
from tests.spark.test_tpch import EXCHANGED, SCALE, few_partitions

import millrace as mr
from millrace import functions

pytestmark = pytest.mark.spark
# Between them: windows, aliases, self joins with conditions, all kinds of subqueries, broadcasts.
ALWAYS = (21,)


def cases(always: tuple[int, ...]) -> list[Any]:
    return [
        pytest.param(number, marks=() if number in always else (pytest.mark.slow,))
        for number in range(1, 23)
    ]


class Answers:
    """Answers of DuckDB and Spark over one folder of data, each asked for once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        duckdb = duckdb_tables(folder, threads=2)
        spark_tables(spark, folder)
        self.duckdb = cache(lambda number: duckdb_answer(duckdb, folder, number))
        self.text = cache(lambda number: spark_answer(spark, folder, number))
        self.frame = cache(lambda number: programs().query(number, spark, folder).toArrow())

    def check(self, number: int, ours: pa.Table, theirs: pa.Table) -> None:
        """Values are those of both, names and types are Spark's for the same program."""
        order = order_of(number)
        assert ours.num_rows > 0
        assert ours.column_names == theirs.column_names
        assert ours.schema.types == theirs.schema.types
        assert difference(ours, theirs, order) is None
        assert difference(ours, self.duckdb(number), order) is None


@pytest.fixture(scope="module")
def answers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    folder = make_data(SCALE, tmp_path_factory.mktemp("tpch") / "data")
    for _ in few_partitions(spark):
        yield Answers(spark, folder)


@pytest.mark.classic_only
@pytest.mark.parametrize("number", cases(ALWAYS))
def test_a_query_as_sql_text_gives_the_answer_of_duckdb_and_spark(
    spark: SparkSession, tmp_path: Path, answers: Answers, number: int
) -> None:
    with mr.open(tmp_path / "mill", spark, config=EXCHANGED) as ws:
        for name in LARGE + SMALL:
            ws.view(name, str(answers.folder / name))
        query = ws.sql(sql_text(number, SCALE))
        assert "on Spark" not in str(query.explain())
        answers.check(number, query.to_arrow(), answers.text(number))


@pytest.mark.classic_only
@pytest.mark.filterwarnings("ignore:WARN WindowExpression")  # Of PySpark, as on Spark.
@pytest.mark.parametrize("number", cases(ALWAYS))
def test_a_program_of_dataframes_needs_another_import_alone(
    spark: SparkSession, tmp_path: Path, answers: Answers, number: int
) -> None:
    with mr.open(tmp_path / "mill", spark) as ws:
        query = programs("millrace").query(number, ws, answers.folder)
        assert "on Spark" not in str(query.explain())
        answers.check(number, query.toArrow(), answers.frame(number))


@pytest.mark.connect_only
@pytest.mark.filterwarnings("ignore:WARN WindowExpression")
@pytest.mark.parametrize("number", cases((21,)))
def test_a_program_of_dataframes_runs_unchanged_through_connect(
    spark: SparkSession, tmp_path: Path, answers: Answers, number: int
) -> None:
    frame = programs().query(number, spark, answers.folder)
    with mr.open(tmp_path / "mill", spark) as ws:
        assert "on Spark" not in str(ws.from_spark(frame).explain())
        answers.check(number, ws.durable(frame).toArrow(), answers.frame(number))


@pytest.mark.slow
@pytest.mark.classic_only
def test_a_classic_dataframe_is_computed_by_spark_and_saved(
    spark: SparkSession, tmp_path: Path, answers: Answers
) -> None:
    frame = programs().query(3, spark, answers.folder)
    with mr.open(tmp_path / "mill", spark) as ws:
        assert "DataFrame" in str(ws.from_spark(frame).explain())
        answers.check(3, ws.durable(frame).toArrow(), answers.frame(3))


def test_a_broadcast_is_of_rows() -> None:
    with pytest.raises(TypeError, match="should be DataFrame"):
        functions.broadcast(3)  # type: ignore[arg-type]
