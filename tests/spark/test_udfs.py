"""Users' functions in expressions give Spark's rows, for every kind of function."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.types import Row
from sqlglot import exp

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.errors import FunctionFailed
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import udf_tree, with_udf_columns
from millrace.plan.builders.operators import project
from millrace.plan.relation import relation_of
from millrace.spark.frames.rows_as_frames import of_table
from millrace.spark.udfs.pyspark_functions import function_of_udf

pytestmark = pytest.mark.spark
PANDAS_UDF = F.pandas_udf  # type: ignore[attr-defined]
ARROW_UDF = F.arrow_udf  # type: ignore[attr-defined]
UTC = dt.UTC
NAIVE = dt.datetime(2020, 3, 29, 2, 30)  # noqa: DTZ001 - of no zone
TABLE = pa.table(
    {
        "i": pa.array([1, None, -3, 2**31 - 1], pa.int32()),
        "l": pa.array([1, None, 2**62, -5], pa.int64()),
        "d": pa.array([1.5, None, float("nan"), -0.0]),
        "s": pa.array(["a", None, "", "täxt"]),
        "b": pa.array([b"x", None, b"", b"\xff"]),
        "t": pa.array(
            [dt.datetime(2020, 3, 29, 1, 30, tzinfo=UTC), None]
            + [dt.datetime(1900, 1, 1, tzinfo=UTC)] * 2,
            pa.timestamp("us", "UTC"),
        ),
        "n": pa.array([NAIVE] + [None] * 3, pa.timestamp("us")),
        "day": pa.array([dt.date(2020, 2, 29), None] + [dt.date(1, 1, 1)] * 2),
        "m": pa.array([decimal.Decimal("1.25"), None] + [decimal.Decimal("-9.99")] * 2),
        "a": pa.array([[1, None], None, [], [3]], pa.list_(pa.int64())),
        "st": pa.array([{"x": 1, "y": "q"}, None, {"x": None, "y": ""}, {"x": 2, "y": None}]),
    }
)


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, create=True)


def called(dataset: Dataset, udf: Any, *columns: str) -> Dataset:  # noqa: ANN401 - PySpark's
    """The results of a function over columns, as column r."""
    tree = udf_tree(function_of_udf(udf), [exp.column(name) for name in columns])
    node, (result,) = with_udf_columns(BuildContext(), plan_of(dataset), [tree])
    plan = project(BuildContext(), node, [("r", result)])
    return Dataset(relation_of(plan), dataset._runner)


def rows(dataset: Dataset) -> list[Any]:
    table = pa.Table.from_batches(dataset.to_batches(), dataset.arrow_schema)
    return list(table["r"].to_pylist())


def _text(*values: Any) -> str:  # noqa: ANN401 - anything
    return repr(values)


def _lengths(texts: pd.Series) -> pd.Series:
    return texts.str.len()


def _add_one(numbers: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for part in numbers:
        yield part + 1


def _doubled(values: pa.Array) -> pa.Array:
    return pc.multiply(values, 2)


def _doubled_all(parts: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for part in parts:
        yield pc.multiply(part, 2)


def _struct(numbers: pd.Series, texts: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"x": numbers.fillna(0).astype("int64"), "y": texts})


UDFS: dict[str, Callable[[], tuple[Any, tuple[str, ...]]]] = {
    "values as they come": lambda: (F.udf(_text, "string"), tuple(TABLE.column_names)),
    "pickled values": lambda: (F.udf(_text, "string", useArrow=False), tuple(TABLE.column_names)),
    "numbers": lambda: (F.udf(lambda x: None if x is None else x + 1, "long"), ("l",)),
    "a struct": lambda: (F.udf(lambda x: Row(q=x, p=[str(x)]), "q int, p array<string>"), ("i",)),
    "times": lambda: (F.udf(lambda t: t, "timestamp"), ("t",)),
    "pickled times": lambda: (F.udf(lambda t: t, "timestamp", useArrow=False), ("t",)),
    "no arguments": lambda: (F.udf(lambda: 7, "int"), ()),
    "pandas": lambda: (PANDAS_UDF(_lengths, "double"), ("s",)),
    "pandas struct": lambda: (PANDAS_UDF(_struct, "x long, y string"), ("i", "s")),
    "pandas iterator": lambda: (PANDAS_UDF(_add_one, "double"), ("d",)),
    "arrow": lambda: (ARROW_UDF(_doubled, "double"), ("d",)),
    "arrow iterator": lambda: (ARROW_UDF(_doubled_all, "double"), ("d",)),
}
WRONG_TYPES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "text for a number": (lambda _: "5", "int"),
    "a fraction for a number": (lambda _: 2.7, "int"),
    "a number for a fraction": (lambda _: 2, "double"),
    "a number for text": (lambda _: 5, "string"),
    "true for text": (lambda _: True, "string"),
    "true for a number": (lambda _: True, "int"),
    "a long for an int": (lambda _: 2**40 + 3, "int"),
    "a fraction for a decimal": (lambda _: 1.5, "decimal(10,2)"),
    "a tuple for an array": (lambda _: (1, 2), "array<int>"),
    "a dict for a struct": (lambda _: {"p": 1, "q": "2"}, "q string, p int"),
    "text for bytes": (lambda _: "ä", "binary"),
    "wrong items": (lambda _: [1, "2", None], "array<int>"),
}


def same(udf: Any, columns: tuple[str, ...], spark: SparkSession, ws: mr.Workspace) -> None:  # noqa: ANN401
    frame = of_table(spark, TABLE)
    dataset = ws.from_arrow(TABLE)
    theirs: Any
    try:
        theirs = frame.select(udf(*columns).alias("r")).toArrow()["r"]
    except Exception:  # noqa: BLE001 - Spark's, of any kind
        with pytest.raises(FunctionFailed):
            rows(called(dataset, udf, *columns))
        return
    mine = called(dataset, udf, *columns)
    assert repr(rows(mine)) == repr(theirs.to_pylist())
    assert mine.arrow_schema.field("r").type == theirs.type or "timestamp" in str(theirs.type)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_functions_of_every_kind_give_sparks_rows(
    spark: SparkSession, ws: mr.Workspace, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for name, make in UDFS.items():
            udf, columns = make()
            try:
                same(udf, columns, spark, ws)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("arrow", [True, False])
def test_results_of_another_type_become_what_they_become_in_spark(
    spark: SparkSession,
    ws: mr.Workspace,
    arrow: bool,  # noqa: FBT001 - a case
) -> None:
    for name, (function, result) in WRONG_TYPES.items():
        try:
            same(F.udf(function, result, useArrow=arrow), ("i",), spark, ws)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
