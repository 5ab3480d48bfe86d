"""Every aggregate gives Spark's value and type, over all rows at once and merged from parts."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.laws import some
from tests.unit.sql.aggregate_kit import aggregated, differences

import millrace as mr

pytestmark = pytest.mark.spark
NAN, INF = float("nan"), float("inf")
# Groups: mixed values, nulls alone, a single row, odd doubles, an even number of rows.
GROUPS = [0] * 7 + [1] * 3 + [2] + [3] * 7 + [4] * 6


def _column(kind: pa.DataType, *values: object) -> pa.Array:
    """Values for the rows of group 0, 2, 3 and 4; those of group 1 are null."""
    return pa.array([*values[:7], *([None] * 3), *values[7:]], kind)


def _days(*numbers: int | None) -> list[dt.date | None]:
    first = dt.date(1970, 1, 1)
    return [None if n is None else first + dt.timedelta(days=n) for n in numbers]


def _moments(zone: dt.timezone | None, *numbers: int | None) -> list[dt.datetime | None]:
    first = dt.datetime(1970, 1, 1, tzinfo=zone)
    return [None if n is None else first + dt.timedelta(microseconds=n) for n in numbers]


def _decimals(*texts: str | None) -> list[Decimal | None]:
    return [None if text is None else Decimal(text) for text in texts]


# fmt: off
NUMBERS = (3, -3, None, 12345, 0, 3, 7, 5, 1, 2, None, 4, 4, -1, 9, 10, 20, 20, 30, None, 40)
INSTANTS = (0, -1, None, 10**15, 5, 10**15, 7, 9, 1, 2, 3, 4, 5, 6, 7, 1, 1, None, 3, 3, 4)
TABLE = pa.table(
    {
        "g": pa.array(GROUPS, pa.int32()),
        "t": pa.array([5, 3, None, 1, 4, 2, 6, 1, 2, 3, 1,
                       7, 6, 5, 4, 3, 2, None, 3, 1, 2, 6, 5, 4]),
        "u": _column(pa.string(), "b", None, "a", "a", "é", "", "z", "q",
                     *"aabbcc", None, *"xyxyz", None),
        "i": _column(pa.int32(), *NUMBERS),
        "l": _column(pa.int64(), *[n and n * 10**12 for n in NUMBERS]),
        "y": _column(pa.int8(), *[n and n % 100 for n in NUMBERS]),
        "x": _column(pa.float64(), 1.5, -0.0, 0.1, None, 1e300, -2.675, 0.0, 2.5,
                     NAN, INF, None, -INF, NAN, 0.0, -0.0, 1e9, 1e9 + 1, 1e9 + 2, None, 1e9, 0.5),
        "f": _column(pa.float32(), 1.5, -0.0, 0.1, None, 3e38, -2.5, 0.0, 2.5,
                     NAN, INF, None, 1.0, NAN, 0.0, -0.0, 1.0, 2.0, 3.0, None, 4.0, 0.5),
        "w": _column(pa.float64(), 1.25, 1.0, 2.0, None, 7.5, -2.5, 3.0, 2.5,
                     1.0, INF, None, 3.0, 4.0, 5.0, INF, -INF, -INF, 1e308, None, -1e308, 0.5),
        "huge": _column(pa.float64(), 1e200, -1e200, None, 1.0, 0.0, 3e200, 1.0, 1e200,
                        1e308, -1e308, 1.0, None, 2.0, 3.0, 4.0, 1e100, 1e100, -1e100, 3e100, 1.0,
                        None),
        "d": _column(pa.decimal128(10, 2), *_decimals(
            "1.50", "-2.55", None, "99999999.99", "-0.01", "1.50", "7.25", "3.00",
            "1.00", "1.00", None, "2.00", "0.10", "0.20", "0.30", "5.55", "6.66", None, "8.88",
            "9.99", "6.66")),
        "e": _column(pa.decimal128(38, 18), *_decimals(
            "1.25", "-3.5", "7", "123456789.123456789", None, "2", "1.25", "3",
            "1", "2", "3", "4", None, "6", "7", "1", "1", "1", "2", None, "3")),
        "s": _column(pa.string(), "hello", "", None, "straße", "a", "😀", "a", "b",
                     "x", "x", "y", None, "z", "é", "e", *"pqrst", None),
        "p": _column(pa.bool_(), *[None if n is None else n > 2 for n in NUMBERS]),
        "bi": _column(pa.binary(), b"A", b"", None, b"\xff", b"A", b"\x00", b"B", b"x",
                      b"a", b"b", b"c", b"d", None, b"e", b"f", *[b"k"] * 5, None),
        "dd": _column(pa.date32(), *_days(0, -1, None, 18321, 18321, -25567, 7, 9,
                                          1, 2, 3, 4, 5, 6, 7, 1, 1, None, 3, 3, 4)),
        "ts": _column(pa.timestamp("us", "UTC"), *_moments(dt.UTC, *INSTANTS)),
        "tn": _column(pa.timestamp("us"), *_moments(None, *INSTANTS)),
    }
)
# fmt: on

PAIRS = (
    *("corr", "covar_pop", "covar_samp", "regr_count", "regr_avgx", "regr_avgy", "regr_sxx"),
    *("regr_sxy", "regr_syy", "regr_slope", "regr_intercept", "regr_r2"),
)
NUMERIC, TIMES = ("i", "l", "y", "x", "f", "w", "d", "e"), ("dd", "ts", "tn")
ALL = (*NUMERIC, *TIMES, "s", "p", "bi")
CASES = [
    *(f"{name}({c})" for c in NUMERIC for name in ("sum", "avg", "median", "stddev", "var_pop")),
    *(f"{name}({c})" for c in "ixw" for name in ("stddev_pop", "var_samp")),
    *(f"{name}({c})" for c in ALL for name in ("min", "max", "collect_list", "collect_set")),
    *(f"max_by({c}, t)" for c in ALL),
    *(f"{name}({c})" for c in ("i", "x", "w", "d", "huge") for name in ("skewness", "kurtosis")),
    *(f"{name}(huge)" for name in ("stddev", "var_pop", "var_samp", "stddev_pop")),
    *(f"{name}({pair})" for pair in ("i, t", "x, w", "w, i", "d, y", "t, w") for name in PAIRS),
    *(f"bit_{name}({c})" for c in "ily" for name in ("and", "or", "xor")),
    *(f"try_sum({c})" for c in (*NUMERIC[:-1], "if(i > 100, 9223372036854775807, l)")),
    *(f"try_avg({c})" for c in NUMERIC[:-1]),
    *(f"mode({c}, true)" for c in ("i", "d", "s", "dd", "ts", "p", "bi")),
    *(f"mode() within group (order by {c} desc)" for c in ("i", "s")),
    *(f"{name}(concat(t, ''))" for name in ("sum", "avg", "stddev", "median")),
    "listagg(s, ', ') within group (order by t)",
    "listagg(i) within group (order by t desc nulls first)",
    "string_agg(s, '|') within group (order by u desc, t)",
    *(f"min_by(t, {c})" for c in ("y + t", "x * 0 + t", "d + t", "concat(s, u, t)")),
    *(f"percentile({c}, {p})" for c in "ixw" for p in (0, 0.1, 0.3, "0.5D", 1)),
    *(f"percentile({c}, 0.35)" for c in NUMERIC),
    *(f"percentile_approx({c}, {p})" for c in "ixd" for p in (0.0, 0.1, 0.34, 1)),
    *(f"percentile_approx({c}, 0.5)" for c in (*NUMERIC, *TIMES)),
    "percentile(x, array(0.1, 0.5, 0.9))",
    "percentile_approx(dd, array(0.25D, 0.75), 100)",
    "approx_percentile(d, 0.5, 1000)",
    "percentile_cont(0.1) within group (order by i)",
    "percentile_cont(0.1) within group (order by i desc)",
    "percentile_cont(array(0.1, 0.3)) within group (order by x desc)",
    *(f"percentile_disc({p}) within group (order by i)" for p in (0, 0.07, 0.5, 1)),
    "percentile_disc(0.5) within group (order by x)",
    "percentile_disc(0.3) within group (order by i desc)",
    "count(*)",
    "count(i, s)",
    "count(x, d, p)",
    "count_if(i > 3)",
    "count_if(null)",
    "count_if(p) / count(*)",
    "array_agg(s)",
    "mean(i) + std(i)",
    "variance(d)",
    "every(p)",
    "some(p)",
    "any(p)",
    "bool_or(i > 100)",
    "max_by(concat(s, u), t)",
    "round(median(i), 1)",
]
FILTERED = [
    "sum(i) filter (where p)",
    "sum(100 / (i - 3)) filter (where i <> 3)",
    "count(*) filter (where x > 1)",
    "count(s) filter (where not p)",
    "count(i, s) filter (where p)",
    "count_if(i > 3) filter (where p)",
    "avg(d) filter (where i > 2)",
    "stddev(i) filter (where x < 1e5)",
    "median(x) filter (where p)",
    "percentile(i, 0.3) filter (where p)",
    "percentile_approx(i, 0.3) filter (where p)",
    "percentile_cont(0.3) within group (order by i) filter (where p)",
    "min(i) filter (where s > 'a')",
    "bool_and(p) filter (where i > 2)",
    "max_by(s, t) filter (where p)",
    "min_by(s, 100 / (i - 3)) filter (where i <> 3)",
    "corr(i, x) filter (where p)",
    "regr_slope(i, t) filter (where t > 2)",
    "listagg(s, '-') within group (order by t) filter (where p)",
    "mode() within group (order by i) filter (where p)",
    "kurtosis(i) filter (where t > 2)",
    "bit_xor(i) filter (where p)",
    "collect_list(i) filter (where p)",
    "collect_set(i) filter (where i > 2)",
    "sum(i) filter (where p) / count(*) filter (where i > 0)",
]
DISTINCT = [
    "count(distinct i)",
    "count(distinct x)",
    "count(distinct i, s)",
    "count(distinct x, f)",
    "count(distinct x, d) filter (where p)",
    "sum(distinct i)",
    "sum(distinct d)",
    "sum(distinct i) filter (where p)",
    "avg(distinct i)",
    "avg(distinct d)",
    "stddev(distinct i)",
    "var_pop(distinct y)",
    "median(distinct i)",
    "percentile(distinct i, 0.3)",
    "collect_list(distinct i)",
    "skewness(distinct i)",
    "try_sum(distinct i)",
    "min(distinct i)",
    "bool_and(distinct p)",
    "count_if(distinct i > 2)",
]
# An order inside of a call is not in Spark's grammar: there it is a row of values to compare.
ORDERED = {
    "first(i order by t)": "min_by(i, struct(t))",
    "last(i order by t)": "max_by(i, struct(t))",
    "first(i order by t desc)": "max_by(i, struct(t))",
    "last_value(s order by t desc)": "min_by(s, struct(t))",
    "first(s order by t nulls last)": "min_by(s, struct(t is null, t))",
    "first(i order by u desc, t)": "min_by(i, struct(rank_u is null, -rank_u, t))",
    "first(i order by x, t)": "min_by(i, struct(x, t))",
    "last(t order by bi, t)": "max_by(t, struct(bi, t))",
    "first(i order by t) ignore nulls": "min_by(i, struct(t)) filter (where i is not null)",
    "first_value(i ignore nulls order by ts, t)": (
        "min_by(i, struct(ts, t)) filter (where i is not null)"
    ),
    "last(i, true order by t)": "max_by(i, struct(t)) filter (where i is not null)",
    "first(s order by t desc)": "max_by(s, struct(t))",
    "first(s order by t) filter (where p)": "min_by(s, struct(t)) filter (where p)",
    "first(s order by 100 / (i - 3), t) filter (where i <> 3)": (
        "min_by(s, struct(100 / (i - 3), t)) filter (where i <> 3)"
    ),
    "collect_list(i order by t desc)": (
        "transform(reverse(array_sort(collect_list(struct(t, i)) filter (where i is not null))), "
        "r -> coalesce(r.i, 0))"
    ),
}
OF_NOTHING = [
    *(f"{name}(d)" for name in ("sum", "avg", "median", "stddev", "var_pop", "count", "min")),
    *("count(*)", "count_if(p)", "count(i, s)", "collect_list(s)", "collect_set(x)", "every(p)"),
    *("percentile(i, 0.5)", "percentile(i, array(0.5))", "percentile_approx(ts, 0.5)"),
    *("percentile_approx(i, array(0.5))", "max_by(s, t)", "first(i)", "last(s)"),
    *("count(distinct i, s)", "count(*) filter (where p)", "any_value(s)"),
    *("corr(i, t)", "regr_count(i, t)", "regr_r2(i, t)", "skewness(x)", "mode(i)", "listagg(s)"),
    *("try_sum(i)", "bit_or(y)", "covar_samp(x, d)", "regr_sxx(i, t)"),
]


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = Path(tmp_path_factory.mktemp("aggregates")) / "table.parquet"
    known = sorted({text for text in TABLE["u"].to_pylist() if text is not None})
    ranks = [None if text is None else known.index(text) for text in TABLE["u"].to_pylist()]
    pq.write_table(TABLE.append_column("rank_u", pa.array(ranks, pa.int32())), path)
    return spark.read.parquet(str(path))


def asked(frame: DataFrame, texts: list[str], *, grouped: bool = True) -> pa.Table:
    frame.createOrReplaceTempView("aggregated")
    listed = ", ".join(f"{text} AS c{n}" for n, text in enumerate(texts))
    query = f"SELECT {'g' if grouped else '0 AS g'}, {listed} FROM aggregated"
    return frame.sparkSession.sql(f"{query} GROUP BY g ORDER BY g" if grouped else query).toArrow()


def unlike(texts: list[str], theirs: pa.Table) -> list[str]:
    """What differs from Spark's, in one go and over 1, 7 and 2 tasks; a quick test tries two."""
    out = []
    for count in some((None, 1, 7, 2)):
        drawn = np.random.default_rng(count).integers(0, count or 1, len(TABLE)).tolist()
        split = None if count is None else drawn
        mine = aggregated(TABLE, texts, split=split)
        out += [f"{line}, tasks: {count}" for line in differences(texts, mine, theirs, error=1e-9)]
    return out


