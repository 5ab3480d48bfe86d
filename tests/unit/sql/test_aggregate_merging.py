"""Parts of any split of the rows give, when merged, what all rows give at once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.sql.aggregate_kit import aggregated, differences

from millrace.sql.aggregates.aggregate_calls import AggregateCall
from millrace.sql.aggregates.aggregate_expressions import parse_aggregate
from millrace.sql.expressions import quoted

NUMBERS = ("sum", "min", "max", "avg", "stddev", "stddev_pop", "var_samp", "var_pop")
OTHERS = ("count", "collect_list", "collect_set")
IN_ORDER = [
    *(f"{name}({column})" for column in "ixs" for name in ("first", "last", "any_value")),
    *(f"{name}({column}) ignore nulls" for column in "ixs" for name in ("first", "last")),
    "first(s, true)",
    "last(i) filter (where x > 0)",
    "first(x) filter (where i > 0)",
    "listagg(s, ', ')",
    "string_agg(i)",
    "collect_list(i)",
]
"""These depend on the order of the rows."""
TEXTS = [
    *(f"{name}({column})" for column in "ixd" for name in NUMBERS),
    *(f"{name}({column})" for column in "ixs" for name in OTHERS),
    "count(*)",
    "count_if(x > 0)",
    "count(i, s)",
    "max_by(x, t)",
    "min_by(s, t)",
    "first(i order by s desc, t)",
    "last(s order by x nulls last, t) ignore nulls",
    "sum(i) filter (where x > 0)",
    "bool_and(i > 0)",
    "bool_or(i > 0)",
    *(f"bit_{name}(i)" for name in ("and", "or", "xor")),
    "try_sum(i)",
    "try_avg(d)",
    *(f"{name}(i, t)" for name in ("corr", "covar_samp", "regr_intercept", "regr_r2")),
    *(f"{name}(d, x)" for name in ("corr", "covar_pop", "regr_slope")),
]
SCHEMA = pa.schema(
    {
        "g": pa.int32(),
        "i": pa.int32(),
        "x": pa.float64(),
        "d": pa.decimal128(10, 2),
        "s": pa.string(),
        "t": pa.int32(),
    }
)
ODD = st.sampled_from([None, float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e9])
ROW = st.tuples(
    st.integers(0, 2),
    st.none() | st.integers(-(10**5), 10**5),
    ODD | st.integers(-1000, 1000).map(lambda n: n / 8),
    st.none() | st.decimals(-9999, 9999, places=2),
    st.none() | st.text("aé😀\0 ", max_size=3),
    st.integers(0, 6),
)


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [*list(zip(*rows, strict=True))[:5], range(len(rows))]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def test_all_of_these_can_be_merged() -> None:
    calls = [c for text in TEXTS for c in parse_aggregate("v", text, SCHEMA, call=text).calls]
    assert all(call.mergeable for call in calls)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(ROW, min_size=1, max_size=30))
def test_any_split_of_the_rows_gives_the_same(rows: list[tuple[Any, ...]]) -> None:
    table = table_of(rows)
    at_once = aggregated(table, TEXTS)
    merged = aggregated(table, TEXTS, split=[row[5] for row in rows])
    assert differences(TEXTS, merged, at_once, error=1e-9) == []


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(ROW, min_size=1, max_size=30), st.integers(1, 9))
def test_parts_in_the_order_of_the_rows_keep_that_order(
    rows: list[tuple[Any, ...]], size: int
) -> None:
    table = table_of(rows)
    at_once = aggregated(table, IN_ORDER)
    merged = aggregated(table, IN_ORDER, split=[number // size for number in range(len(rows))])
    assert differences(IN_ORDER, merged, at_once) == []


@pytest.mark.parametrize(
    ("centre", "width"),
    [(0.0, 1.0), (1e9, 3.0), (1e9, 1e-3), (1e15, 2.0), (0.0, 1e-140), (0.0, 1e149), (1e300, 0.0)],
)
def test_a_small_spread_of_large_numbers_is_not_lost(centre: float, width: float) -> None:
    drawn = np.random.default_rng(5)
    values = centre + drawn.normal(0, 1, 3000) * width
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction()) / len(exact)
    spread = sum(((value - mean) ** 2 for value in exact), Fraction()) / len(exact)
    table = pa.table({"g": pa.array([0] * 3000, pa.int32()), "x": values})
    # What a running mean of doubles can lose: it grows with the distance from zero.
    lost = 2.0**-46 * (1 + abs(centre) / width) if width else 0.0
    for split in (None, drawn.integers(0, 7, 3000).tolist()):
        (found,) = aggregated(table, ["var_pop(x)"], split=split)["c0"].to_pylist()
        assert abs(Fraction(found) - spread) <= lost * spread


def test_the_first_row_may_have_no_value() -> None:
    table = pa.table(
        {"g": pa.array([0, 0, 0, 1], pa.int32()), "v": [None, "a", "b", None], "l": [[1], [2]] * 2}
    )
    texts = ["any_value(v)", "any_value(v) ignore nulls", "last(v)", "first(l)", "last(l)"]
    for split in (None, [0, 1, 2, 0]):
        found = aggregated(table, texts, split=split)
        assert found["c0"].to_pylist() == [None, None]
        assert found["c1"].to_pylist() == ["a", None]
        assert found["c2"].to_pylist() == ["b", None]
        assert found["c3"].to_pylist() == [[1], [2]]
        assert found["c4"].to_pylist() == [[1], [2]]


def test_nested_values_are_collected_and_picked() -> None:
    rows = {"l": [[1], [2], None, [4]], "r": [{"a": 1, "b": "x"}, None, {"a": 3, "b": None}, None]}
    table = pa.table({"g": pa.array([0] * 4, pa.int32()), "t": [2, 1, 4, 3], **rows})
    texts = ["collect_list(l)", "max_by(r, t)", "first(l order by t)", "collect_list(r)"]
    for split in (None, [0, 1, 2, 0]):
        (found,) = aggregated(table, texts, split=split).to_pylist()
        assert sorted(found["c0"]) == [[1], [2], [4]]
        assert found["c1"] == {"a": 3, "b": None}
        assert found["c2"] == [2]
        assert len(found["c3"]) == 2


def test_no_name_of_a_column_changes_a_value() -> None:
    rows = {"n": 5.0, "mean": 1.0, "squares": 2.0}
    names = ["n", "m", "r", "s", "each", "values", "centre", "count", "mean", "squares", "task_"]
    names += ["c", "ma", "mb", "sa", "sb", "state"]
    other = {name: [rows] * 4 for name in names}
    plain = pa.table({"g": pa.array([0, 0, 0, 1], pa.int32()), "x": [1.0, 2.0, 4.0, 8.0]})
    table = pa.table({**{name: plain[name] for name in plain.column_names}, **other})
    texts = ["stddev(x)", "percentile(x, 0.3)", "percentile(x, array(0.3))"]
    texts += ["percentile_disc(0.3) within group (order by x)", "corr(x, x * x)"]
    texts += ["skewness(x)", "kurtosis(x)", "regr_intercept(x, x * x)"]
    for split in (None, [0, 1, 0, 1]):
        expected = aggregated(plain, texts, split=split)
        assert differences(texts, aggregated(table, texts, split=split), expected) == []
    keyed = pa.table({name: [7.0, 7.0, 7.0] for name in names} | {"x": [1.0, 2.0, 4.0]})
    for text in texts:
        (call,) = parse_aggregate("v", text, keyed.schema, call=text).calls
        assert grouped_by(names, keyed, call) == grouped_by(["task_"], keyed, call)


def grouped_by(keys: list[str], table: pa.Table, call: AggregateCall) -> list[tuple[Any, ...]]:
    """The value of a call, in two steps if there are two, with these columns as keys."""
    connection = duckdb.connect(config={"threads": 1})
    connection.register("rows", table)
    listed = ", ".join(quoted(key) for key in keys)
    if not call.mergeable:
        return connection.sql(f"SELECT {call.whole()} FROM rows GROUP BY {listed}").fetchall()
    parts = ", ".join(f"{part.sql} AS {quoted(part.name)}" for part in call.partials("p"))
    inner = f"SELECT {listed}, {parts} FROM rows GROUP BY {listed}, x"
    return connection.sql(f"SELECT {call.merge('p')} FROM ({inner}) GROUP BY {listed}").fetchall()
