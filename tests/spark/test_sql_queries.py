"""SQL over views gives Spark's rows, names and types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from _pytest.mark.structures import ParameterSet
from pyspark.sql import SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.pandas.types import from_arrow_schema

import millrace as mr
from millrace import functions as F  # noqa: N812 - as Spark's users write it
from millrace.errors import MillraceError, UserError

pytestmark = pytest.mark.spark

ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
        "k": pa.array([1, 1, 2, None, 3, 7], pa.int32()),
        "price": pa.array(
            [
                Decimal("1.50"),
                Decimal("2.25"),
                None,
                Decimal("9.99"),
                Decimal("0.01"),
                Decimal("5.00"),
            ]
        ),
        "day": pa.array([dt.date(2020, 1, n) for n in (1, 2, 2, 3, 4, 4)]),
        "note": ["a", "B", None, "b", "a", ""],
    }
)
PEOPLE = pa.table(
    {
        "k": pa.array([1, 2, 3, 4], pa.int64()),
        "name": ["ann", "bob", None, "dan"],
        "x": [1.0, -0.0, None, 2.5],
    }
)
EMPTY = pa.table({"k": pa.array([], pa.int64()), "name": pa.array([], pa.string())})

LISTS = pa.table(
    {
        "id": [1, 2, 3],
        "xs": [[5, None], [], None],
        "m": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        "s": [[{"p": 1, "q": "x"}, None], None, []],
    }
)
TABLES = {"orders": ORDERS, "people": PEOPLE, "empty": EMPTY, "lists": LISTS}
TEXTS = (Path(__file__).parent / "sql_queries.txt").read_text(encoding="utf-8")


QUICK_EVERY = 5  # The quick run takes every fifth query.


def queries(section: str) -> list[ParameterSet]:
    """The queries of a section of the file."""
    lines = TEXTS.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
    texts = [line for line in lines if line and not line.startswith("#")]
    return [
        pytest.param(text, marks=() if at % QUICK_EVERY == 0 else (pytest.mark.slow,))
        for at, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def ws(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path_factory.mktemp("sql") / "mill", spark) as workspace:
        for name, table in TABLES.items():
            workspace.view(name, workspace.from_arrow(table))
            columns = from_arrow_schema(table.schema)  # Connect takes no empty table of Arrow.
            rows = (
                spark.createDataFrame(table) if len(table) else spark.createDataFrame([], columns)
            )
            rows.createOrReplaceTempView(name)
        yield workspace


def compare(spark: SparkSession, ws: mr.Workspace, text: str, *, ordered: bool) -> mr.Dataset:
    """Rows, names and types are Spark's."""
    theirs, ours = spark.sql(text).toArrow(), ws.sql(text)
    rows = ours.to_arrow()
    assert rows.column_names == theirs.column_names, text
    assert [field.type for field in rows.schema] == [field.type for field in theirs.schema], text
    listed = [
        [repr(row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]
        for table in (rows, theirs)
    ]
    if not ordered:
        listed = [sorted(side) for side in listed]
    assert listed[0] == listed[1], text
    return ours


@pytest.mark.parametrize("text", queries("rows"))
def test_a_query_has_the_rows_names_and_types_of_spark(
    spark: SparkSession, ws: mr.Workspace, text: str
) -> None:
    assert "on Spark" not in str(compare(spark, ws, text, ordered=False).explain())


@pytest.mark.parametrize("text", queries("ordered"))
def test_an_ordered_query_has_the_rows_of_spark_in_order(
    spark: SparkSession, ws: mr.Workspace, text: str
) -> None:
    assert "on Spark" not in str(compare(spark, ws, text, ordered=True).explain())


@pytest.mark.parametrize("text", queries("spark"))
def test_what_only_spark_computes_runs_there(
    spark: SparkSession, ws: mr.Workspace, text: str
) -> None:
    assert "on Spark" in str(compare(spark, ws, text, ordered=False).explain())


def test_a_scalar_subquery_of_two_rows_fails_as_in_spark(ws: mr.Workspace) -> None:
    with pytest.raises(MillraceError, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
        ws.sql("SELECT (SELECT k FROM people) AS k").to_arrow()


def test_tables_of_sparks_catalog_are_found(spark: SparkSession, ws: mr.Workspace) -> None:
    spark.range(3).createOrReplaceTempView("three")
    assert ws.sql("SELECT sum(id) AS s FROM three").to_arrow().to_pylist() == [{"s": 3}]
    assert ws.table("three").count() == 3
    with pytest.raises(UserError, match="no view or table nowhere"):
        ws.sql("SELECT * FROM nowhere")


def test_a_dataset_is_named_by_its_own_call_too(ws: mr.Workspace) -> None:
    three = ws.from_arrow(pa.table({"n": [1, 2, 3]}))
    three.createOrReplaceTempView("numbers")
    three.filter("n > 1").createOrReplaceTempView("Numbers")
    assert (
        ws.sql("SELECT sum(n) AS s FROM numbers WHERE n < ?", [3]).to_arrow()["s"][0].as_py() == 2
    )
    with pytest.raises(UserError, match="there is a view numbers already"):
        three.createTempView("numbers")
    assert ws.drop_view("numbers")


@pytest.mark.slow
def test_statements_that_are_no_queries_run_at_once(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path
) -> None:
    ws.sql("-- made\nCREATE OR REPLACE TEMP VIEW few AS SELECT id, day FROM orders WHERE id < 3")
    assert ws.table("few").count() == 2
    described = ws.sql("DESCRIBE few").to_arrow().to_pylist()
    assert [tuple(row.values()) for row in described] == [
        ("id", "bigint", None),
        ("day", "date", None),
    ]
    ws.sql(f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'out'}' USING parquet SELECT * FROM few")
    assert ws.read_parquet(tmp_path / "out").count() == 2
    assert "few" not in [table.name for table in spark.catalog.listTables()]
    with pytest.raises(UserError, match="there is a view few already"):
        ws.sql("CREATE TEMP VIEW few AS SELECT 1 AS a")
    assert ws.sql("DROP VIEW few").columns == ["result"]
    assert not ws.drop_view("few")
    assert ws.sql("SHOW FUNCTIONS LIKE 'upper'").to_arrow().to_pylist() == [{"function": "upper"}]
    with pytest.raises(UserError, match="Spark refuses this statement"):
        ws.sql("DROP TABLE nowhere_at_all")


@pytest.mark.slow
def test_sessions_are_sparks(spark: SparkSession, ws: mr.Workspace) -> None:
    moments = [dt.datetime(2020, 1, 1, 10, minute, tzinfo=dt.UTC) for minute in (0, 3, 4, 30, 33)]
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC")), "n": range(5)})

    def answers(rows: Any, functions: Any) -> list[list[str]]:  # noqa: ANN401 - of either side
        sessions = rows.groupBy(functions.session_window("at", "5 minutes")).sum("n")
        days = rows.groupBy(functions.window("at", "1 day"), "n").count()
        frames = (sessions, days.select("window.start", "count"))
        return [[str(frame.columns), *sorted(map(repr, frame.collect()))] for frame in frames]

    ours = answers(ws.from_arrow(table), F)
    assert ours == answers(spark.createDataFrame(table), spark_functions)
    assert len(ours[0]) == 3