@pytest.mark.parametrize(
    "cases",
    [CASES[::2], pytest.param(CASES[1::2], marks=pytest.mark.slow), FILTERED, DISTINCT],
    ids=["plain", "the other plain ones", "filter", "distinct"],
)
def test_an_aggregate_has_sparks_value_and_type(frame: DataFrame, cases: list[str]) -> None:
    assert unlike(cases, asked(frame, cases)) == []


def test_first_and_last_have_an_order(frame: DataFrame) -> None:
    assert unlike(list(ORDERED), asked(frame, list(ORDERED.values()))) == []


def test_no_rows_give_one_row_as_in_spark(frame: DataFrame) -> None:
    cases = [*OF_NOTHING, *ORDERED]
    theirs = asked(frame.where("false"), [*OF_NOTHING, *ORDERED.values()], grouped=False)
    none = TABLE.slice(0, 0)
    at_once = aggregated(none, cases, grouped=False)
    in_parts = aggregated(none, cases, split=[], grouped=False)
    assert differences(cases, at_once, theirs) == []
    assert differences(cases, in_parts, theirs) == []


IN_ORDER = [
    *(f"{name}({c})" for c in ("i", "s", "x", "bi", "ts") for name in ("first", "last")),
    *(f"{name}({c}) ignore nulls" for c in ("i", "s", "x") for name in ("first_value", "last")),
    *("any_value(s)", "any_value(i, true)", "first(s, true)", "first(i) filter (where p)"),
    *("last(s) filter (where t > 3)", "last(d, true)"),
]
"""The first and last rows of a single file, which Spark takes in the order of the file."""


