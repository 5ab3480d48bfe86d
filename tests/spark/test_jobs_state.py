"""Jobs with state on Spark: what a job gives is what a query over the whole input gives."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG

import millrace as mr

pytestmark = pytest.mark.spark
ORDERS = "id AS n, id % 7 AS user, id * id % 100 AS amount, CAST(id % 13 AS DECIMAL(9,2)) AS price"
TOTALS = {"total": "sum(amount)", "n": "count(*)", "mean": "avg(price)", "top": "max(amount)"}


def rows_of(table: pa.Table) -> set[tuple[object, ...]]:
    return {tuple(row.values()) for row in table.to_pylist()}


def test_totals_of_a_finished_source_are_those_of_a_dataset_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders = spark.range(500).selectExpr(*ORDERS.split(", "))
    with mr.open(str(tmp_path / "mill"), spark, config=CONFIG) as ws:
        job = ws.job("shop")
        totals = (
            job.source("orders", orders).key_by("user").aggregate("totals", "changes", **TOTALS)
        )
        totals.filter("total > 10").sink_journal("out", name="out")

        report = job.run()

        assert report.state == "finished"
        expected = ws.from_arrow(orders.toArrow()).groupBy("user").agg(**TOTALS).to_arrow()
        assert rows_of(ws.state("shop/totals").to_arrow()) == rows_of(expected)
        assert ws.state("shop/totals").to_dataset().count() == 7
        assert {"_mr_op", "user", "total"} <= set(ws.journals.read("out", 0).rows().column_names)
        assert report.step("totals").rows_in == 500
        again = ws.job("shop")
        other = {**TOTALS, "top": "min(amount)"}
        changed = (
            again.source("orders", orders).key_by("user").aggregate("totals", "changes", **other)
        )
        changed.filter("total > 10").sink_journal("out", name="out")
        with pytest.raises(mr.JobChanged, match="'totals' changed"):
            again.run(on_change="continue")
        with pytest.raises(mr.UserError, match="there is no such state"):
            ws.state("shop/nothing")


def test_rows_are_looked_up_in_a_dataset(spark: SparkSession, tmp_path: Path) -> None:
    orders = spark.range(300).selectExpr("id AS n", "id % 9 AS user")
    users = spark.range(7).selectExpr("id AS user", "concat('user ', id) AS name")
    with mr.open(str(tmp_path / "mill"), spark, config=CONFIG) as ws:
        table = ws.from_arrow(users.toArrow())
        job = ws.job("shop")
        job.source("orders", orders).lookup("rich", table, on="user").sink_journal("out")

        assert job.run().state == "finished"

        expected = orders.join(users, "user", "left").select("n", "user", "name")
        assert rows_of(ws.journals.read("out", 0).rows()) == rows_of(expected.toArrow())
        assert job.run().step("rich").rows_in == 300 + 7, "nothing is done again"
