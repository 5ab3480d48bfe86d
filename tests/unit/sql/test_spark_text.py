"""Texts that Spark runs: which of them give equal rows for equal inputs."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.sql.functions.schema_texts import may_have_times
from millrace.sql.spark_text import (
    at_moment,
    called_names,
    columns_read,
    why_of_today,
    why_unrecognised,
)

INPUTS = {"input_0": ["a", "b", "s"], "input_1": ["k"]}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, sentences(b) AS x FROM input_0",
        "SELECT `A` FROM INPUT_0",
        "SELECT a, k FROM input_0 JOIN input_1 ON a = k",
        "SELECT transform(a, (x, i) -> x + i) AS y FROM input_0 ORDER BY y",
        "SELECT s.f, input_0.s.g FROM input_0",
        "SELECT t.q, p FROM input_0 LATERAL VIEW posexplode(a) t AS p, q",
        "WITH c AS (SELECT a AS z FROM input_0), d AS (SELECT * FROM c) SELECT z FROM d",
        "SELECT count(*) FROM input_0 GROUP BY ALL",
        "SELECT * FROM input_0 PIVOT (sum(a) FOR b IN ('x' AS xx, 'y'))",
        "SELECT 'user and now()' AS q FROM input_0",
        "SELECT stack(2, a, b) AS (m, n) FROM input_0",
    ],
)
def test_a_text_over_its_inputs_alone_is_recognised(text: str) -> None:
    assert why_unrecognised(text, INPUTS) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT a, rand() FROM input_0", "rand gives other values"),
        ("SELECT a, RAND (5) FROM input_0", "rand gives other values"),
        ("SELECT current_date FROM input_0", "current_date gives other values"),
        ("SELECT user FROM input_0", "user gives other values"),
        ("SELECT * FROM other", "it reads other"),
        ("TABLE other", "it reads other"),
        ("SELECT * FROM db.input_0", "it reads db.input_0"),
        ("SELECT a FROM input_0 UNION ALL SELECT b FROM other", "it reads other"),
        ("SELECT * FROM input_0 WHERE a IN (SELECT x FROM other)", "it reads other"),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", "it reads t"),
        ("WITH c AS (SELECT * FROM d), d AS (SELECT 1) SELECT * FROM c", "it reads d"),
        ("SELECT * FROM (WITH o AS (SELECT a FROM input_0) SELECT * FROM o), o", "it reads o"),
        ("SELECT my_variable FROM input_0", "my_variable is no column"),
        ("SELECT db.f(a) FROM input_0", "function of a catalog"),
        ("SELECT * FROM input_0 TABLESAMPLE (10 PERCENT)", "a sample has other rows"),
        ("SELECT (a FROM input_0", "not understood"),
    ],
)
def test_a_text_that_may_give_other_rows_is_not_recognised(text: str, why: str) -> None:
    assert why in str(why_unrecognised(text, INPUTS))


def test_names_of_calls_are_those_before_brackets() -> None:
    names = called_names("SELECT My_F(a), `other`(b), upper (c) FROM t WHERE 'f(x)' = d")

    assert {"my_f", "other", "upper"} <= names
    assert not {"a", "d", "t", "f"} & names


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT A + 1 AS x FROM input_0", ["a"]),
        ("SELECT `b`, 'a' AS x FROM input_0 ORDER BY b", ["b"]),
        ("SELECT a * b AS x FROM input_0", ["a", "b"]),
        ("SELECT count(*) AS n FROM input_0 WHERE s.x = 1", ["s"]),
        ("SELECT count(*) AS n FROM input_0", ["a"]),
        ("SELECT a FROM input_0 JOIN (SELECT k AS a FROM input_1) USING (a)", ["a"]),
        ("SELECT * FROM input_0", ["a", "b", "s"]),
        ("SELECT input_0.* FROM input_0", ["a", "b", "s"]),
        ("SELECT struct(*) AS x FROM input_0", ["a", "b", "s"]),
        ("SELECT x FROM input_0 PIVOT (sum(a) FOR b IN ('x' AS x))", ["a", "b", "s"]),
        ("SELECT a FROM input_0 NATURAL JOIN input_1", ["a", "b", "s"]),
        ("FROM input_0 |> WHERE a > 1", ["a", "b", "s"]),
        ("TABLE input_0", ["a", "b", "s"]),
        ("SELECT a:b.c FROM input_0", ["a", "b"]),
        ("SELECT (a FROM input_0", ["a", "b", "s"]),
    ],
)
def test_only_columns_that_a_text_names_are_read(text: str, columns: list[str]) -> None:
    assert columns_read(text, INPUTS)["input_0"] == columns


@pytest.mark.parametrize(
    ("text", "texts", "times", "in_doubt"),
    [
        ("SELECT CAST('12:30' AS TIMESTAMP) AS t", False, False, True),
        ("SELECT hour(s) AS h FROM input_0", True, False, True),
        ("SELECT hour(at) AS h FROM input_0", False, True, False),
        ("SELECT at > s AS later FROM input_0", True, True, True),
        ("SELECT at > '12:30' AS later FROM input_0", False, True, True),
        ("SELECT at > '2020-01-01' AS later FROM input_0", False, True, False),
        ("SELECT sentences(s) AS w FROM input_0 WHERE s = 'x'", True, False, False),
        ("SELECT sentences(s) AS w, at FROM input_0", True, True, False),
        ("SELECT from_json(s, 'level STRING, ms INT') AS j FROM input_0", True, False, False),
        ("SELECT from_json(s, 'timestamp STRING') AS j FROM input_0", True, False, False),
        ("SELECT from_json(s, 'a: array<struct<at: timestamp>>') AS j FROM t", True, False, True),
        ("SELECT from_json(s, 'a INT') AS j, hour(s) AS h FROM input_0", True, False, True),
        ("SELECT from_json(s, 'a INT'), from_json(s, 'a DATE') FROM t", True, False, True),
        ("SELECT `from_json`(s, 'a INT') AS j FROM input_0", True, False, False),
        ("SELECT from_json(s, 'a INT').from_json AS j FROM input_0", True, False, True),
        ("SELECT from_csv(s, schema_of_csv('1,2')) AS c FROM input_0", True, False, True),
        ("SELECT from_json(s, 'no schema at all') AS j FROM input_0", True, False, True),
    ],
)
def test_a_time_without_a_date_may_be_another_one_tomorrow(
    text: str, *, texts: bool, times: bool, in_doubt: bool
) -> None:
    assert (why_of_today(text, texts=texts, times=times) is not None) == in_doubt


@pytest.mark.parametrize(
    ("text", "dated"),
    [
        ("SELECT now() AS n FROM t", "SELECT {} AS n FROM t"),
        ("SELECT a FROM t WHERE d < CURRENT_DATE", "SELECT a FROM t WHERE d < CAST({} AS DATE)"),
        ("SELECT current_timestamp ( ) - at FROM t", "SELECT {} - at FROM t"),
        ("SELECT 'now()', t.now(), `now` FROM t", None),
        ("SELECT a AS current_date, current_date FROM t", None),
        ("SELECT localtime FROM t", None),
        ("SELECT unix_timestamp(a), current_date.x FROM t", None),
        ("SELECT 'not closed", None),
    ],
)
def test_a_text_gets_the_moment_of_a_run_where_it_asks_for_the_time(
    text: str, dated: str | None
) -> None:
    expected = text if dated is None else dated.format("timestamp_micros(7L)")
    assert at_moment(text, 7, ["Localtime"]) == expected


@pytest.mark.parametrize(
    ("schema", "times"),
    [
        ("a INT, `x y` DECIMAL(10,2) NOT NULL COMMENT 'at noon'", False),
        ("array<map<string, double>>", False),
        ("a INT, b TIMESTAMP_NTZ", True),
        ("v VARIANT", True),
        ("a GEOMETRY", True),
        (StructType([StructField("at", StringType()), StructField("n", LongType())]).json(), False),
        (ArrayType(StructType([StructField("at", TimestampType())])).json(), True),
        (MapType(StringType(), DecimalType(10, 2)).json(), False),
        ('{"type": 3}', True),
        ("{", True),
    ],
)
def test_a_schema_has_times_unless_each_type_is_known_to_have_none(
    schema: str, *, times: bool
) -> None:
    assert may_have_times(schema) == times
