"""DataFrames of Spark Connect, unchanged: their plans are read, and the rows are Spark's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users do
from tests.laws import few_quick

import millrace as mr
from millrace.spark.frames.connect_plan_identity import plan_identity

# A classic DataFrame has its plan in the JVM.
pytestmark = [pytest.mark.spark, pytest.mark.connect_only]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def by_cust() -> WindowSpec:
    return Window.partitionBy("cust").orderBy(F.desc("amount"))


Make = Callable[[SparkSession, DataFrame, DataFrame], DataFrame]


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[DataFrame]:
    folder = tmp_path_factory.mktemp("tables")
    orders = {
        "id": range(60),
        "cust": [n % 7 if n % 11 else None for n in range(60)],
        "amount": [n * 1.5 for n in range(60)],
        "note": [f"note {n % 4}" for n in range(60)],
    }
    customers = {"cust": range(1, 9), "name": [f"c{n}" for n in range(1, 9)], "id": range(8)}
    pq.write_table(pa.table(orders), folder / "orders.parquet")
    pq.write_table(pa.table(customers), folder / "customers.parquet")
    return [spark.read.parquet(str(folder / f"{n}.parquet")) for n in ("orders", "customers")]


NATIVE: dict[str, Make] = {
    "filter and select": lambda _, o, __: o.where(o.amount > 20).select(
        "id", (o.amount * 2).alias("x")
    ),
    "group by": lambda _, o, __: o.groupBy("cust").agg(F.sum("amount").alias("s"), F.count("*")),
    "join on columns of both": lambda _, o, c: o.join(c, o.cust == c.cust).select(
        o.id, c.id, "name"
    ),
    "join using a name": lambda _, o, c: o.join(c, "cust", "left").select("cust", "name", o["id"]),
    "semi join": lambda _, o, c: o.join(c.where("name < 'c4'"), "cust", "left_semi"),
    "alias": lambda _, o, c: (
        o.alias("a").join(c.alias("b"), F.col("a.cust") == F.col("b.cust")).select("b.name", "a.id")
    ),
    "with columns": lambda _, o, __: (
        o.withColumn("twice", F.col("amount") * 2).withColumnRenamed("note", "text").drop("id")
    ),
    "window": lambda _, o, __: o.withColumn("n", F.row_number().over(by_cust())).where("n <= 2"),
    "union": lambda _, o, c: o.select("id", "note").union(c.select("id", "name")),
    "union by name": lambda _, o, c: o.unionByName(c, allowMissingColumns=True),
    "distinct and except": lambda _, o, __: (
        o.select("note").distinct().exceptAll(o.select("note").limit(0))
    ),
    "first of each": lambda _, o, __: o.dropDuplicates(["note"]).select("note"),
    "case and cast": lambda _, o, __: o.select(
        F.when(o.amount > 30, "big").otherwise("small").alias("size"), o.id.cast("string")
    ),
    "rows of the client": lambda s, o, __: o.join(
        s.createDataFrame([(1, "x")], "cust bigint, tag string"), "cust"
    ).select("tag", "id"),
    "to df": lambda _, __, c: c.toDF("a", "b", "c"),
    "rollup": lambda _, o, __: o.rollup("cust", "note").agg(F.count("*"), F.grouping("note")),
    "cube": lambda _, o, __: o.cube("cust", "note").agg(F.sum("amount").alias("s")),
    "grouping sets": lambda _, o, __: o.groupingSets([["cust"], ["note"]], "cust", "note").agg(
        F.count("id").alias("n")
    ),
    "pivot": lambda _, o, __: (
        o.groupBy("cust").pivot("note", ["note 1", "note 3"]).agg(F.sum("amount"), F.count("id"))  # noqa: PD010 - Spark's
    ),
    "pivot of all values": lambda _, o, __: o.groupBy("note").pivot("cust").agg(F.max("amount")),  # noqa: PD010 - Spark's
    "pivot of texts": lambda _, o, __: o.groupBy("note").pivot("cust", [1, 2]).agg(F.min("note")),  # noqa: PD010 - Spark's
    "unpivot": lambda _, o, __: o.unpivot(["note"], ["id", "amount"], "column", "value"),
    "unpivot of all others": lambda _, __, c: c.unpivot(["name"], None, "column", "value"),
    "fill": lambda _, o, __: o.fillna(0).na.fill("?", subset=["note"]),
    "fill by column": lambda _, o, __: o.fillna({"cust": 7, "note": "none"}),
    "drop missing": lambda _, o, __: o.dropna().na.drop(thresh=2, subset=["cust", "note", "id"]),
    "replace": lambda _, o, __: o.replace({"note 1": "one", "note 2": None}),
    "replace numbers": lambda _, o, __: o.replace([1, 3], [10, 30], ["cust", "amount"]),
    "offset": lambda _, o, __: o.orderBy("id").offset(50),
}


def count_rows(key: tuple[object, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "n": [len(frame)]})


def count_pairs(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"l": [left.num_rows], "r": [right.num_rows]})


def only_ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.select(["id"]) for batch in batches)


FUNCTIONS: dict[str, Make] = {
    "all rows": lambda _, o, __: o.mapInArrow(only_ids, "id long"),
    "groups": lambda _, o, __: o.groupBy("cust").applyInPandas(count_rows, "k double, n long"),
    "pairs": lambda _, o, c: (
        o.groupBy("cust").cogroup(c.groupBy("cust")).applyInArrow(count_pairs, "l long, r long")
    ),
}


@pytest.mark.parametrize("name", few_quick(FUNCTIONS, 2))
def test_functions_over_rows_run_in_the_tasks_and_once(
    name: str, spark: SparkSession, tables: list[DataFrame], tmp_path: Path
) -> None:
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        dataset = ws.from_spark(FUNCTIONS[name](spark, *tables))
        assert "on Spark" not in dataset.explain()
        answer = rows_of(dataset.to_spark())
        assert ws.from_spark(FUNCTIONS[name](spark, *tables)).run().ran == 0
    assert repr(answer) == repr(rows_of(FUNCTIONS[name](spark, *tables)))


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.parametrize("name", few_quick(NATIVE, 12))
def test_a_plan_is_read_and_has_sparks_rows(
    name: str, spark: SparkSession, tables: list[DataFrame], tmp_path: Path
) -> None:
    frame = NATIVE[name](spark, *tables)
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        dataset = ws.from_spark(frame)
        assert "on Spark" not in dataset.explain()
        assert "DataFrame" not in dataset.explain()
        durable = dataset.to_spark()
        assert durable.columns == frame.columns
        assert [f.dataType for f in durable.schema] == [f.dataType for f in frame.schema]
        assert rows_of(durable) == rows_of(frame)


def test_an_order_is_kept(spark: SparkSession, tables: list[DataFrame], tmp_path: Path) -> None:
    frame = tables[0].orderBy(F.desc("amount")).limit(5).select("id")
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        assert ws.from_spark(frame).to_arrow()["id"].to_pylist() == [59, 58, 57, 56, 55]


def test_a_part_that_is_not_known_stays_sparks(
    spark: SparkSession, tables: list[DataFrame], tmp_path: Path
) -> None:
    orders, customers = tables
    counted = orders.stat.freqItems(["note"], 0.1).select(F.size("note_freqItems").alias("n"))
    frame = customers.crossJoin(counted).select("name", "n")
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        dataset = ws.from_spark(frame)
        assert "on Spark" in dataset.explain()
        assert "freq_items" in dataset.explain()
        assert rows_of(dataset.to_spark()) == rows_of(frame)


def test_a_second_run_computes_nothing(
    spark: SparkSession, tables: list[DataFrame], tmp_path: Path
) -> None:
    frame = tables[0].groupBy("cust").agg(F.sum("amount").alias("s"))
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        assert rows_of(ws.durable(frame)) == rows_of(frame)
        assert ws.from_spark(frame).run().ran == 0


def test_files_that_spark_lists_otherwise_are_left_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "in" / "0.parquet")
    frame = spark.read.parquet(str(tmp_path / "in")).where("a > 1")
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        assert "on Spark" not in ws.from_spark(frame).explain()
        other = spark.read.option("pathGlobFilter", "0*").parquet(str(tmp_path / "in"))
        assert "on Spark" in ws.from_spark(other).explain()
        assert rows_of(ws.durable(other)) == [(1,), (2,)]


def left_to_spark(report: mr.QueryReport) -> mr.StageReport:
    """What was done for the one part of a plan that stays Spark's."""
    (part,) = [stage for stage in report.stages if stage.name.startswith("DataFrame")]
    return part


