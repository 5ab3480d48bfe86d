"""As-of joins, as one task does them: examples, ties, nulls, ends of types, odd numbers."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.unit.engine.memory_kit import OneTask, of, rows, stream

from millrace.datasets.dataset import Dataset

NAN = math.nan
INF = math.inf


def found(query: Dataset, *columns: str) -> list[tuple[Any, ...]]:
    """Columns of the result's rows, in the order of the first ones."""
    table = query.to_arrow()
    picked = [tuple(row[name] for name in columns) for row in table.to_pylist()]
    return sorted(picked, key=lambda row: tuple(map(repr, row)))


def test_backward_takes_the_last_quote_at_or_before_a_trade() -> None:
    trades, quotes = of(t=[10, 30, 50]), of(t=[5, 20, 40, 60], price=[99, 100, 101, 103])

    joined = trades.join_asof(quotes, on="t")

    assert joined.columns == ["t", "t_right", "price"]
    assert found(joined, "t", "t_right", "price") == [(10, 5, 99), (30, 20, 100), (50, 40, 101)]


def test_forward_takes_the_next_one() -> None:
    joined = of(t=[10, 30, 50]).join_asof(of(t=[15, 35, 55]), on="t", direction="forward")

    assert found(joined, "t", "t_right") == [(10, 15), (30, 35), (50, 55)]


def test_symbols_never_mix() -> None:
    trades = of(sym=["a", "b", "c"], t=[10, 10, 10])
    quotes = of(sym=["b", "a", "b"], t=[9, 1, 11], price=[2, 1, 3])

    joined = trades.join_asof(quotes, on="t", by="sym")

    assert joined.columns == ["sym", "t", "t_right", "price"]
    assert found(joined, "sym", "price") == [("a", 1), ("b", 2), ("c", None)]


def test_a_gap_beyond_the_tolerance_is_no_match_and_keeps_the_row() -> None:
    trades, quotes = of(t=[60, 20]), of(t=[10], price=[99])

    left = trades.join_asof(quotes, on="t", tolerance=10)
    inner = trades.join_asof(quotes, on="t", tolerance=10, how="inner")

    assert found(left, "t", "t_right", "price") == [(20, 10, 99), (60, None, None)]
    assert found(inner, "t", "price") == [(20, 99)]


def test_nearest_takes_the_one_before_if_both_are_as_near() -> None:
    joined = of(t=[10, 20, 30, 99]).join_asof(
        of(t=[5, 15, 24, 90, 90], n=[1, 2, 3, 4, 5]), on="t", direction="nearest"
    )

    assert found(joined, "t", "n") == [(10, 1), (20, 3), (30, 3), (99, 5)]


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_of_equal_rows_the_last_one_counts_however_many_there_are(direction: str) -> None:
    random = np.random.default_rng(7)
    keys, times = random.integers(0, 20, 30_000), random.integers(0, 50, 30_000)
    right = pa.table({"k": keys, "t": times, "row": np.arange(30_000)})
    last = {(k, t): row for row, (k, t) in enumerate(zip(keys, times, strict=True))}
    left = pa.table({"k": np.repeat(np.arange(20), 50), "t": np.tile(np.arange(50), 20)})

    joined = rows(left).join_asof(rows(right), on="t", by="k", direction=direction).to_arrow()

    assert joined.num_rows == 1000
    assert all(last[r["k"], r["t"]] == r["row"] for r in joined.to_pylist())


def test_null_matches_nothing_and_is_kept_once() -> None:
    trades = of(k=[None, 1, 1, None], t=[5, None, 5, None], id=[1, 2, 3, 4])
    quotes = of(k=[None, 1, 1, None], t=[1, None, 2, None], n=[1, 2, 3, 4])

    for direction, match in (("backward", 3), ("forward", None), ("nearest", 3)):
        joined = trades.join_asof(quotes, on="t", by="k", direction=direction)
        assert found(joined, "id", "n") == [(1, None), (2, None), (3, match), (4, None)]


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_an_empty_side_is_no_reason_to_lose_the_other(direction: str) -> None:
    some = of(k=["a"], t=[1.5])
    empty = rows(pa.table({"k": pa.array([], "string"), "t": pa.array([], "float64")}))

    assert found(some.join_asof(empty, on="t", by="k", direction=direction), "t", "t_right") == [
        (1.5, None)
    ]
    assert found(some.join_asof(empty, on="t", direction=direction, how="inner"), "t") == []
    assert found(empty.join_asof(some, on="t", direction=direction), "t") == []