def test_first_and_last_are_those_of_the_input(frame: DataFrame) -> None:
    theirs = asked(frame.coalesce(1), IN_ORDER)
    assert differences(IN_ORDER, aggregated(TABLE, IN_ORDER), theirs) == []
    split = [number // 5 for number in range(len(TABLE))]
    assert differences(IN_ORDER, aggregated(TABLE, IN_ORDER, split=split), theirs) == []


@pytest.mark.parametrize("cut_up", [False, True])
def test_a_dataset_has_lists_and_merged_spreads(
    spark: SparkSession,
    tmp_path: Path,
    cut_up: bool,  # noqa: FBT001
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(3):
        part = TABLE.slice(8 * number, 8)
        pq.write_table(part, tmp_path / "data" / f"{number}.parquet")
    limits = {"one_task_bytes_max": 1} if cut_up else {}
    ws = mr.open(tmp_path / "mill", spark, config=mr.Config().with_options(**limits))
    cases = {
        "c0": "stddev(i)",
        "c1": "collect_list(ts)",
        "c2": "collect_set(d)",
        "c3": "first(s ORDER BY t DESC)",
        "c4": "sum(i) FILTER (WHERE p)",
        "c5": "regr_intercept(i, t)",
        "c6": "max_by(bi, t)",
    }
    texts = [ORDERED.get(text.lower(), text) for text in cases.values()]
    theirs = asked(spark.read.parquet(str(tmp_path / "data")), texts)
    mine = ws.read_parquet(str(tmp_path / "data")).group_by("g").agg(**cases).to_arrow()
    assert differences(list(cases.values()), mine.sort_by("g"), theirs) == []
