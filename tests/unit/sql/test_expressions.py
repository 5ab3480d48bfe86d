"""Expressions: their types, names, canonical text, and what is refused."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.sql.expressions import parse, parse_named

SCHEMA = pa.schema(
    {
        "a": pa.int32(),
        "b": pa.int64(),
        "f": pa.float32(),
        "x": pa.float64(),
        "amount": pa.decimal128(15, 2),
        "wide": pa.decimal128(38, 18),
        "name": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "ok": pa.bool_(),
        "tags": pa.list_(pa.string()),
        "odd": pa.list_(pa.uint8()),
        "image": pa.struct(
            {"path": pa.string(), "size": pa.int64(), "tags": pa.list_(pa.string())}
        ),
        'we"ird': pa.int32(),
    }
)


def refused(text: str) -> str:
    with pytest.raises(UserError) as error:
        parse(text, SCHEMA, call=f"filter({text!r})")
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a + 1", "int"),
        ("a + b", "bigint"),
        ("a / 2", "double"),
        ("a div 2", "bigint"),
        ("f + a", "double"),
        ("f + f", "float"),
        ("amount + 1", "decimal(16,2)"),
        ("amount * 2", "decimal(17,2)"),
        ("amount * (1 - 0.05) * (1 + 0.07)", "decimal(25,6)"),
        ("amount / 3", "decimal(19,6)"),
        ("wide + wide", "decimal(38,17)"),
        ("coalesce(a, amount)", "decimal(15,2)"),
        ("1.5", "decimal(2,1)"),
        ("1e3", "double"),
        ("2147483648", "bigint"),
        ("name = 5", "boolean"),
        ("day + 1", "date"),
        ("day + interval 1 hour", "timestamp"),
        ("if(ok, a, null)", "int"),
        ("null", "void"),
        ("image.size + a", "bigint"),
        ("IMAGE.path", "string"),
    ],
)
def test_an_expression_has_the_type_spark_gives_it(text: str, kind: str) -> None:
    assert str(parse(text, SCHEMA, call="select").type) == kind


def test_an_expression_knows_the_columns_it_reads() -> None:
    found = parse("A + coalesce(b, 1) > length(name)", SCHEMA, call="filter")
    assert found.columns == {"a", "b", "name"}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a+1", "a + 1"),
        ("SUBSTR( name,2 )", "SUBSTR(name, 2)"),
        ("a -- a comment\n + 1L", "a + 1L"),
        ("date_sub(day, 1)", "DATE_SUB(day, 1)"),
        ("a::bigint", "CAST(a AS BIGINT)"),
        ("'it''s'", "'it\\'s'"),
    ],
)
def test_the_text_is_canonical(text: str, canonical: str) -> None:
    assert parse(text, SCHEMA, call="select").text == canonical


def test_a_field_of_a_column_is_read_from_the_column_whatever_that_is_named() -> None:
    found = parse("image.size > a", SCHEMA, call="filter")
    assert (set(found.columns), found.text) == ({"image", "a"}, "image.size > a")
    renamed = found.renamed({"image": "picture", "size": "wrong", "a": "b"})
    assert (set(renamed.columns), renamed.text) == ({"picture", "b"}, "picture.size > b")


def test_a_literal_with_a_suffix_and_a_cast_are_told_apart() -> None:
    schema = pa.schema({"d": pa.decimal128(10, 2)})
    assert str(parse("d + 1L", schema, call="select").type) == "decimal(11,2)"
    assert str(parse("d + cast(1 as bigint)", schema, call="select").type) == "decimal(23,2)"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a + 1 AS b", "b"),
        ("a", "a"),
        ("A", "A"),
        ("a + 1", "(a + 1)"),
        ("cast(a as string)", "a"),
        ("a <> 1", "(NOT (a = 1))"),
        ("upper(name)", "upper(name)"),
        ("tags", "tags"),
        ("image.size", "size"),
        ("image.Path", "Path"),
    ],
)
def test_an_expression_has_a_name(text: str, name: str) -> None:
    assert [one for one, _ in parse_named(text, SCHEMA, call="select")] == [name]


def test_a_star_is_every_column_as_it_is() -> None:
    found = parse_named("*", SCHEMA, call="select('*')")
    assert [name for name, _ in found] == SCHEMA.names
    assert found[-1][1].sql == '"we""ird"'


def test_an_expression_without_a_certain_name_asks_for_one() -> None:
    with pytest.raises(UserError, match="add AS name"):
        parse_named("extract(year from day)", SCHEMA, call="select(...)")


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("amout > 1", "there is no column amout", "did you mean amount"),
        ("uper(name)", "the function uper is not known", "did you mean upper"),
        ("a + name", "the right side of + is not a number", "cast it"),
        ("ok + 1", "the left side of + is not a number", "cast it"),
        ("a and ok", "AND needs a condition", "compare it"),
        ("ok = 1", "no common type", "cast them"),
        ("a +", "a value is expected after +", "write a column or a value"),
        ("", "empty", "write"),
        ("sum(a) > 1", "sum is an aggregate", "use it in agg"),
        ("sum(a) over ()", "a window function has no place here", "window operator"),
        ("a in (select 1)", "IN takes a list", "use a join"),
        ("exists(select 1)", "a subquery has no place here", "use a join"),
        ("a AS c", "a name has no place here", "leave it out"),
        ("odd = odd", "cannot calculate with a column of type list", "passed on"),
        ("name.first", "a field of a column cannot be named", "take it from a struct"),
        ("image.sise > 1", "image has no field sise", "name one of these"),
        ("image.tags = 1", "the values of = have no common type", "cast them"),
        ("image.size.more = 1", "a field of a column cannot be named", "take it from a struct"),
        ("cast(x as string)", "double cannot be cast to string", "decimal"),
        ("wide * wide", "needs more than 38 digits", "double"),
        ("upper(name, 1)", "upper was called with 2 arguments", "call it that way"),
        ("day - day", "dates cannot be subtracted", "datediff"),
        ("day + interval 1 fortnight", "an interval is a whole number of one unit", "DAY"),
        ("name like 'a\\\\bc'", "the pattern of LIKE", "double it"),
        ("name rlike '\\\\ba'", "only Java", "groups"),
        ("case when a then 1 end", "CASE needs a condition", "compare it"),
        ("a; select 1", "more than one", "one at a time"),
        ("round(x, a)", "round needs its digits", "round(x, 2)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_way_out(text: str, what: str, fix: str) -> None:
    message = refused(text)
    first = message.split("\n")[0]
    assert what in first
    assert f"filter({text!r})" in first
    assert fix in message.split("to fix: ")[1]


def test_names_that_differ_in_case_only_are_ambiguous_unless_exact() -> None:
    schema = pa.schema({"Ab": pa.int32(), "aB": pa.int32()})
    assert parse("Ab", schema, call="select").columns == {"Ab"}
    with pytest.raises(UserError, match="ambiguous"):
        parse("ab", schema, call="select")


def test_a_condition_guards_what_stands_behind_it() -> None:
    rows = pa.table({"a": [1, 2, 3], "b": [0, 1, 0]})
    found = parse("b <> 0 and a / b > 1", rows.schema, call="filter")
    assert found.raises
    connection = duckdb.connect()
    connection.register("t", rows)
    kept = connection.execute(f"SELECT a FROM t WHERE {found.sql}").fetchall()
    assert kept == [(2,)]


def test_a_text_with_quotes_stays_one_text() -> None:
    found = parse("'it''s \" \\' $'", SCHEMA, call="select")
    assert duckdb.connect().execute(f"SELECT {found.sql}").fetchall() == [("it's \" ' $",)]
