"""Every public method of PySpark's classes runs here, on Spark, or says why not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, functions
from pyspark.sql import GroupedData as SparkGroupedData
from pyspark.sql import Window as SparkWindow
from sqlglot import exp
from tests.unit.engine.memory_kit import of, rows

import millrace as mr
from millrace import Window
from millrace import functions as F  # noqa: N812 - as Spark's users write it
from millrace.datasets.html_tables import html_rows
from millrace.datasets.spark_methods import BY_SPARK, NOT_OFFERED
from millrace.sql.connect_expressions import column_tree

SCRIPT = Path(__file__).parents[3] / "scripts" / "pyspark_methods.py"


def script() -> Any:  # noqa: ANN401 - a module
    spec = importlib.util.spec_from_file_location("pyspark_methods", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyspark_methods"] = module  # Its dataclass looks for its module there.
    spec.loader.exec_module(module)
    return module


def test_the_page_lists_every_method_and_where_it_runs() -> None:
    tables = script()
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.written(page) == page, "run scripts/pyspark_methods.py"
    assert "not yet" not in page


def test_every_parameter_of_sparks_methods_is_taken_by_name_and_by_position() -> None:
    tables = script()
    assert [what for name in tables.FRONTS for what in tables.refused_calls(name)] == []


def test_what_is_said_to_run_on_spark_or_not_at_all_is_a_method_of_spark() -> None:
    assert {*BY_SPARK, *NOT_OFFERED} <= {*dir(DataFrame), *dir(SparkGroupedData)}
    assert [name for name in NOT_OFFERED if hasattr(mr.Dataset, name)] == []


def test_a_method_that_makes_no_sense_says_why() -> None:
    with pytest.raises(
        AttributeError, match=r"no rdd\n  found: RDDs .*\n  to fix: use map_batches"
    ):
        _ = of(a=[1]).rdd
    with pytest.raises(AttributeError, match="neither a method nor a column 'sellect'"):
        _ = of(a=[1]).sellect


def test_a_column_is_named_through_its_dataset() -> None:
    left, right = of(k=[1, 2], v=[10, 20]), of(k=[1, 2], v=[30, 40])
    joined = left.join(right, left.k == right.k)
    assert joined.columns == ["k", "v", "k", "v"]
    assert joined.select(right.v, left["v"].alias("w")).toArrow().to_pydict() == {
        "v": [30, 40],
        "w": [10, 20],
    }
    with pytest.raises(mr.UserError, match="v is ambiguous"):
        joined.select("v")
    with pytest.raises(mr.UserError, match="no column nothing"):
        _ = left["nothing"]


def test_a_dataset_made_of_another_is_told_apart_from_it() -> None:
    orders = of(k=[1, 1, 2], v=[1, 2, 3])
    totals = orders.groupBy("k").agg(F.sum("v").alias("t"))
    joined = orders.join(totals, orders.k == totals.k).select(orders.v, totals.t)
    assert sorted(joined.toArrow().to_pylist(), key=str) == [
        {"v": 1, "t": 3},
        {"v": 2, "t": 3},
        {"v": 3, "t": 3},
    ]


def test_a_text_that_is_a_name_means_the_column() -> None:
    counted = of(k=[1, 1], v=[2, 3]).groupBy("k").sum("v")
    assert counted.columns == ["k", "sum(v)"]
    assert counted.select("sum(v)").toArrow()["sum(v)"].to_pylist() == [5]
    odd = rows(pa.table({"two words": [2, 1], "dot.ted": [3, 4]}))
    assert odd.orderBy("two words").toArrow()["dot.ted"].to_pylist() == [4, 3]


def test_rows_are_sparks() -> None:
    (row,) = of(a=[1], b=["x"]).collect()
    assert (row.a, row["b"], row.asDict()) == (1, "x", {"a": 1, "b": "x"})
    twice = of(a=[1]).select("a", "a + 1 AS a").collect()
    assert tuple(twice[0]) == (1, 2)
    assert of(a=[1, 2, 3]).tail(2)[0].a == 2


def test_a_notebook_shows_columns_and_runs_nothing() -> None:
    shown = of(a=[1], **{"<b>": ["x"]})._repr_html_()
    assert "<td>a</td><td>bigint</td>" in shown
    assert "&lt;b&gt;" in shown
    assert "Nothing has run" in shown
    assert repr(of(a=[1])) == "Dataset[a: int64]"


def test_a_notebook_shows_the_first_rows_where_spark_would() -> None:
    shown = html_rows(["a"], pa.table({"a": [None, "x" * 300, "y"]}), 2)
    assert "<td>NULL</td>" in shown
    assert "xxx...</td>" in shown
    assert "only showing top 2 rows" in shown


def test_groups_by_sets_of_keys() -> None:
    rows_of_keys = of(a=["x", "x", "y"], b=[1, 2, 1], v=[10, 20, 30])
    rolled = rows_of_keys.rollup("a", "b").agg(F.sum("v").alias("s"), F.grouping_id().alias("g"))
    assert rolled.columns == ["a", "b", "s", "g"]
    assert sorted(rolled.toArrow()["s"].to_pylist()) == [10, 20, 30, 30, 30, 60]
    assert rows_of_keys.cube("a", "b").count().toArrow().num_rows == 8


def test_values_become_columns_and_columns_values() -> None:
    sales = of(k=[1, 1, 2], c=["x", "y", "x"], v=[10, 20, 30])
    wide = sales.groupBy("k").pivot("c", ["x", "y"]).sum("v").orderBy("k")
    assert wide.toArrow().to_pydict() == {"k": [1, 2], "x": [10, 30], "y": [20, None]}
    both = sales.groupBy("k").pivot("c").agg(F.sum("v").alias("s"), F.count("*"))
    assert both.columns == ["k", "x_s", "x_count(1)", "y_s", "y_count(1)"]
    long = wide.unpivot("k", ["x", "y"], "c", "v").where("v IS NOT NULL")
    assert sorted(long.toArrow().to_pylist(), key=str) == sorted(
        sales.toArrow().to_pylist(), key=str
    )


METHODS: dict[str, tuple[Any, ...]] = {
    "alias": ("x",),
    "astype": ("int",),
    "between": (1, 2),
    "bitwiseAND": (1,),
    "bitwiseOR": (1,),
    "bitwiseXOR": (1,),
    "cast": ("int",),
    "contains": ("x",),
    "dropFields": ("x",),
    "endswith": ("x",),
    "eqNullSafe": (1,),
    "getField": ("x",),
    "getItem": (0,),
    "ilike": ("x",),
    "isin": (1, 2),
    "like": ("x",),
    "name": ("x",),
    "over": (Window.partitionBy("a").orderBy("b"),),
    "rlike": ("x",),
    "startswith": ("x",),
    "substr": (1, 2),
    "transform": (lambda column: column + 1,),
    "try_cast": ("int",),
    "when": (F.col("c"), 1),
    "withField": ("x", F.lit(1)),
}
ODD = {
    "outer": "it names a column of the query around a subquery",
    "otherwise": "it follows `when`",
    "when": "it follows `when`",
}


@pytest.mark.parametrize(
    "name", [name for name in dir(SparkColumn) if not name.startswith("_") and name not in ODD]
)
def test_every_method_of_a_column_is_read(name: str) -> None:
    method = getattr(F.col("a"), name)
    assert isinstance(column_tree(method(*METHODS.get(name, ()))), exp.Expression)


def test_every_function_and_window_of_spark_is_here_without_a_session() -> None:
    assert [name for name in functions.__all__ if not hasattr(F, name)] == []
    windows = [name for name in dir(SparkWindow) if not name.startswith("_")]
    assert [name for name in windows if not hasattr(Window, name)] == []
    assert type(F.upper("a")) is type(F.col("a"))


def test_cases_are_read() -> None:
    tree = column_tree(F.when(F.col("a") > 1, "x").when(F.col("a") > 0, "y").otherwise("z"))
    assert isinstance(tree, exp.Case)
