"""On each version of Spark: queries, functions and streams work, or are refused with a version.

`make test-matrix` runs this file on every version that is supported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import millrace as mr
from millrace import functions as F  # noqa: N812 - as everybody does
from millrace.cli.doctor.executor_checks import judge
from millrace.config import Config
from millrace.errors import UserError
from millrace.spark.versions.added_names import FRAME_METHODS, FUNCTIONS, TYPES
from millrace.spark.versions.executor_look import look, own_versions
from millrace.spark.versions.missing_names import no_function, no_type
from millrace.spark.versions.spark_versions import (
    ARROW_STREAM_WRITER,
    IN_DATASETS,
    READ_LIMITS,
    TRIED,
    has,
    spark_version,
)

pytestmark = pytest.mark.spark
ORDERS = pa.table({"id": range(60), "cust_id": [n % 7 for n in range(60)], "amount": range(60)})
_MADE_HERE = {"arrow_udf", "arrow_udtf"}
CUSTOMERS = pa.table({"cust_id": range(7), "name": [f"c{n}" for n in range(7)]})


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, create=True)


def rows_of(frame: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - a dataset or a DataFrame
    return sorted(tuple(row) for row in frame.collect())


def test_this_version_is_one_that_is_tried() -> None:
    assert spark_version() in TRIED


def test_datasets_in_columns_work_or_are_refused_with_the_version(ws: mr.Workspace) -> None:
    orders, customers = ws.from_arrow(ORDERS), ws.from_arrow(CUSTOMERS)
    theirs = orders.where((orders.cust_id == customers.cust_id) & (orders.amount > 57))
    assert rows_of(customers.where(theirs.exists()).select("name")) == [("c2",), ("c3",)]
    most = orders.agg(F.max("amount")).scalar()
    assert rows_of(orders.where(orders.amount == most).select("id")) == [(59,)]
    few = customers.where("cust_id > 5").select("cust_id")
    if not has(IN_DATASETS):
        with pytest.raises(UserError, match="PySpark has this since 4.1"):
            orders.where(orders.cust_id.isin(few))
        return
    assert orders.where(orders.cust_id.isin(few)).count() == 8


def test_a_query_gives_sparks_rows_and_is_reused(spark: SparkSession, ws: mr.Workspace) -> None:
    query = (
        "SELECT name, count(*) AS orders, sum(amount) AS total FROM orders "
        "JOIN customers USING (cust_id) WHERE id % 3 < 2 GROUP BY name"
    )
    for name, table in (("orders", ORDERS), ("customers", CUSTOMERS)):
        ws.view(name, ws.from_arrow(table))
        spark.createDataFrame(table.to_pylist()).createOrReplaceTempView(name)
    expected = rows_of(spark.sql(query))

    assert rows_of(ws.sql(query)) == expected
    again = ws.sql(query).run()
    assert again.ran == 0, again


def test_functions_of_users_give_sparks_rows(ws: mr.Workspace) -> None:
    def doubled(batches: Any) -> Any:  # noqa: ANN401 - batches of Arrow
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"r": [2 * n for n in batch["amount"].to_pylist()]})

    def added(numbers: pd.Series) -> pd.Series:
        return numbers + 1

    def middle(numbers: pd.Series) -> float:
        return float(numbers.mean())

    orders = ws.from_arrow(ORDERS)
    row = F.udf(lambda x: x * 3, "long")
    series = F.pandas_udf(added, "long")  # type: ignore[attr-defined]
    mean = F.pandas_udf(middle, "double")  # type: ignore[attr-defined]
    made = orders.select(row("amount").alias("a"), series("amount").alias("b"))
    assert rows_of(made) == [(3 * n, n + 1) for n in range(60)]
    assert rows_of(orders.mapInArrow(doubled, "r long")) == [(2 * n,) for n in range(60)]
    groups = orders.groupBy("cust_id").agg(mean("amount").alias("m"))
    amounts = {k: [n for n in range(60) if n % 7 == k] for k in range(7)}
    assert rows_of(groups) == [(k, sum(v) / len(v)) for k, v in amounts.items()]


def test_the_doctor_finds_executors_like_the_driver(spark: SparkSession) -> None:
    found = list(judge(look(spark, Config()), own_versions()))

    assert [finding.verdict for finding in found] == ["ok"] * 4, found


def test_a_stream_into_a_journal_works_or_names_the_version_that_has_it(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    mr.register(spark)
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.json").write_text("\n".join(json.dumps({"n": n}) for n in range(5)))
    stream = spark.readStream.schema("n long").json(str(source))
    writer = stream.writeStream.format("millrace").option("journal", "numbers")
    writer = writer.option("path", ws.path).option("checkpointLocation", str(tmp_path / "log"))
    if has(ARROW_STREAM_WRITER):
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        batches = ws.journals.read("numbers", 0).batches
        assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(5))
    else:
        with pytest.raises(PySparkException, match="journals: PySpark has this since 4.1"):
            writer.trigger(availableNow=True).start().awaitTermination(120)


def test_a_limit_on_a_stream_is_kept_or_names_the_version_that_has_it(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    mr.register(spark)
    ws.journals.create("numbers", pa.schema([("n", pa.int64())]))
    ws.journals.append("numbers", pa.table({"n": range(5)}))
    reader = spark.readStream.format("millrace").option("path", ws.path)
    stream = reader.options(journal="numbers", name="slow", maxRowsPerTrigger="1").load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "log"))
    if has(READ_LIMITS):
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        written = spark.read.parquet(str(tmp_path / "out")).select("n")
        assert rows_of(written) == [(n,) for n in range(5)]
    else:
        with pytest.raises(PySparkException, match="a limit on a micro-batch: PySpark has this"):
            writer.trigger(availableNow=True).start().awaitTermination(120)


def test_names_of_later_versions_are_refused_with_their_version() -> None:
    for module, added in ((F, FUNCTIONS), (mr.types, TYPES)):
        there = {name for name in added if name in _MADE_HERE or hasattr(module, name)}
        assert there == {name for name, since in added.items() if name in _MADE_HERE or has(since)}
    words = [str(no_function("vector_sum")), str(no_type("TimeType"))]
    named = ["functions.vector_sum: PySpark has this since 4.3", "types.TimeType: PySpark has"]
    assert [text.startswith(name) for text, name in zip(words, named, strict=True)] == [
        not has((4, 3)),
        not has((4, 1)),
    ]


def test_a_method_of_a_later_version_works_or_is_refused_with_it(ws: mr.Workspace) -> None:
    orders = ws.from_arrow(ORDERS)
    if has(FRAME_METHODS["zipWithIndex"]):
        assert orders.zipWithIndex().columns == [*ORDERS.column_names, "index"]
    else:
        with pytest.raises(UserError, match="zipWithIndex.* PySpark has this since 4.2"):
            orders.zipWithIndex()
