"""`withField` and `dropFields` become structs that SQL can say."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import Column
from pyspark.sql.connect import functions as F  # noqa: N812

from millrace.plan.builders.operators import with_sql_form
from millrace.sql.connect_expressions import column_tree
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.functions.nested.field_updates import UPDATE_FIELD
from millrace.sql.labels.spark_labels import spark_label
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import canonical, read
from millrace.sql.typed_sql import NotNative

KIND = pa.struct({"a": pa.int32(), "in": pa.struct({"b": pa.string(), "c": pa.int64()})})
ROWS = pa.table(
    {
        "s": pa.array([{"a": 1, "in": {"b": "x", "c": 2}}, None, {"a": 3, "in": None}], KIND),
        "list": pa.array([[{"a": 5, "in": None}], None, []], pa.list_(KIND)),
    }
)


def answer(column: Column) -> list[object]:
    """The values of a column, whose SQL for Spark is read again first."""
    tree = with_sql_form(column_tree(column), ROWS.schema)
    text = canonical(tree)
    assert UPDATE_FIELD not in text.lower()
    term = ExpressionTyper(NameScope(ROWS.schema)).typed(read(text))
    connection = duckdb.connect()
    connection.register("t", ROWS)
    return [row[0] for row in connection.execute(f"SELECT {term.sql} FROM t").fetchall()]


def test_a_field_is_added_behind_the_others_and_a_null_stays_null() -> None:
    assert answer(F.col("s").withField("z", F.lit(7))) == [
        {"a": 1, "in": {"b": "x", "c": 2}, "z": 7},
        None,
        {"a": 3, "in": None, "z": 7},
    ]


def test_a_field_is_replaced_where_it_is_under_the_name_that_is_given() -> None:
    changed = answer(F.col("s").withField("A", F.col("s.a") + F.lit(1)))
    assert changed == [{"A": 2, "in": {"b": "x", "c": 2}}, None, {"A": 4, "in": None}]


def test_a_path_leads_into_inner_structs() -> None:
    changed = answer(F.col("s").withField("in.c", F.lit("new")).dropFields("in.b", "a"))
    assert changed == [{"in": {"c": "new"}}, None, {"in": None}]


def test_fields_of_structs_in_arrays_are_changed_by_a_lambda() -> None:
    column = F.transform("list", lambda row: row.withField("a", F.lit(0)))
    term = ExpressionTyper(NameScope(ROWS.schema)).typed(column_tree(column))
    assert str(term.type) == "array<struct<a:int,in:struct<b:string,c:bigint>>>"


@pytest.mark.parametrize(
    "column",
    [
        F.col("list").withField("a", F.lit(1)),
        F.col("s").withField("no.b", F.lit(1)),
        F.col("s").dropFields("a", "in"),
    ],
)
def test_what_is_no_field_of_a_struct_is_left_to_spark(column: Column) -> None:
    with pytest.raises(NotNative, match="is left to Spark"):
        with_sql_form(column_tree(column), ROWS.schema)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (F.col("s").withField("z", F.lit(7)), "update_fields(s, WithField(7))"),
        (F.col("s").dropFields("a", "b"), "update_fields(s, dropfield(), dropfield())"),
        (
            F.col("s").withField("in.c", F.lit("new")),
            "update_fields(s, WithField(update_fields(s.in, WithField(new))))",
        ),
    ],
)
def test_a_changed_struct_has_the_name_spark_gives_it(column: Column, name: str) -> None:
    assert spark_label(column_tree(column)) == name
