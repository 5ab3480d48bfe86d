"""Every function and operator gives Spark's values and types, on edge values and at random."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expression_cases import (
    AGGREGATES,
    ARITHMETIC,
    CASTS,
    CONDITIONS,
    DATES,
    ERRORS,
    TABLE,
    TEXT,
    WHERE,
    listed,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from millrace.errors import UserError
from millrace.plan.aggregates import AggregateExpression, parse_aggregate
from millrace.plan.expressions import parse, parse_named, quoted
from millrace.plan.types import to_arrow

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = Path(tmp_path_factory.mktemp("cases")) / "table.parquet"
    pq.write_table(TABLE, path)
    return spark.read.parquet(str(path))


def duck(zone: str = "UTC") -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"SET TimeZone = '{zone}'")
    connection.register("t", TABLE)
    return connection


def full(case: str) -> str:
    """`x where small` is `x` on the rows where it does not fail."""
    text, _, where = case.partition(" where ")
    return f"if({WHERE[where]}, {text}, null)" if where else text


def differences(cases: list[str], ours: pa.Table, theirs: pa.Table) -> list[str]:
    out = []
    for number, case in enumerate(cases):
        mine, spark = ours.column(number), theirs.column(number)
        if mine.type != spark.type:
            out.append(f"{case}: type {mine.type}, Spark {spark.type}")
            continue
        pairs = zip(mine.to_pylist(), spark.to_pylist(), strict=True)
        wrong = [(m, s) for m, s in pairs if not same(m, s)]
        if wrong:
            out.append(f"{case}: (ours, Spark's) {wrong}")
    return out


def same(mine: Any, spark: Any) -> bool:
    if isinstance(mine, float) and isinstance(spark, float):
        if math.isnan(mine) or math.isnan(spark):
            return math.isnan(mine) and math.isnan(spark)
        if mine == 0 and spark == 0:
            return math.copysign(1, mine) == math.copysign(1, spark)
        return math.isclose(mine, spark, rel_tol=1e-12)
    return bool(mine == spark)


def evaluated(cases: list[str], zone: str = "UTC") -> pa.Table:
    parsed = [parse(full(case), TABLE.schema, call=case) for case in cases]
    columns = ", ".join(f"{one.sql} AS c{number}" for number, one in enumerate(parsed))
    found = duck(zone).execute(f"SELECT {columns} FROM t ORDER BY id").to_arrow_table()
    wanted = pa.schema([(f"c{n}", to_arrow(one.type)) for n, one in enumerate(parsed)])
    for field, kind in zip(found.schema, wanted, strict=True):
        assert field.type == kind.type or pa.types.is_null(kind.type) or "tz=" in str(field.type), (
            cases[int(field.name[1:])],
            field.type,
            kind.type,
        )
    return typed(found, wanted)


def typed(found: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Time zones are spelt alike, and what is always null has no type."""
    columns = [
        pa.nulls(len(column)) if pa.types.is_null(field.type) else column.cast(field.type)
        for column, field in zip(found.columns, wanted, strict=True)
    ]
    return pa.table(columns, wanted)


def asked(frame: DataFrame, cases: list[str]) -> pa.Table:
    texts = [f"{full(case)} AS c{number}" for number, case in enumerate(cases)]
    return frame.orderBy("id").selectExpr(*texts).toArrow()


@pytest.mark.parametrize(
    "block",
    [ARITHMETIC, CONDITIONS, TEXT, CASTS, DATES],
    ids=["arithmetic", "conditions", "text", "casts", "dates"],
)
def test_every_expression_has_sparks_value_and_type(frame: DataFrame, block: str) -> None:
    cases = listed(block)
    assert differences(cases, evaluated(cases), asked(frame, cases)) == []


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_follow_the_sessions_zone(frame: DataFrame, zone: str) -> None:
    cases = [case for case in listed(DATES) + listed(CASTS) if "ts" in case or "q" in case]
    spark = frame.sparkSession
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        theirs = asked(frame, cases)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    theirs = pa.table(
        [
            one.cast(pa.timestamp("us", "UTC"))
            if pa.types.is_timestamp(one.type) and one.type.tz
            else one
            for one in theirs.columns
        ],
        theirs.schema.names,
    )
    assert differences(cases, evaluated(cases, zone), theirs) == []


def test_what_fails_in_spark_fails_here(frame: DataFrame) -> None:
    connection = duck()
    kept = []
    for case in listed(ERRORS):
        sql = parse(full(case), TABLE.schema, call=case).sql
        try:
            connection.execute(f"SELECT {sql} FROM t").fetchall()
            kept.append(f"{case} did not fail in DuckDB")
        except duckdb.Error:
            pass
        try:
            frame.selectExpr(full(case)).collect()
            kept.append(f"{case} did not fail in Spark")
        except Exception as error:  # noqa: BLE001 - Spark's errors share no base
            assert "SQLSTATE" in str(error)
    assert kept == []


