"""Types of users' functions: by their text, and results that Spark takes or does not take."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import Row
from sqlglot import exp

from millrace import functions as F  # noqa: N812 - as everybody does
from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import keep_calls, udf_tree
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.spark.udfs.ddl_types import type_of_ddl
from millrace.spark.udfs.pickled_results import taken
from millrace.spark.udfs.pyspark_functions import function_of_udf
from millrace.sql.connect_expressions import column_tree


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int", "int"),
        ("LONG", "bigint"),
        ("array<int>", "array<int>"),
        ("map<string, array<double>>", "map<string,array<double>>"),
        ("a int, `b c` array<struct<x: int>>", "struct<a:int,b c:array<struct<x:int>>>"),
        ("a: int", "struct<a:int>"),
        ("decimal(10,2)", "decimal(10,2)"),
        ("decimal", "decimal(10,0)"),
        ("timestamp_ntz", "timestamp_ntz"),
    ],
)
def test_a_text_names_sparks_type(text: str, name: str) -> None:
    assert type_of_ddl(text).simpleString() == name


@pytest.mark.parametrize("text", ["", "nothing at all", "array<", "int int int"])
def test_a_text_that_names_no_type_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="names no type of Spark"):
        type_of_ddl(text)


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        ("5", "int", None),
        (2.7, "int", None),
        (True, "int", None),
        (2**40 + 3, "int", 3),
        (2**63, "long", None),
        (200, "byte", -56),
        (2, "double", None),
        (2.5, "float", 2.5),
        (5, "string", "5"),
        (True, "string", "true"),
        ("ä", "binary", "ä".encode()),
        (1.5, "decimal(10,2)", None),
        (Decimal("1.5"), "decimal(10,2)", Decimal("1.5")),
        (dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC), "date", dt.date(2020, 1, 2)),
        ([1, "2", None], "array<int>", [1, None, None]),
        ({"a": "x"}, "map<string,int>", {"a": None}),
        ({"p": 1, "q": 2}, "q string, p int", ("2", 1)),
        (Row(p=1, q="z"), "q string, p int", ("z", 1)),
        (None, "int", None),
    ],
)
def test_a_pickled_value_of_another_type_is_null(value: Any, kind: str, result: Any) -> None:  # noqa: ANN401
    assert taken(value, type_of_ddl(kind)) == result


def test_a_value_whose_text_would_be_javas_is_refused() -> None:
    with pytest.raises(TypeError, match="returned float; return str"):
        taken(1.5, type_of_ddl("string"))


def test_functions_are_made_and_called_without_a_session() -> None:
    @F.udf("long")
    def plus_one(x):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - Spark reads hints
        return x + 1

    @F.pandas_udf("double")  # type: ignore[attr-defined, untyped-decorator]
    def lengths(texts: pd.Series) -> pd.Series:
        return texts.str.len()

    def doubled(values: pa.Array) -> pa.Array:
        return values

    made = [plus_one, F.udf(lambda x: x), F.udf(lambda x: x, useArrow=False), lengths]
    made.append(F.arrow_udf(doubled, "array<int>"))  # type: ignore[attr-defined]
    functions = [function_of_udf(udf) for udf in made]
    assert [f.shape for f in functions] == ["row", "row", "row", "batch", "batch"]
    assert [f.eval_type for f in functions] == [101, 101, 100, 200, 250]
    assert [str(f.result) for f in functions][:4] == ["int64", "string", "string", "double"]
    for udf in made:
        tree = column_tree(udf("a").alias("r"))
        assert tree.find(exp.Anonymous).meta["udf"].python_udf.command  # type: ignore[union-attr]


def test_no_call_is_made_for_rows_that_the_rest_of_a_condition_drops() -> None:
    rows = FunctionRows(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    half = function_of_udf(F.udf(lambda x: x // 2, "long"))
    call = exp.GT(this=udf_tree(half, [plan_column("a")]), expression=exp.Literal.number(1))
    native = exp.GT(this=plan_column("b"), expression=exp.Literal.number(0))

    plan = keep_calls(BuildContext(), rows, exp.And(this=call, expression=native))

    drawn, node = [], plan
    while node.children:
        drawn.append(type(node).__name__)
        (node,) = node.children
    assert drawn == ["Project", "Filter", "UdfCalls", "Filter"]
    assert plan.schema.names == ["a", "b"]