def test_nan_is_above_all_numbers_and_equals_itself() -> None:
    ours, theirs = of(t=[1.0, NAN, INF], id=[1, 2, 3]), of(t=[2.0, NAN], n=["two", "nan"])

    backward = ours.join_asof(theirs, on="t")
    forward = ours.join_asof(theirs, on="t", direction="forward")
    nearest = ours.join_asof(theirs, on="t", direction="nearest")
    near = ours.join_asof(theirs, on="t", direction="nearest", tolerance=1e300)

    assert found(backward, "id", "n") == [(1, None), (2, "nan"), (3, "two")]
    assert found(forward, "id", "n") == [(1, "two"), (2, "nan"), (3, "nan")]
    assert found(nearest, "id", "n") == [(1, "two"), (2, "nan"), (3, "two")]
    assert found(near, "id", "n") == [(1, "two"), (2, "nan"), (3, None)]


def test_numbers_without_end_are_as_near_as_they_are() -> None:
    joined = of(t=[INF, -INF, 0.0]).join_asof(
        of(t=[-INF, INF], n=["low", "high"]), on="t", direction="nearest", tolerance=0
    )

    assert found(joined, "t", "n") == [(-INF, "low"), (0.0, None), (INF, "high")]


def test_the_ends_of_whole_numbers_do_not_overflow() -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    ours, theirs = of(t=[low, high, 0]), of(t=[low, high])

    for direction in ("backward", "forward", "nearest"):
        joined = ours.join_asof(theirs, on="t", direction=direction, tolerance=high)
        pairs = dict(found(joined, "t", "t_right"))
        assert pairs[low] == low
        assert pairs[high] == high
        assert pairs[0] == (None if direction == "backward" else high)


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [
        (pa.array([0, 10, 21], "int8"), 10),
        (pa.array([0, 10, 21], "int32"), 10.5),
        (pa.array([0, 10, 21], "float32"), Decimal(10)),
        (pa.array([Decimal("0.00"), Decimal("0.10"), Decimal("0.21")], pa.decimal128(9, 2)), 0.1),
        (pa.array([Decimal(n) for n in (0, 10, 21)], pa.decimal128(38, 3)), 10.0009),
        (pa.array([date(2024, 2, 20), date(2024, 3, 1), date(2024, 3, 12)]), "10 days"),
        (
            pa.array([0, 10_000_000, 21_000_000], pa.timestamp("us")),
            "10.000000 seconds",
        ),
        (
            pa.array([datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in (0, 10, 21)]),
            "INTERVAL '600' MINUTES",
        ),
        (
            pa.array([0, 10_000_000, 21_000_000], pa.timestamp("us")).cast(pa.timestamp("ns")),
            "9 seconds 1000 milliseconds",
        ),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else None,
)
def test_every_kind_of_line_has_distances_and_the_tolerance_belongs_to_them(
    values: pa.Array, tolerance: float | Decimal | str
) -> None:
    """Three values: the first two lie just as far apart as allowed, the third further."""
    left, right = of(t=values, id=[0, 1, 2]), of(t=values.take([0]), hit=[1])
    ahead, first = of(t=values.take([1]), hit=[1]), of(t=values, id=[0, 1, 2])

    backward = left.join_asof(right, on="t", tolerance=tolerance)
    forward = first.join_asof(ahead, on="t", tolerance=tolerance, direction="forward")
    nearest = first.join_asof(ahead, on="t", tolerance=tolerance, direction="nearest")

    assert found(backward, "id", "hit") == [(0, 1), (1, 1), (2, None)]
    assert found(forward, "id", "hit") == [(0, 1), (1, 1), (2, None)]
    assert found(nearest, "id", "hit") == [(0, 1), (1, 1), (2, None)]