def test_an_expression_without_a_name_gets_the_name_spark_gives_it(frame: DataFrame) -> None:
    texts = []
    for case in listed(ARITHMETIC + CONDITIONS + TEXT + CASTS + DATES):
        text = case.partition(" where ")[0]
        try:
            texts.append((text, parse_named(text, TABLE.schema, call=text)[0][0]))
        except UserError as error:
            assert "no certain name" in str(error)  # noqa: PT017
    names = frame.selectExpr(*[text for text, _ in texts]).columns
    wrong = [
        (text, mine, spark) for (text, mine), spark in zip(texts, names, strict=True) if mine != spark
    ]
    assert wrong == []
    assert len(texts) > 300


def in_two_steps(parsed: list[AggregateExpression], connection: duckdb.DuckDBPyConnection) -> str:
    """Each half of the rows by itself, then both together."""
    partial, merged = [], []
    for number, one in enumerate(parsed):
        for place, call in enumerate(one.calls):
            name = f"v{number}_{place}"
            if call.mergeable:
                partial += [f"{p.sql} AS {quoted(p.name)}" for p in call.partials(name)]
                merged.append(f"{call.merge(name)} AS {name}")
            else:
                merged.append(f"(SELECT {call.whole()} FROM {{source}}) AS {name}")
    connection.execute(
        f"CREATE TABLE parts AS SELECT {', '.join(partial)} FROM {{source}} GROUP BY id % 3"  # noqa: S608
        .replace("{source}", "source")
    )
    return f"(SELECT {', '.join(merged)} FROM parts)".replace("{source}", "source")  # noqa: S608


@pytest.mark.parametrize("rows", ["true", "id = 0", "a is null", "false"])
@pytest.mark.parametrize("steps", [1, 2])
def test_every_aggregate_has_sparks_value_and_type(
    frame: DataFrame, rows: str, steps: int
) -> None:
    cases = listed(AGGREGATES)
    parsed = [
        parse_aggregate(f"c{n}", text, TABLE.schema, call=text) for n, text in enumerate(cases)
    ]
    connection = duck()
    connection.execute(f"CREATE TABLE source AS SELECT * FROM t WHERE {rows}")  # noqa: S608
    whole = ", ".join(
        f"{call.whole()} AS v{n}_{place}"
        for n, one in enumerate(parsed)
        for place, call in enumerate(one.calls)
    )
    inner = f"(SELECT {whole} FROM source)"  # noqa: S608
    if steps == 2:
        inner = in_two_steps(parsed, connection)
    outer = ", ".join(
        f"{one.finish([f'v{n}_{place}' for place in range(len(one.calls))])} AS {one.name}"
        for n, one in enumerate(parsed)
    )
    ours = connection.execute(f"SELECT {outer} FROM {inner}").to_arrow_table()  # noqa: S608
    kinds = pa.schema([(one.name, to_arrow(one.type)) for one in parsed])
    ours = typed(ours, kinds)
    texts = [f"{text} AS c{n}" for n, text in enumerate(cases)]
    theirs = frame.where(rows).selectExpr(*texts).toArrow()
    assert differences(cases, ours, theirs) == []


NUMBERS = ["a", "b", "y", "x", "w", "f", "d", "e", "g", "2", "0.5", "10L", "1.25", "3e0", "7.125"]
SOME = st.recursive(
    st.sampled_from(NUMBERS),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} / nullif({}, 0))".format, inner, inner),
        st.builds("({} % nullif({}, 0))".format, inner, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("if({} > {}, {}, {})".format, inner, inner, inner, inner),
        st.builds("round({}, 1)".format, inner),
        st.builds("(- {})".format, inner),
        st.builds("abs({})".format, inner),
    ),
    max_leaves=4,
)


@settings(
    max_examples=1,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(SOME, min_size=120, max_size=160, unique=True))
def test_random_arithmetic_equals_sparks(frame: DataFrame, cases: list[str]) -> None:
    # Rows of small numbers, so that few expressions overflow; those that do are left out.
    kept = []
    for case in cases:
        try:
            evaluated([f"{case} where small"])
        except (UserError, duckdb.Error):
            continue
        kept.append(f"{case} where small")
    assert len(kept) > len(cases) // 2
    assert differences(kept, evaluated(kept), asked(frame, kept)) == []
