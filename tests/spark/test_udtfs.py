"""Table functions of users, written as PySpark's users write them, give Spark's rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import millrace as mr
from millrace import functions

pytestmark = pytest.mark.spark
F: Any = functions  # Its table functions give datasets.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Squares:
    """Numbers of a range with their squares."""

    def eval(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for number in range(start, end):
            yield number, number * number


class Last:
    """The last row of each partition, and how many there were."""

    def __init__(self) -> None:
        self._count = 0

    def eval(self, row: Any) -> None:  # noqa: ANN401 - a row
        self._row, self._count = row, self._count + 1

    def terminate(self) -> Iterator[tuple[int, int, int]]:
        yield self._row["k"], self._row["v"], self._count


def test_table_functions_are_called_with_columns_and_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        squares = F.udtf(Squares, returnType="n int, square int")
        rows = squares(F.lit(1), end=F.lit(4)).where("n > 1")
        assert [tuple(row) for row in rows.orderBy("n").collect()] == [(2, 4), (3, 9)]
        assert "Spark calls table functions" in rows.explain()
        ws.udtf.register("our_squares", squares)
        named = ws.sql("SELECT square FROM our_squares(0, 3) ORDER BY square")
        assert [row.square for row in named.collect()] == [0, 1, 4]
        assert named.run().ran > 0, "the session's function may change"


def test_a_dataset_is_a_table_argument_and_a_deterministic_function_is_called_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        rows = ws.from_arrow(pa.table({"k": [1, 2, 1, 2, 1], "v": [5, 1, 9, 7, 2]}))
        last = F.udtf(Last, returnType="k bigint, v bigint, n int").asDeterministic()
        found = last(rows.asTable().partitionBy("k").orderBy("v"))
        assert sorted(tuple(row) for row in found.collect()) == [(1, 9, 3), (2, 7, 2)]
        assert found.run().ran == 0
        assert last(rows.asTable().partitionBy("k").orderBy(F.desc("v"))).run().ran > 0
        with pytest.raises(mr.UserError, match="orderBy\\(\\) comes after partitionBy"):
            rows.asTable().orderBy("v")


@pytest.mark.classic_only
def test_functions_are_called_by_name_from_columns(spark: SparkSession, tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        ws.udf.register("plus_one", lambda x: x + 1, "long")
        rows = ws.range(3).select(F.call_udf("plus_one", F.col("id")).alias("n"))
        assert sorted(row.n for row in rows.collect()) == [1, 2, 3]
        assert "on Spark" not in rows.explain()


def test_table_functions_of_spark_are_datasets(spark: SparkSession, tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", spark) as ws:
        assert ws.tvf.range(1, 9, 2, numPartitions=3).columns == ["id"]
        assert ws.tvf.explode(F.array(F.lit(1), F.lit(2))).columns == ["col"]
        assert ws.tvf.posexplode(collection=F.array(F.lit("a"))).columns == ["pos", "col"]
        assert ws.tvf.stack(F.lit(2), F.lit(1), F.lit(2)).columns == ["col0"]
        with pytest.raises(AttributeError, match="no table-valued function 'implode'"):
            ws.tvf.implode()
