"""Interval joins, as one task does them: bounds, nulls, ends of types, odd numbers, many rows."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.engine.memory_kit import OneTask, of, rows

from millrace.datasets.dataset import Dataset
from millrace.sql.ordered_offsets import LONG_MAX, LONG_MIN, OffsetValue

NAN = math.nan
INF = math.inf


def pairs(
    left: Dataset,
    right: Dataset,
    lower: OffsetValue,
    upper: OffsetValue,
    **more: Any,  # noqa: ANN401 - as the join has them
) -> list[Any]:
    """Values of `l` and `r` in the rows of an interval join on `t`."""
    joined = left.join_interval(
        right, left_on="t", right_on="t", lower=lower, upper=upper, **more
    ).to_arrow()
    return sorted(((row["l"], row["r"]) for row in joined.to_pylist()), key=repr)


def test_both_ends_belong_to_the_interval() -> None:
    left, right = of(t=[10, 20], l=[1, 2]), of(t=[4, 5, 12, 13, 99], r=[4, 5, 12, 13, 99])

    assert pairs(left, right, -5, 2) == [(1, 12), (1, 5)]
    assert pairs(left, right, -5, 2, how="left") == [(1, 12), (1, 5), (2, None)]
    assert pairs(left, right, 2, 3) == [(1, 12), (1, 13)]
    assert pairs(left, right, -8, -7) == [(2, 12), (2, 13)]
    assert pairs(left, right, 2, 2) == [(1, 12)]


def test_keys_are_equal_and_columns_come_from_their_sides() -> None:
    left = of(k=["a", "b", None], t=[1, 1, 1], v=[1, 2, 3])
    right = of(k=["b", "b", None], t=[1, 2, 1], v=[10, 20, 30])

    joined = left.join_interval(right, left_on="t", right_on="t", lower=0, upper=1, by="k")
    named = left.join_interval(
        right, left_on="t", right_on="v", lower=0, upper=9, left_by="k", right_by="k", how="left"
    )

    assert joined.columns == ["k", "t", "v", "t_right", "v_right"]
    assert sorted(joined.to_arrow()["v_right"].to_pylist()) == [10, 20]
    assert named.columns == ["k", "t", "v", "k_right", "t_right", "v_right"]
    assert sorted(map(repr, named.to_arrow()["k_right"].to_pylist())) == ["'b'", "None", "None"]


def test_null_lies_nowhere_and_empty_sides_work() -> None:
    some = of(t=[1, None], l=[1, 2], r=[1, 2])
    none = rows(some.to_arrow().slice(0, 0))

    assert pairs(some.select("t", "l"), some.select("t", "r"), -9, 9, how="left") == [
        (1, 1),
        (2, None),
    ]
    assert pairs(some.select("t", "l"), none.select("t", "r"), -9, 9, how="left") == [
        (1, None),
        (2, None),
    ]
    assert pairs(none.select("t", "l"), some.select("t", "r"), -9, 9, how="left") == []


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(0, 0), (-1, 1), (LONG_MIN, LONG_MAX), (0, LONG_MAX), (LONG_MIN, 0), (1, 1 << 61)],
)
def test_the_ends_of_whole_numbers_do_not_overflow(lower: int, upper: int) -> None:
    values = [LONG_MIN, LONG_MIN + 1, -1, 0, 1, LONG_MAX - 1, LONG_MAX]
    left, right = of(t=values, l=range(7)), of(t=values, r=range(7))
    wanted = [
        (i, j)
        for i, one in enumerate(values)
        for j, two in enumerate(values)
        if lower <= two - one <= upper
    ]

    assert pairs(left, right, lower, upper) == wanted


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(0.0, 0.0), (-0.5, 0.5), (-1e-320, 1e-320), (-1e300, 1e300), (0.0, 1.7e308), (1e-3, 2e-3)],
)
def test_odd_numbers_are_compared_as_spark_does(lower: float, upper: float) -> None:
    """NaN is above all and equals itself; a sum may be without end, which then equals itself."""
    values = [-INF, -1.7e308, -1e300, -2e-3, -0.0, 0.0, 5e-324, 1e-3, 0.5, 1e15, 1e16, 1.7e308, INF]
    values.append(NAN)
    count = len(values)
    left, right = of(t=values, l=range(count)), of(t=values, r=range(count))

    def above(one: float, two: float) -> bool:
        return math.isnan(one) or (not math.isnan(two) and one >= two)

    wanted = [
        (i, j)
        for i, one in enumerate(values)
        for j, two in enumerate(values)
        if above(two, one + lower) and above(one + upper, two)
    ]

    assert pairs(left, right, lower, upper) == sorted(wanted, key=repr)


def test_bounds_between_the_values_there_can_be() -> None:
    left, right = of(t=[0], l=[0]), of(t=[-2, -1, 0, 1, 2], r=[-2, -1, 0, 1, 2])
    exact = pa.array([Decimal("0.10"), Decimal("0.30")], pa.decimal128(4, 2))

    assert pairs(left, right, -1.5, 1.5) == [(0, -1), (0, 0), (0, 1)]
    assert pairs(of(t=exact, l=[1, 3]), of(t=exact, r=[1, 3]), 0.1999, 0.2001) == [(1, 3)]


def test_months_and_days_are_those_of_the_calendar() -> None:
    days = [date(2024, 2, 28), date(2024, 2, 29), date(2024, 3, 31)]
    left, right = of(t=[date(2024, 1, 31)], l=[1]), of(t=days, r=[28, 29, 31])
    berlin = OneTask(zone="Europe/Berlin")
    noon = datetime(2021, 3, 27, 11, tzinfo=UTC)  # the day before clocks change
    hours = range(20, 50)
    later = pa.table({"t": [noon + timedelta(hours=n) for n in hours], "r": list(hours)})

    assert pairs(left, right, "1 month", "2 months") == [(1, 29), (1, 31)]
    assert pairs(left, right, "4 weeks", "1 month") == [(1, 28), (1, 29)]
    found = pairs(
        rows(pa.table({"t": [noon], "l": [1]}), berlin), rows(later, berlin), "1 day", "2 days"
    )
    assert found == [(1, n) for n in range(23, 48)]


def test_a_key_with_many_rows_is_joined_by_what_lies_near() -> None:
    """Pair by pair these would be a hundred billion; each lies near three."""
    count = 300_000
    numbers = pa.table({"k": np.zeros(count, "int8"), "t": np.arange(count) * 10})
    side = rows(numbers)

    joined = side.join_interval(side, left_on="t", right_on="t", lower=-10, upper=10, by="k")

    assert joined.agg(n="count(*)", apart="sum(abs(t - t_right))").to_arrow().to_pylist() == [
        {"n": 3 * count - 2, "apart": 20 * (count - 1)}
    ]