def test_rows_of_a_part_that_stays_sparks_are_reused_as_long_as_files_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines, old = tmp_path / "lines.json", 1_600_000_000
    lines.write_text('{"a": 1, "s": "x"}\n{"a": 2, "s": "y"}\n')
    os.utime(lines, (old, old))

    def counted() -> DataFrame:
        return spark.read.json(str(lines)).groupBy("s").agg(F.sum("a").alias("n"))

    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        assert left_to_spark(ws.from_spark(counted()).run()).ran > 0
        assert left_to_spark(ws.from_spark(counted()).run()).ran == 0
        lines.write_text('{"a": 5, "s": "x"}\n{"a": 2, "s": "y"}\n')
        os.utime(lines, (old + 1, old + 1))
        again = ws.from_spark(counted())
        assert rows_of(again.to_spark()) == [("x", 5), ("y", 2)]
        os.utime(lines)
        fresh = left_to_spark(ws.from_spark(counted()).run())
        assert "fresh" in str(fresh.reasons.values())


NOT_RECOGNISED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "gives other values": lambda rows: rows.select("*", F.rand().alias("r")),
    "expression_string": lambda rows: rows.select(F.expr("a + 1 AS b")),
    "user_defined_function": lambda rows: rows.select(F.udf(lambda a: a, "long")("a").alias("b")),
    "one of the day": lambda rows: rows.select(F.col("s").cast("timestamp").alias("t")),
}


@pytest.mark.parametrize("why", NOT_RECOGNISED)
def test_a_part_that_may_give_other_rows_is_not_recognised(
    spark: SparkSession, tmp_path: Path, why: str
) -> None:
    lines = tmp_path / "lines.json"
    lines.write_text('{"a": 1, "s": "x"}\n')
    os.utime(lines, (1_600_000_000, 1_600_000_000))
    frame = NOT_RECOGNISED[why](spark.read.json(str(lines)))
    connect: Any = frame
    message = connect._plan.plan(spark.client)
    version, reason = plan_identity(frame, message, mr.Config())()
    assert version is None
    assert why in str(reason)
