"""Datasets follow the settings of their Spark session, or Spark computes; nothing is mixed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from tests.laws import few_quick
from tests.spark.differential import assert_same
from tests.spark.row_answers import settings

import millrace as mr
from millrace.errors import UserError
from millrace.sql.sql_mode import DEFAULT, LEGACY, mode_of

pytestmark = pytest.mark.spark
BIG = 2**63 - 1
ROWS = pa.table(
    {
        "k": pa.array([1, 1, 2, 2, 3, None], pa.int32()),
        "v": pa.array([BIG, 5, 7, None, -3, 0], pa.int64()),
        "s": ["1", "x", "2.5", None, " 7 ", "a\\d"],
        "a": pa.array([[1, 2], [], None, [3], [4, None], [5]], pa.list_(pa.int32())),
        "y": pa.array([b"a", b"b", None, b"", b"x", b"y"], pa.binary()),
    }
)
ANSI_OFF = {"spark.sql.ansi.enabled": "false"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows").mkdir()
    pq.write_table(ROWS, tmp_path / "rows" / "0.parquet")
    return tmp_path / "rows"


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path, folder: Path) -> Iterator[mr.Workspace]:
    workspace = mr.open(tmp_path / "mill", spark, config=mr.Config().with_options(sync=False))
    workspace.view("t", str(folder))
    spark.read.parquet(str(folder)).createOrReplaceTempView("t")
    yield workspace
    spark.catalog.dropTempView("t")


def assert_as_spark(ws: mr.Workspace, spark: SparkSession, text: str) -> mr.Dataset:
    dataset = ws.sql(text)
    assert_same(dataset.to_arrow(), spark.sql(text).toArrow(), text)
    return dataset


def reused(dataset: mr.Dataset) -> dict[str, tuple[int, int]]:
    return {report.name: (report.ran, report.reused) for report in dataset.run().stages}


def test_without_ansi_a_query_has_sparks_rows_and_is_native(
    ws: mr.Workspace, spark: SparkSession
) -> None:
    texts = [
        "SELECT k, sum(v) AS total, avg(v) AS mean, sum(cast(s AS int)) AS n FROM t GROUP BY k",
        "SELECT v + 1 AS w, cast(v AS int) AS i, s, cast(s AS double) AS d, a[1] AS x FROM t",
        "SELECT v / (k - 1) AS q, v % (k - 1) AS r, size(a) AS n, element_at(a, 2) AS e FROM t",
        "SELECT sum(v) OVER (PARTITION BY k ORDER BY s) AS w, v FROM t WHERE cast(s AS int) > 0",
    ]
    with settings(spark, ANSI_OFF):
        for text in texts:
            dataset = assert_as_spark(ws, spark, text)
            assert "on Spark" not in dataset.explain(), text
        rows = ws.table("t").groupBy("k").agg(sf.sum("v").alias("n"))
        theirs = spark.table("t").groupBy("k").agg(sf.sum("v").alias("n"))
        assert_same(rows.to_arrow(), theirs.toArrow())


def test_without_ansi_what_is_not_native_runs_on_spark(
    ws: mr.Workspace, spark: SparkSession
) -> None:
    with settings(spark, ANSI_OFF):
        dataset = assert_as_spark(ws, spark, "SELECT s + 1 AS n, s = 1 AS is_one FROM t")
        assert "on Spark" in dataset.explain()


def test_work_of_one_mode_is_not_used_in_the_other(ws: mr.Workspace, spark: SparkSession) -> None:
    text = "SELECT k, sum(v DIV 2) AS n, max(size(a)) AS m FROM t GROUP BY k"
    strict = assert_as_spark(ws, spark, text)
    with settings(spark, ANSI_OFF):
        lenient = assert_as_spark(ws, spark, text)
        assert all(count for count, _ in reused(ws.sql(text.replace("DIV 2", "DIV 3"))).values())
        assert {run for run, _ in reused(lenient).values()} == {0}
        with pytest.raises(UserError, match="settings of the session changed") as refused:
            strict.to_arrow()
    assert "described with: spark.sql.ansi.enabled = true" in str(refused.value)
    assert {run for run, _ in reused(strict).values()} == {0}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("spark.sql.timestampType", "TIMESTAMP_NTZ", "SELECT CAST('2020-01-01' AS TIMESTAMP) AS x"),
        ("spark.sql.mapKeyDedupPolicy", "LAST_WIN", "SELECT map(k, 1, k, v) AS m FROM t WHERE k>0"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY", "SELECT to_date('1', 'M') AS d, k FROM t"),
        ("spark.sql.decimalOperations.allowPrecisionLoss", "false", "SELECT 1.5 * v AS p FROM t"),
        ("spark.sql.legacy.nobodyKnowsThis", "true", "SELECT k + 1L AS k FROM t"),
    ],
)
def test_a_setting_that_changes_expressions_lets_spark_compute(
    ws: mr.Workspace, spark: SparkSession, name: str, value: str, text: str
) -> None:
    with settings(spark, {name: value}):
        dataset = assert_as_spark(ws, spark, text)
        assert f"the session has {name} = {value}" in dataset.explain()
        assert_as_spark(ws, spark, "SELECT k, v FROM t")
        assert "on Spark" not in ws.sql("SELECT k, v FROM t").explain()
    assert "the session has" not in ws.sql(text.replace("x FROM", "z FROM")).explain()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("spark.sql.parser.escapedStringLiterals", "true", r"SELECT s RLIKE 'a\\d' AS m FROM t"),
        ("spark.sql.ansi.doubleQuotedIdentifiers", "true", 'SELECT "k", "s" AS "x y" FROM t'),
        ("spark.sql.caseSensitive", "true", "SELECT k AS K, T.v FROM t AS T"),
        ("spark.sql.orderByOrdinal", "false", "SELECT k FROM t ORDER BY 1"),
        ("spark.sql.parser.quotedRegexColumnNames", "true", "SELECT `(k|v)` FROM t"),
    ],
)
def test_a_setting_that_changes_texts_lets_spark_read_them(
    ws: mr.Workspace, spark: SparkSession, name: str, value: str, text: str
) -> None:
    with settings(spark, {name: value}):
        dataset = assert_as_spark(ws, spark, text)
        assert f"{name} = {value}" in dataset.explain()
        assert ws.range(3).count() == 3


@pytest.mark.parametrize(
    "given",
    few_quick(
        [
            {"spark.sql.session.timeZone": "America/Los_Angeles"},
            {},
            {"spark.sql.ansi.doubleQuotedIdentifiers": "true"},
            {"spark.sql.caseSensitive": "true", "spark.sql.ansi.enabled": "false"},
        ],
        2,
    ),
)
def test_parameters_have_their_values_under_all_settings(
    ws: mr.Workspace, spark: SparkSession, given: dict[str, str]
) -> None:
    noon = dt.datetime(2020, 7, 1, 12, 0, 0, 5)  # noqa: DTZ001 - of this process's zone
    named = {"text": "a\\d'\"", "day": dt.date(2020, 2, 29), "noon": noon, "least": 1, "no": None}
    by_name = "SELECT k, :text AS x, :day AS d, :noon AS n, :no AS o FROM t WHERE k >= :least"
    listed = [1.5, b"\x00'", noon.replace(tzinfo=dt.UTC), dt.timedelta(days=2, seconds=3)]
    in_order = "SELECT k, ? AS a, ? AS b, ? AS c, ? AS d FROM t"
    with settings(spark, given):
        for text, arguments in ((by_name, named), (in_order, listed[:3]), (in_order, listed)):
            asked = text if len(arguments) > 3 else text.replace(", ? AS d", "")
            ours = ws.sql(asked, arguments).to_arrow()
            assert_same(ours, spark.sql(asked, args=arguments).toArrow())


def test_columns_mean_the_same_however_texts_are_read(
    ws: mr.Workspace, spark: SparkSession
) -> None:
    def made(rows: Any) -> Any:  # noqa: ANN401 - of Millrace or of Spark
        text = sf.concat(sf.col("s"), sf.lit("'\"\\d\\\\"))
        return rows.select("k", text.alias("x"), sf.sentences(text).cast("string").alias("y"))

    with settings(spark, {"spark.sql.parser.escapedStringLiterals": "true"}):
        assert_same(made(ws.table("t")).to_arrow(), made(spark.table("t")).toArrow())
        with pytest.raises(UserError, match="changes what this text means"):
            ws.table("t").filter(r"s = 'a\\d'")


def test_names_of_another_case_are_other_names_where_the_session_says_so(
    ws: mr.Workspace, spark: SparkSession
) -> None:
    with settings(spark, {"spark.sql.caseSensitive": "true"}):
        assert ws.table("t").select("k").count() == 6
        with pytest.raises(UserError, match="K"):
            ws.table("t").select("K")


def test_a_setting_that_changes_files_lets_spark_read_them(
    ws: mr.Workspace, spark: SparkSession, folder: Path
) -> None:
    with settings(spark, {"spark.sql.parquet.binaryAsString": "true"}):
        for dataset in (ws.read.parquet(str(folder)), ws.read_parquet(str(folder))):
            assert_same(dataset.to_arrow(), spark.read.parquet(str(folder)).toArrow())
            assert "spark.sql.parquet.binaryAsString" in dataset.explain()
    assert ws.read.parquet(str(folder)).to_arrow().schema.field("y").type == pa.binary()


@pytest.mark.classic_only
def test_every_legacy_setting_of_spark_at_its_default_changes_nothing(spark: SparkSession) -> None:
    java: Any = spark._jvm
    of = java.java.lang.Class.forName("org.apache.spark.sql.internal.SQLConf$")
    ask = next(m for m in of.getDeclaredMethods() if m.getName() == "getConfigEntries")
    nothing = spark.sparkContext._gateway.new_array(java.java.lang.Object, 0)  # type: ignore[union-attr]
    entries = ask.invoke(of.getField("MODULE$").get(None), nothing)
    known = {entry.key(): entry.defaultValueString() for entry in entries.toArray()}
    legacy = {name: value for name, value in known.items() if name.startswith(LEGACY)}
    given = {name: value for name, value in legacy.items() if value != "<undefined>"}
    assert len(given) > 90
    assert [name for name, value in given.items() if mode_of({name: value}) != DEFAULT] == []
    others = {
        n: v for n, v in known.items() if not v.startswith("<") and mode_of({n: v}) != DEFAULT
    }
    assert others == {}