def test_a_day_and_a_month_are_those_of_the_calendar_where_the_session_is() -> None:
    berlin = OneTask(zone="Europe/Berlin")
    before = datetime(2021, 3, 27, 11, tzinfo=UTC)  # 12:00, the day before clocks change
    ours = pa.table({"t": [before + timedelta(hours=n) for n in (22, 23, 24)], "id": [22, 23, 24]})
    theirs = pa.table({"t": [before], "hit": [1]})

    a_day = rows(ours, berlin).join_asof(rows(theirs, berlin), on="t", tolerance="24 hours")
    in_utc = rows(ours).join_asof(rows(theirs), on="t", tolerance="1 day")
    month = of(d=[date(2024, 3, 31), date(2024, 4, 1)]).join_asof(
        of(d=[date(2024, 2, 29)], hit=[1]), on="d", tolerance="1 month"
    )

    assert found(a_day, "id", "hit") == [(22, 1), (23, 1), (24, None)]
    assert found(in_utc, "id", "hit") == [(22, 1), (23, 1), (24, 1)]
    assert found(month, "d", "hit") == [(date(2024, 3, 31), 1), (date(2024, 4, 1), None)]


def test_columns_of_any_type_and_name_come_along() -> None:
    left = of(t=[1, 2], __row=["a", "b"], **{'odd "name"': [[1], None], "__AT": [1, 2]})
    right = of(t=[1, 2], __row=[{"x": 1}, {"x": None}], __before=[None, [b"z"]], __after=[1, 2])

    joined = left.join_asof(right, left_on="t", right_on="t", left_by="t", right_by="t")

    assert joined.columns == [
        *("t", "__row", 'odd "name"', "__AT"),
        *("t_right", "__row_right", "__before", "__after"),
    ]
    first, second = sorted(joined.to_arrow().to_pylist(), key=lambda row: row["t"])
    assert (first["__row"], first["__row_right"], first["__before"]) == ("a", {"x": 1}, None)
    assert (second['odd "name"'], second["__before"], second["__AT"]) == (None, [b"z"], 2)


def test_a_join_of_a_join_and_a_side_that_is_calculated() -> None:
    quotes = of(k=[1, 1, 2], t=[1, 2, 3], price=[10, 20, 30])
    trades = of(k=[1, 2, 3], t=[5, 5, 5])

    once = trades.join_asof(quotes.filter("price > 10"), on="t", by="k").select("k", "t", "price")
    twice = once.join_asof(quotes.select("t + 3 AS t", "price AS p"), on="t", direction="forward")

    some = found(twice.limit(2), "k", "p")
    assert len(some) == 2
    assert set(some) <= set(found(twice, "k", "p"))
    assert found(twice, "k", "price", "p") == [(1, 20, 20), (2, 30, 20), (3, None, 20)]


def test_of_equal_rows_in_a_union_the_last_one_is_in_its_last_part() -> None:
    count = 5000
    parts = [rows(pa.table({"t": np.zeros(count), "n": np.arange(count) + k})) for k in (9, 5, 7)]

    joined = of(t=[0.0]).join_asof(parts[0].union(*parts[1:]), on="t")

    assert found(joined, "n") == [(count - 1 + 7,)]


def test_rows_are_merged_and_not_compared_one_by_one() -> None:
    """A stream tells no size, and DuckDB takes that for a few rows; the engine is told not to."""
    numbers = pa.table({"k": [1], "t": [1]})
    query = rows(numbers).join_asof(rows(numbers), on="t", by="k", direction="nearest")
    connection = duckdb.connect(config={"threads": 1, "asof_loop_join_threshold": 0})
    connection.register("input_0", stream(numbers))
    connection.register("input_1", stream(numbers))

    plan = (
        connection.sql(f"EXPLAIN {query._runner.explain(query._plan, analyze=False, html=False)}")
        .fetchall()[0][1]
        .lower()
    )

    assert plan.replace("_", "").replace(" ", "").count("asofjoin") == 2
    assert "nested" not in plan


def test_what_does_not_fit_memory_is_joined_all_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    count = 400_000
    table = pa.table(
        {
            "k": random.integers(0, 50, count),
            "t": random.permutation(count),
            "text": [f"some text that takes room {n}" for n in random.integers(0, 9, count)],
        }
    )
    small = OneTask(memory_bytes_max=32 << 20, spill_parent=str(tmp_path))

    joined = rows(table, small).join_asof(rows(table, small), on="t", by="k")
    seen, spilled = 0, 0
    for batch in joined.select("t", "t_right", "text", "text_right").to_batches():
        seen += batch.num_rows
        spilled = max(spilled, sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()))
        assert batch.column("t").equals(batch.column("t_right"))
        assert batch.column("text").equals(batch.column("text_right"))

    assert seen == count
    assert spilled > 1 << 20
