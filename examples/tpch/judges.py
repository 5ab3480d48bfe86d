"""The same queries as SQL on DuckDB and on Spark, and whether two answers are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlglot
from examples.tpch.data import LARGE, SMALL, scale_of
from examples.tpch.tables import fraction
from pyspark.sql import SparkSession
from sqlglot import expressions

SQL: Final = Path(__file__).parent / "sql"
RELATIVE_MAX: Final = 1e-9


def sql_text(number: int, scale: float) -> str:
    """The text of a query, the same for both engines."""
    text = (SQL / f"q{number:02}.sql").read_text(encoding="utf-8")
    return text.replace("{fraction}", fraction(scale))


def duckdb_tables(folder: Path, *, threads: int) -> duckdb.DuckDBPyConnection:
    """A DuckDB that sees the tables of a folder."""
    connection = duckdb.connect(config={"threads": threads})
    for name in LARGE + SMALL:
        connection.execute(f"CREATE VIEW {name} AS FROM '{folder / name}/*.parquet'")
    return connection


def duckdb_answer(connection: duckdb.DuckDBPyConnection, folder: Path, number: int) -> pa.Table:
    """DuckDB's answer to a query."""
    return connection.sql(sql_text(number, scale_of(folder))).to_arrow_table()


def spark_tables(spark: SparkSession, folder: Path) -> None:
    """Let Spark see the tables of a folder."""
    for name in LARGE + SMALL:
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)


def spark_answer(spark: SparkSession, folder: Path, number: int) -> pa.Table:
    """Spark's answer to a query."""
    return spark.sql(sql_text(number, scale_of(folder))).toArrow()


def order_of(number: int) -> list[str]:
    """The columns that a query's answer is sorted by."""
    parsed = sqlglot.parse_one(sql_text(number, 1), dialect="spark")
    order = parsed.args.get("order")
    if order is None:
        return []
    assert isinstance(order, expressions.Order)
    return [term.this.name for term in order.expressions]


def difference(found: pa.Table, expected: pa.Table, order: Sequence[str]) -> str | None:
    """The first difference between two answers, or None if they are the same.

    Rows must be the same, however often each comes, and the columns they are sorted by must come in
    the same order. Decimals must be equal; where one engine answers with a double, the other's
    value must be near it.
    """
    if found.column_names != expected.column_names:
        return f"columns {found.column_names}, expected {expected.column_names}"
    if found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows, expected {expected.num_rows}"
    for name in order:
        if found[name].to_pylist() != expected[name].to_pylist():
            return f"not in the same order by {name}"
    exact = [name for name in found.column_names if not _is_float(found, expected, name)]
    rows = zip(_in_one_order(found, exact), _in_one_order(expected, exact), strict=True)
    for number, (mine, theirs) in enumerate(rows):
        for name, one in mine.items():
            if not _same(one, theirs[name], _step(found.schema.field(name).type)):
                return f"{name} is {one!r}, expected {theirs[name]!r}, in row {number}: {mine}"
    return None


def _is_float(one: pa.Table, two: pa.Table, name: str) -> bool:
    return any(pa.types.is_floating(table.schema.field(name).type) for table in (one, two))


def _in_one_order(table: pa.Table, exact: Sequence[str]) -> list[dict[str, Any]]:
    """Rows sorted by all columns, those first that are no doubles on either side."""
    names = [*exact, *(name for name in table.column_names if name not in exact)]
    return sorted(
        table.to_pylist(), key=lambda row: [(row[name] is not None, row[name]) for name in names]
    )


def _step(kind: pa.DataType) -> float:
    """What the last digit of a type is worth."""
    return 10.0**-kind.scale if pa.types.is_decimal(kind) else 0.0


def _same(one: object, two: object, step: float) -> bool:
    if isinstance(one, float) or isinstance(two, float):
        if not isinstance(one, float | Decimal | int) or not isinstance(two, float | Decimal | int):
            return False
        return math.isclose(float(one), float(two), rel_tol=RELATIVE_MAX, abs_tol=step)
    return one == two
