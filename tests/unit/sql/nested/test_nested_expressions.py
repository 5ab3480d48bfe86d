"""Expressions over nested columns: types, names, refusals, and names that do not meet."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.sql.aggregates.aggregate_expressions import typed_aggregate
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import parse, parse_named
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import read
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import LONG

VARIABLE = "namedlambdavariable()"
SCHEMA = pa.schema(
    {
        "a": pa.int32(),
        "x": pa.int64(),
        "s": pa.string(),
        "f": pa.float64(),
        "list": pa.list_(pa.int32()),
        "words": pa.list_(pa.string()),
        "row": pa.struct({"a": pa.int32(), "in": pa.struct({"b c": pa.string()})}),
        "rows": pa.list_(pa.struct({"k": pa.int32(), "v": pa.string()})),
        "map": pa.map_(pa.string(), pa.int64()),
        "odd": pa.struct({"plain": pa.int32(), "strange": pa.uint16()}),
    }
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("list[0]", "int"),
        ("map['k']", "bigint"),
        ("row.a", "int"),
        ("row.in.`b c`", "string"),
        ("row.IN", "struct<b c:string>"),
        ("rows.v", "array<string>"),
        ("rows[0].k", "int"),
        ("odd.plain", "int"),
        ("array(1, 2.5)", "array<decimal(11,1)>"),
        ("array()", "array<void>"),
        ("array(list, array(x))", "array<array<bigint>>"),
        ("struct(a, a + 1, s AS t)", "struct<a:int,col2:int,t:string>"),
        ("named_struct('p', map)", "struct<p:map<string,bigint>>"),
        ("map('p', 1, 'q', x)", "map<string,bigint>"),
        ("transform(list, (v, n) -> struct(v, n))", "array<struct<v:int,n:int>>"),
        ("filter(rows, r -> r.k > a)", "array<struct<k:int,v:string>>"),
        ("aggregate(list, 0L, (acc, v) -> acc + v, acc -> acc / 2)", "double"),
        ("map_entries(map)", "array<struct<key:string,value:bigint>>"),
        ("cast(row as struct<p:bigint,q:string>)", "struct<p:bigint,q:string>"),
        ("cast(list as string)", "string"),
        ("coalesce(list, array())", "array<int>"),
        ("arrays_zip(list, words)", "array<struct<list:int,words:string>>"),
        ("sequence(a, x)", "array<bigint>"),
        ("split(s, '\\\\.')", "array<string>"),
    ],
)
def test_an_expression_has_the_type_spark_gives_it(text: str, kind: str) -> None:
    assert str(parse(text, SCHEMA, call="select").type) == kind


@pytest.mark.parametrize(
    "text",
    [
        "list[x]",
        "map(f, 1)",
        "map[1]",
        "array_contains(list, null)",
        "array_contains(words, 1)",
        "aggregate(list, 0, (acc, v) -> acc + v * 2L)",
        "array_sort(list, (l, r) -> l - r)",
        "get_json_object(s, '$.a')",
        "from_json(s, 'a INT')",
        "split(s, 'a*')",
        "split(s, '(?<=a)b+|')",
        "split(s, words[0])",
        "to_json(struct(f))",
        "map = map",
        "greatest(list, list)",
        "struct(a, A)",
        "shuffle(list)",
        "cast(list as struct<a:int>)",
        "cast(map as map<int,int>)",
        "sort_array(list, a > 1)",
        "array_distinct(array(array(f)))",
        "transform(list, (v, n, o) -> v)",
        "element_at(list, x)",
        "sequence(f, f)",
    ],
)
def test_what_is_not_shown_equal_is_left_to_spark(text: str) -> None:
    with pytest.raises((NotNative, UserError)) as refused:
        ExpressionTyper(NameScope(SCHEMA)).typed(read(text))
    assert isinstance(refused.value, NotNative)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("row.b", "row has no field b"),
        ("a.b", "a field of a column cannot be named"),
        ("transform(list, v -> w)", "there is no column w"),
        ("transform(list, (v, V) -> v)", "two variables of one name"),
        ("coalesce(list, a)", "no common type"),
        ("coalesce(row, struct(1 AS z))", "no common type"),
    ],
)
def test_what_is_wrong_for_spark_too_is_refused(text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        parse(text, SCHEMA, call="select")


def run(sql: str, **columns: pa.Array) -> list[object]:
    connection = duckdb.connect()
    connection.register("t", pa.table(columns))
    return [row[0] for row in connection.execute(f"SELECT {sql} FROM t").fetchall()]


def test_a_variable_hides_a_column_and_variables_of_inner_lambdas_hide_outer_ones() -> None:
    schema = pa.schema({"x": pa.int32(), "list": pa.list_(pa.int32())})
    rows = {"x": pa.array([100], pa.int32()), "list": pa.array([[1, 2]], pa.list_(pa.int32()))}

    hidden = parse("transform(list, x -> x + 1)", schema, call="select")
    inner = parse("transform(list, y -> transform(list, Y -> y * 10))", schema, call="select")
    both = parse(
        "transform(list, y -> transform(list, z -> y * 10 + z + x))", schema, call="select"
    )

    assert run(hidden.sql, **rows) == [[2, 3]]
    assert run(inner.sql, **rows) == [[[10, 20], [10, 20]]]
    assert run(both.sql, **rows) == [[[111, 112], [121, 122]]]


def test_a_variable_can_be_searched_for_in_another_array() -> None:
    schema = pa.schema({"p": pa.list_(pa.int32()), "q": pa.list_(pa.int32())})
    parsed = parse("filter(p, v -> array_contains(array_remove(q, 1), v))", schema, call="select")
    kind = pa.list_(pa.int32())

    assert run(parsed.sql, p=pa.array([[1, 2, 3]], kind), q=pa.array([[1, 3]], kind)) == [[3]]


def test_renamed_columns_leave_fields_and_variables_alone() -> None:
    schema = pa.schema({"a": pa.int32(), "st": pa.struct({"a": pa.int32()})})
    text = "coalesce(st, named_struct('a', a)).a + size(transform(array(a), b -> b + a))"
    parsed = parse(text, schema, call="select").renamed({"a": "b"})
    empty = pa.array([None], schema.field("st").type)

    assert run(parsed.sql, b=pa.array([7], pa.int32()), st=empty) == [8]
    assert "b_1 -> b_1 + b" in parsed.text
    assert parse(parsed.text, pa.schema({"b": pa.int32(), "st": empty.type}), call="").sql


def test_a_call_on_an_array_that_is_made_on_the_spot_can_be_indexed() -> None:
    assert run(parse("array(5, 6)[1]", SCHEMA, call="select").sql, a=pa.array([1])) == [6]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("row.a", "a"),
        ("(row).a", "a"),
        ("rows[0].k", "rows[0].k"),
        ("map['k']", "map[k]"),
        (
            "transform(list, v -> v + 1)",
            f"transform(list, lambdafunction(({VARIABLE} + 1), {VARIABLE}))",
        ),
        ("struct(a, s AS t)", "struct(a, s AS t)"),
        ("cast(list as array<string>)", "list"),
    ],
)
def test_an_expression_without_a_name_gets_sparks(text: str, name: str) -> None:
    assert parse_named(text, SCHEMA, call="select")[0][0] == name


def test_a_field_of_a_struct_is_named_as_users_know_the_column() -> None:
    scope = NameScope(pa.schema({"k": pa.int32(), "k_1": pa.list_(pa.int32())}), {"k_1": "other"})
    typer = ExpressionTyper(scope)

    assert str(typer.typed(read("struct(k, k_1)")).type) == "struct<k:int,other:array<int>>"
    assert str(typer.typed(read("arrays_zip(k_1, array(k))")).type) == (
        "array<struct<other:int,1:int>>"
    )


@pytest.mark.parametrize(
    "text",
    [
        "count(DISTINCT map)",
        "max(map)",
        "first(array(f))",  # DuckDB would make -0.0 to 0.0
        "max_by(struct(f), a)",
        "min(struct(f))",
    ],
)
def test_aggregates_of_nested_values_that_are_left_to_spark(text: str) -> None:
    with pytest.raises(NotNative):
        typed_aggregate("n", read(text), SCHEMA)


def test_distinct_arrays_are_counted() -> None:
    assert typed_aggregate("n", read("count(DISTINCT rows)"), SCHEMA).type == LONG
