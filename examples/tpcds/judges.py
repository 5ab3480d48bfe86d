"""Whether two answers to a query of TPC-DS are the same."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from examples.tpcds.data import query_text, tables
from pyspark.sql import SparkSession

import millrace as mr

RELATIVE_MAX: Final = 1e-6
ROUNDED: Final = 0.0051
"""Engines round decimal averages at different digits."""


def name_tables(ws: mr.Workspace, folder: Path) -> None:
    """Let SQL of a workspace see the tables of a folder."""
    for name, path in tables(folder).items():
        ws.view(name, ws.read_parquet(str(path)))


def spark_tables(spark: SparkSession, folder: Path) -> None:
    """Let Spark see the tables of a folder."""
    for name, path in tables(folder).items():
        spark.read.parquet(str(path)).createOrReplaceTempView(name)


def spark_answer(spark: SparkSession, folder: Path, number: int) -> pa.Table:
    """Spark's answer to a query."""
    return spark.sql(query_text(folder, number)).toArrow()


def duckdb_answer(folder: Path, number: int) -> pa.Table:
    """The answer of the DuckDB that made the data."""
    return pq.read_table(folder / "answers" / f"q{number:02}.parquet")


def difference(answer: pa.Table, expected: pa.Table) -> str | None:
    """The first difference between two answers, or None if they have the same rows.

    Columns match by position: engines name them differently. Orders of the queries leave ties.
    """
    if answer.num_columns != expected.num_columns:
        return f"{answer.num_columns} columns, expected {expected.num_columns}"
    if answer.num_rows != expected.num_rows:
        return f"{answer.num_rows} rows, expected {expected.num_rows}"
    for ours, theirs in zip(_sorted(answer), _sorted(expected), strict=True):
        if not all(_same(a, b) for a, b in zip(ours, theirs, strict=True)):
            return f"{ours}, expected {theirs}"
    return None


def _sorted(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return sorted(zip(*columns, strict=True), key=_order)


def _order(row: tuple[object, ...]) -> list[tuple[bool, str]]:
    """Numbers that differ in their last digits come alike."""
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
    return [(value is None, text) for value, text in zip(row, texts, strict=True)]


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    return str(value)[:10] if isinstance(value, date) else value


def _same(one: object, two: object) -> bool:
    if isinstance(one, int | float) and isinstance(two, int | float):
        return math.isclose(one, two, rel_tol=RELATIVE_MAX, abs_tol=ROUNDED)
    return one == two
