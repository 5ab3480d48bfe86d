"""Spark's grammar: operators bind as in Spark, and forms with words become plain calls."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlglot import exp

from millrace.sql.expressions import parse
from millrace.sql.functions.function_registry import AGGREGATES, FUNCTIONS
from millrace.sql.functions.spark_functions import SPARK_FUNCTIONS
from millrace.sql.functions.unknown_functions import unknown_function
from millrace.sql.parser import canonical, read
from millrace.sql.typed_sql import NotNative

SCHEMA = pa.schema(
    {"a": pa.int32(), "b": pa.int64(), "s": pa.string(), "x": pa.float64(), "bi": pa.binary()}
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("trim(BOTH 'x' FROM s)", "TRIM('x', s)"),
        ("trim(LEADING 'x' FROM s)", "LTRIM('x', s)"),
        ("trim(TRAILING FROM s)", "RTRIM(s)"),
        ("trim('x' FROM s)", "TRIM('x', s)"),
        ("substr(s FROM 5 FOR 2)", "SUBSTRING(s, 5, 2)"),
        ("overlay(s PLACING 'x' FROM a + 1)", "OVERLAY(s, 'x', a + 1)"),
        ("position('a' IN s || 'x')", "LOCATE('a', s || 'x')"),
        ("TIME'12:30:00'", "CAST('12:30:00' AS TIME)"),
        ("TRY_CAST(s AS TIME(3))", "TRY_CAST(s AS TIME(3))"),
        ("CAST(s AS ARRAY<TIME(0)>)", "CAST(s AS ARRAY<TIME(0)>)"),
        ("CAST(s AS TIMESTAMP_NTZ(9))", "CAST(s AS TIMESTAMP_NTZ(9))"),
        ("between(a, 1, 2)", "BETWEEN(a, 1, 2)"),
        ("X 'ff'", "X'ff'"),
        ("v:b.c[0]", "v:`b`.`c`[0]"),
        ("array(1, 2)[0]", "ARRAY(1, 2)[0]"),
        ("SELECT * FROM VALUES 'a', 'b' AS t(s)", "SELECT * FROM VALUES ('a'), ('b') AS t(s)"),
        ("SELECT * FROM VALUES 1, a + 2 t", "SELECT * FROM VALUES (1), (a + 2) AS t"),
    ],
)
def test_a_form_with_words_is_the_call_that_spark_makes_of_it(text: str, meant: str) -> None:
    assert canonical(read(text)) == meant
    assert canonical(read(meant)) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a | b & a ^ b << 1", "a | ((b & a) ^ (b << 1))"),
        ("a + 1 << b", "(a + 1) << b"),
        ("s || a + 1", "(s || a) + 1"),
        ("a + 1 || s", "(a + 1) || s"),
        ("a >>> 1 >> 2", "(a >>> 1) >> 2"),
        ("~a & b", "(~a) & b"),
        ("a & b = 1", "(a & b) = 1"),
    ],
)
def test_operators_bind_as_in_spark(text: str, meant: str) -> None:
    brackets = read(meant).transform(lambda node: node.unnest() if node.key == "paren" else node)
    for paren in list(brackets.find_all(exp.Paren)):
        paren.replace(paren.this)
    assert read(text) == brackets
    assert canonical(read(text)) == text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a & b", "bigint"),
        ("cast(a as tinyint) << 1", "int"),
        ("~a", "int"),
        ("s RLIKE 'a+$'", "boolean"),
        ("s ILIKE ANY ('A%', 'b')", "boolean"),
        ("encode(s, 'utf-16')", "binary"),
        ("crc32(bi)", "bigint"),
        ("hex(a)", "string"),
        ("getbit(b, 3)", "tinyint"),
        ("locate('a', s)", "int"),
    ],
)
def test_a_result_has_sparks_type(text: str, kind: str) -> None:
    assert parse(text, SCHEMA, call=text).type.name == kind


def test_a_name_of_spark_is_never_taken_for_a_misspelling() -> None:
    for name in sorted(SPARK_FUNCTIONS - set(FUNCTIONS) - set(AGGREGATES)):
        refusal = unknown_function(name)
        assert "did you mean" not in refusal.fix, name


@pytest.mark.parametrize("name", ["reverse", "now", "sentences", "randstr", "to_char"])
def test_a_function_of_spark_is_in_the_table_or_left_to_spark(name: str) -> None:
    assert name in FUNCTIONS or isinstance(unknown_function(name), NotNative)
