"""Every function and operator gives Spark's values and types, on edge values and at random."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from tests.laws import some

from millrace.engine.function_install import install_functions
from millrace.errors import UserError
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression, parse_aggregate
from millrace.sql.expressions import parse, parse_named, quoted
from millrace.sql.functions.spark_functions import SPARK_FUNCTIONS
from millrace.sql.types import to_arrow

pytestmark = pytest.mark.spark
SECTIONS = ("arithmetic", "conditions", "text", "casts", "dates")
CASES = Path(__file__).parent / "expression_cases.txt"
NAN, INF = float("nan"), float("inf")
I32, I64 = 2**31, 2**63


def _day(text: str | None) -> dt.date | None:
    return None if text is None else dt.date.fromisoformat(text)


def _moment(text: str | None) -> dt.datetime | None:
    return None if text is None else dt.datetime.fromisoformat(text + "+00:00")


def _d(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


ROWS = 8
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int32()),
        "y": pa.array([-128, 127, 0, 1, -1, None, 5, 7], pa.int8()),
        "h": pa.array([-32768, 32767, 0, 1, -1, None, 5, 7], pa.int16()),
        "i": pa.array([-I32, I32 - 1, 0, 1, -1, None, 5, 7], pa.int32()),
        "l": pa.array([-I64, I64 - 1, 0, 1, -1, None, 5, 7], pa.int64()),
        "a": pa.array([-7, 7, 0, 3, -3, None, 100, 12345], pa.int32()),
        "b": pa.array([2, -2, 3, -3, 7, 5, None, 1], pa.int64()),
        "f": pa.array([1.5, -0.0, 0.1, NAN, INF, None, -2.5, 3e38], pa.float32()),
        "x": pa.array([1.5, -0.0, 0.1, NAN, INF, None, -2.675, 1e300], pa.float64()),
        "z": pa.array([0.0, 0.0, -0.1, NAN, -INF, 1.0, None, 2.5], pa.float64()),
        "w": pa.array([1.005, -2.5, 0.285, 1e15 + 0.5, -1e-9, None, 2.5, 123456.785]),
        "d": pa.array(
            list(map(_d, ["1.50", "-2.55", "0.00", "99999999.99", "-0.01", None, "7.25", "3.00"])),
            pa.decimal128(10, 2),
        ),
        "e": pa.array(
            list(
                map(_d, ["1.25", "-3.5", "7", "123456789.123456789", "-0.000001", "2", None, "3"])
            ),
            pa.decimal128(38, 18),
        ),
        "g": pa.array(
            list(map(_d, ["1", "-3", "7", "12345678901234567890", "-2", None, "3", "11"])),
            pa.decimal128(20, 0),
        ),
        "s": pa.array(["hello", "", "héllo wörld", "straße", "  a b ", None, "😀x%_", "ÄÖ\\n"]),
        "t": pa.array(["l", "", "ö", "ss", " ", "q", None, "\\"]),
        "n": pa.array(["12", " -3 ", "+7", "0", "007", None, "2147483647", "9"]),
        "m": pa.array(["1.5", " -3e2 ", "+.5", "5.", "0", None, "1e-3", "12345678.905"]),
        "k": pa.array(
            [
                "2020-02-29",
                " 1999-1-5",
                "2020",
                "2021-12",
                "2020-01-01 10:00",
                None,
                "0001-01-01",
                "9999-12-31T",
            ]
        ),
        "q": pa.array(
            [
                "2020-02-29 10:11:12",
                "1999-1-5",
                "2020-01-01T1:2",
                "2021-12-31 23:59:59.999999",
                "1970-01-01 00:00:00.5",
                None,
                "1969-12-31 23:59:59",
                "2038-01-19 03:14:08",
            ]
        ),
        "o": pa.array(["true", "F", " yes ", "0", "N", None, "1", "t"]),
        "p": pa.array([True, False, None, True, False, True, False, None]),
        "r": pa.array([True, False, True, None, None, False, True, None]),
        "dd": pa.array(
            list(
                map(
                    _day,
                    [
                        "2020-02-29",
                        "1970-01-01",
                        "1969-12-31",
                        "2021-01-01",
                        "1900-02-28",
                        None,
                        "2020-01-31",
                        "9999-12-31",
                    ],
                )
            ),
            pa.date32(),
        ),
        "de": pa.array(
            list(
                map(
                    _day,
                    [
                        "2020-03-31",
                        "1999-12-31",
                        "1600-02-29",
                        "2024-12-30",
                        "2019-02-28",
                        "2020-01-05",
                        None,
                        "2022-07-04",
                    ],
                )
            ),
            pa.date32(),
        ),
        "ts": pa.array(
            list(
                map(
                    _moment,
                    [
                        "2020-02-29T10:11:12.500000",
                        "1970-01-01T00:00:00",
                        "1969-12-31T23:59:59.999999",
                        "2021-03-28T00:59:59",
                        "2021-11-07T05:30:00",
                        None,
                        "2020-01-31T23:00:00",
                        "2037-12-31T23:59:59",
                    ],
                )
            ),
            pa.timestamp("us", "UTC"),
        ),
        "bi": pa.array([b"A", b"", b"\xc3\xa9", b"abc", b"b", None, b"x", b"\x00"], pa.binary()),
    }
)

WHERE = {
    "": "",
    "nz": "d <> 0",
    "small": "id in (0, 1, 2, 6)",
    "early": "id < 7",
    "utf": "id <> 7",
    "y": "id > 5",
}


def listed(*sections: str) -> list[str]:
    """The cases of some sections of the file."""
    parts = re.split(r"^\[(\w+)\]\n", CASES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = [line for section in sections for line in blocks[section].splitlines()]
    return [case.strip() for line in lines for case in line.split(" | ")]


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = Path(tmp_path_factory.mktemp("cases")) / "table.parquet"
    pq.write_table(TABLE, path)
    return spark.read.parquet(str(path))


def duck(zone: str = "UTC") -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    install_functions(connection)
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


def same(mine: object, spark: object) -> bool:
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
    found = duck(zone).sql(f"SELECT {columns} FROM t ORDER BY id").to_arrow_table()
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


@pytest.mark.parametrize("section", SECTIONS)
def test_every_expression_has_sparks_value_and_type(frame: DataFrame, section: str) -> None:
    cases = listed(section)
    assert differences(cases, evaluated(cases), asked(frame, cases)) == []


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_follow_the_sessions_zone(frame: DataFrame, zone: str) -> None:
    cases = [case for case in listed("dates", "casts") if "ts" in case or "q" in case]
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


def fails(connection: duckdb.DuckDBPyConnection, case: str) -> bool:
    sql = parse(full(case), TABLE.schema, call=case).sql
    try:
        connection.execute(f"SELECT {sql} FROM t").fetchall()
    except duckdb.Error:
        return True
    return False


def fails_in_spark(frame: DataFrame, case: str) -> bool:
    try:
        frame.selectExpr(full(case)).collect()
    except Exception as error:  # noqa: BLE001 - Spark's errors share no base
        return "SQLSTATE" in str(error)
    return False


def test_what_fails_in_spark_fails_here(frame: DataFrame) -> None:
    connection = duck()
    cases = listed("errors")
    assert [case for case in cases if not fails(connection, case)] == []
    assert [case for case in some(cases) if not fails_in_spark(frame, case)] == []


def test_an_expression_without_a_name_gets_the_name_spark_gives_it(frame: DataFrame) -> None:
    texts = []
    for case in listed(*SECTIONS):
        text = case.partition(" where ")[0]
        try:
            texts.append((text, parse_named(text, TABLE.schema, call=text)[0][0]))
        except UserError:
            continue  # its name is not certain, so it has to be given one
    names = frame.selectExpr(*[text for text, _ in texts]).columns
    wrong = [
        (text, mine, spark)
        for (text, mine), spark in zip(texts, names, strict=True)
        if mine != spark
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
                merged.append(f"(SELECT {call.whole()} FROM source) AS {name}")
    listed = ", ".join(partial)
    connection.execute(f"CREATE TABLE parts AS SELECT {listed} FROM source GROUP BY id % 3")
    return f"(SELECT {', '.join(merged)} FROM parts)"


@pytest.mark.parametrize("rows", ["true", "id = 0", "a is null", "false"])
@pytest.mark.parametrize("steps", [1, 2])
def test_every_aggregate_has_sparks_value_and_type(frame: DataFrame, rows: str, steps: int) -> None:
    cases = listed("aggregates")
    parsed = [
        parse_aggregate(f"c{n}", text, TABLE.schema, call=text) for n, text in enumerate(cases)
    ]
    connection = duck()
    connection.execute(f"CREATE TABLE source AS SELECT * FROM t WHERE {rows}")
    whole = ", ".join(
        f"{call.whole()} AS v{n}_{place}"
        for n, one in enumerate(parsed)
        for place, call in enumerate(one.calls)
    )
    inner = f"(SELECT {whole} FROM source)"
    if steps == 2:
        inner = in_two_steps(parsed, connection)
    outer = ", ".join(
        f"{one.finish([f'v{n}_{place}' for place in range(len(one.calls))])} AS {one.name}"
        for n, one in enumerate(parsed)
    )
    ours = connection.sql(f"SELECT {outer} FROM {inner}").to_arrow_table()
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


@pytest.mark.slow
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


def test_functions_that_only_spark_has_are_known_by_name(spark: SparkSession) -> None:
    listed = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    named = {name for name in listed if re.fullmatch(r"[a-z_0-9]+", name)}
    assert named == SPARK_FUNCTIONS
