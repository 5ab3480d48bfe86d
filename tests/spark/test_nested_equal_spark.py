"""Nested values and lambdas have Spark's values, types and names, and fail as Spark does."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from tests.laws import few_quick, some
from tests.spark.dataset_kit import CONFIGS, write
from tests.spark.differential import quick
from tests.spark.nested_kit import CASES, NESTED, WHERE
from tests.spark.random_nested import random_expressions

import millrace as mr
from millrace.engine.function_install import install_functions
from millrace.errors import UserError
from millrace.sql.expressions import parse, parse_named
from millrace.sql.types import from_arrow, to_arrow

pytestmark = pytest.mark.spark
SECTIONS = (
    *("access", "constructors", "arrays", "maps", "lambdas", "casts", "comparisons", "json"),
)


def listed(*sections: str) -> list[str]:
    """The cases of some sections of the file."""
    parts = re.split(r"^\[(\w+)\]\n", CASES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = [line for section in sections for line in blocks[section].splitlines()]
    return [case.strip() for line in lines for case in line.split(" | ")]


def full(case: str) -> str:
    """`x where small` is `x` on the rows where it does not fail."""
    text, _, where = case.partition(" where ")
    return f"if({WHERE[where]}, {text}, null)" if where else text


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    path = Path(tmp_path_factory.mktemp("nested")) / "table.parquet"
    pq.write_table(NESTED, path)
    with quick(spark):
        yield spark.read.parquet(str(path)).orderBy("id")


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    install_functions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("t", NESTED)
    return connection


def same(mine: object, spark: object) -> bool:
    if isinstance(mine, float) and isinstance(spark, float):
        signs = math.copysign(1, mine) == math.copysign(1, spark)
        return (math.isnan(mine) and math.isnan(spark)) or (mine == spark and signs)
    if isinstance(mine, list | tuple) and isinstance(spark, list | tuple):
        return len(mine) == len(spark) and all(map(same, mine, spark))
    if isinstance(mine, dict) and isinstance(spark, dict):
        return list(mine) == list(spark) and all(same(mine[key], spark[key]) for key in mine)
    return mine == spark and type(mine) is type(spark)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_expression_has_sparks_value_and_type(
    frame: DataFrame, duck: duckdb.DuckDBPyConnection, section: str
) -> None:
    cases = listed(section)
    assert differences(frame, duck, cases) == []
    assert len(cases) > 10


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_random_expressions_have_sparks_value_and_type(
    frame: DataFrame, duck: duckdb.DuckDBPyConnection, depth: int
) -> None:
    cases = random_expressions(depth, 60 * 4 ** (depth - 2), depth=depth)
    assert differences(frame, duck, cases) == []


def differences(frame: DataFrame, duck: duckdb.DuckDBPyConnection, cases: list[str]) -> list[str]:
    theirs = frame.selectExpr(*[f"{full(c)} AS c{n}" for n, c in enumerate(cases)]).toArrow()
    wrong = []
    for number, case in enumerate(cases):
        parsed = parse(full(case), NESTED.schema, call=case)
        column = duck.sql(f"SELECT {parsed.sql} AS c FROM t ORDER BY id").to_arrow_table()["c"]
        ours, spark = column.cast(to_arrow(parsed.type, exact=True)), theirs.column(number)
        if ours.type != spark.type:
            wrong.append(f"{case}: type {ours.type}, Spark's {spark.type}")
        pairs = zip(ours.to_pylist(), spark.to_pylist(), strict=True)
        wrong += [f"{case}: {mine}, Spark's {his}" for mine, his in pairs if not same(mine, his)]
    return wrong


def test_an_expression_without_a_name_gets_the_name_spark_gives_it(frame: DataFrame) -> None:
    texts = []
    for case in listed(*SECTIONS):
        text = case.partition(" where ")[0]
        try:
            texts.append((text, parse_named(text, NESTED.schema, call=text)[0][0]))
        except UserError:
            continue  # its name is not certain, so it has to be given one
    names = frame.selectExpr(*[text for text, _ in texts]).columns
    pairs = zip(texts, names, strict=True)
    assert [(text, mine, his) for (text, mine), his in pairs if mine != his] == []
    assert len(texts) > 400


def fails(connection: duckdb.DuckDBPyConnection, case: str) -> bool:
    parsed = parse(case, NESTED.schema, call=case)
    assert parsed.raises, case
    try:
        connection.execute(f"SELECT {parsed.sql} FROM t").fetchall()
    except duckdb.Error:
        return True
    return False


def fails_in_spark(frame: DataFrame, case: str) -> bool:
    try:
        frame.selectExpr(case).collect()
    except Exception as error:  # noqa: BLE001 - Spark's errors share no base
        return bool(re.search(r"\[[A-Z_.]+\]|Illegal sequence|same length", str(error)))
    return False


def test_what_fails_in_spark_fails_here(frame: DataFrame, duck: duckdb.DuckDBPyConnection) -> None:
    cases = listed("errors")
    assert [case for case in cases if not fails(duck, case)] == []
    assert [case for case in some(cases) if not fails_in_spark(frame, case)] == []


@pytest.mark.parametrize("config", few_quick(["cut up", "one task"], 1))
def test_nested_values_pass_through_filters_joins_and_groups(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, config: str
) -> None:
    path = write(tmp_path / "nested", NESTED)
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    rows = (
        ws.read_parquet(path)
        .filter("exists(ai, x -> x > 0) OR st.c.d > 0 OR m['b'] IS NULL")
        .select(
            "id", "id % 3 AS k", "transform(ai, x -> x + 0L) AS t", "st", "m", "array(1, 2) AS n"
        )
    )
    other = ws.read_parquet(path).select("id AS a", "aa", "named_struct('a', i, 'w', aw) AS made")
    joined = rows.join(other, left_on="id", right_on="a").filter("made.a > 0 OR size(aa) > 0")
    grouped = joined.group_by("k").agg(
        listed="sort_array(collect_list(struct(id, t, st, made, n)))", least="min(st.a)"
    )

    with quick(spark):
        mine = frame.where("exists(ai, x -> x > 0) OR st.c.d > 0 OR m['b'] IS NULL").selectExpr(
            "id", "id % 3 AS k", "transform(ai, x -> x + 0L) AS t", "st", "m", "array(1, 2) AS n"
        )
        his = frame.selectExpr("id AS a", "aa", "named_struct('a', i, 'w', aw) AS made")
        both = mine.join(his, mine.id == his.a).where("made.a > 0 OR size(aa) > 0")
        listed = "sort_array(collect_list(struct(id, t, st, made, n))) AS listed"
        expected = both.groupBy("k").agg(expr(listed), expr("min(st.a) AS least"))
        assert_alike(joined.select("id", "made", "m", "n"), both.select("id", "made", "m", "n"))
        assert_alike(grouped, expected)


def assert_alike(ours: mr.Dataset, theirs: DataFrame, *, least: int = 2) -> None:
    mine, his = ours.to_arrow(), theirs.toArrow()
    rows = [sorted(table.to_pylist(), key=repr) for table in (mine, his)]
    assert len(rows[0]) == len(rows[1]) >= least
    assert [pair for pair in zip(*rows, strict=True) if not same(*pair)] == []
    kinds = [to_arrow(from_arrow(kind)) for kind in his.schema.types]
    assert mine.schema.types == kinds


@pytest.mark.parametrize("config", few_quick(["cut up", "one task"], 1))
def test_aggregates_over_nested_values_have_sparks_values(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, config: str
) -> None:
    path = write(tmp_path / "nested", NESTED)
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])
    calls = {
        "most": "max(struct(i, s))",
        "least": "min(struct(st.c.e, aw, id))",
        "list": "max(ai)",
        "short": "min(aa)",
        "whole": "max(struct(st.a, ast))",
        "row": "max_by(id, struct(x, l))",
        "count": "count(DISTINCT ai)",
        "structs": "count(DISTINCT st)",
        "rows": "count(st)",
        "size": "sum(size(ai))",
        "filtered": "min(ast) FILTER (WHERE id > 2)",
    }
    for keys in ("id % 3", "1"):
        ours = ws.read_parquet(path).with_columns(k=keys).group_by("k").agg(**calls)
        texts = [expr(f"{text} AS {name}") for name, text in calls.items()]
        assert_alike(ours, frame.withColumn("k", expr(keys)).groupBy("k").agg(*texts), least=1)
