"""Laws of as-of and interval joins: what pandas finds is found, on every kind of line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.engine.memory_kit import rows

Row = tuple[int | None, int | None]
ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from([0, 0, 0, 1, 2]),
        st.none() | st.integers(min_value=-9, max_value=9),
    ),
    max_size=14,
)
DIRECTIONS = st.sampled_from(["backward", "forward", "nearest"])
HOW = st.sampled_from(["left", "inner"])
START = datetime(2021, 3, 28, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    """A kind of line: the values and the offsets that stand for whole numbers."""

    type: pa.DataType
    value: Callable[[int], object]
    offset: Callable[[int], int | float | Decimal | str]


LINES = [
    Line(pa.int64(), lambda n: n, lambda n: n),
    Line(pa.int16(), lambda n: n * 300, lambda n: n * 300.0),
    Line(pa.float64(), lambda n: n / 4, lambda n: n / 4),
    Line(pa.float32(), lambda n: n * 2.0, lambda n: n * 2),
    Line(pa.decimal128(7, 2), lambda n: n * Decimal("0.25"), lambda n: n * Decimal("0.25")),
    Line(pa.decimal128(30, 10), lambda n: Decimal(n * 10**12), lambda n: n * 10**12),
    Line(pa.date32(), lambda n: date(2024, 3, 1) + timedelta(days=n), lambda n: f"{n} days"),
    Line(pa.timestamp("us"), lambda n: 10**12 + n * 5, lambda n: f"{n * 5} microseconds"),
    Line(
        pa.timestamp("us", "UTC"),
        lambda n: START + timedelta(hours=n),
        lambda n: f"interval {n * 60} minutes",
    ),
]
SOME_LINE = st.sampled_from(LINES)
KEYS = [
    lambda k: k,
    lambda k: f"näme {k}",
    lambda k: Decimal(k) / 4,
    lambda k: date(2024, 1, 1 + k),
    lambda k: k == 0,
]


def table(rows_: list[Row], line: Line, key: Callable[[int], object], row: str) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(
                [None if k is None else key(k) for k, _ in rows_],
                pa.array([key(0), key(1), key(2)]).type,
            ),
            "t": pa.array([None if n is None else line.value(n) for _, n in rows_], line.type),
            row: pa.array(range(len(rows_)), "int32"),
        }
    )


def frame(rows_: list[Row], key: Callable[[int], object], row: str) -> pd.DataFrame:
    """Rows that have a key and a value, for pandas, which takes null for a value."""
    whole = [
        (repr(key(k)), n, place)
        for place, (k, n) in enumerate(rows_)
        if k is not None and n is not None
    ]
    return pd.DataFrame(
        {
            "k": pd.Series([k for k, _, _ in whole], dtype="object"),
            "t": pd.Series([n for _, n, _ in whole], dtype="int64"),
            row: pd.Series([place for _, _, place in whole], dtype="int64"),
        }
    ).sort_values("t", kind="stable")


@settings(max_examples=examples(40), deadline=None)
@given(
    ours=ROWS,
    theirs=ROWS,
    line=SOME_LINE,
    key=st.sampled_from(KEYS),
    direction=DIRECTIONS,
    tolerance=st.none() | st.integers(min_value=0, max_value=5),
    how=HOW,
    keyed=st.booleans(),
)
def test_an_as_of_join_finds_what_pandas_finds(
    ours: list[Row],
    theirs: list[Row],
    line: Line,
    key: Callable[[int], object],
    direction: str,
    tolerance: int | None,
    how: str,
    *,
    keyed: bool,
) -> None:
    by = ["k"] if keyed else None
    left, right = frame(ours, key, "l"), frame(theirs, key, "r")
    if not keyed:
        ours, theirs = [(0, n) for _, n in ours], [(0, n) for _, n in theirs]
        left, right = (frame(one, key, name) for one, name in ((ours, "l"), (theirs, "r")))
    if direction != "backward":
        # Of equal rows pandas takes the first one when it looks ahead; here it is always the last.
        right = right.drop_duplicates(["k", "t"], keep="last")
    expected = pd.merge_asof(left, right, on="t", by="k", direction=direction, tolerance=tolerance)
    pairs = {
        int(one): None if pd.isna(two) else int(two)
        for one, two in zip(expected["l"], expected["r"], strict=True)
    }

    joined = rows(table(ours, line, key, "l")).join_asof(
        rows(table(theirs, line, key, "r")),
        on="t",
        by=by,
        direction=direction,
        tolerance=None if tolerance is None else line.offset(tolerance),
        how=how,
    )
    found = joined.select("l", "r").to_arrow().to_pylist()

    kept = [place for place in range(len(ours)) if how == "left" or pairs.get(place) is not None]
    assert sorted((row["l"], row["r"]) for row in found) == [(one, pairs.get(one)) for one in kept]


@settings(max_examples=examples(40), deadline=None)
@given(
    ours=ROWS,
    theirs=ROWS,
    line=SOME_LINE,
    key=st.sampled_from(KEYS),
    lower=st.integers(min_value=-6, max_value=6),
    wide=st.integers(min_value=0, max_value=6) | st.just(100),
    how=HOW,
    keyed=st.booleans(),
)
def test_an_interval_join_finds_every_pair_once(
    ours: list[Row],
    theirs: list[Row],
    line: Line,
    key: Callable[[int], object],
    lower: int,
    wide: int,
    how: str,
    *,
    keyed: bool,
) -> None:
    if not keyed:
        ours, theirs = [(0, n) for _, n in ours], [(0, n) for _, n in theirs]
    both = frame(ours, key, "l").merge(frame(theirs, key, "r"), on="k")
    apart = both["t_y"] - both["t_x"]
    near = both[(apart >= lower) & (apart <= lower + wide)]
    pairs = sorted((int(one), int(two)) for one, two in zip(near["l"], near["r"], strict=True))
    alone = {*range(len(ours))} - {one for one, _ in pairs}

    joined = rows(table(ours, line, key, "l")).join_interval(
        rows(table(theirs, line, key, "r")),
        left_on="t",
        right_on="t",
        by="k" if keyed else None,
        lower=line.offset(lower),
        upper=line.offset(lower + wide),
        how=how,
    )
    found = joined.select("l", "r").to_arrow().to_pylist()

    wanted = [*pairs, *((one, None) for one in alone if how == "left")]
    assert sorted(((row["l"], row["r"]) for row in found), key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line.type))
def test_every_line_was_tried(line: Line) -> None:
    """The laws above draw lines; this one goes through all of them, on rows that tell much."""
    ours: list[Row] = [(0, n) for n in range(-9, 10)]
    theirs: list[Row] = [(0, n) for n in range(-9, 10, 3)]
    left, right = rows(table(ours, line, str, "l")), rows(table(theirs, line, str, "r"))

    back = left.join_asof(right, on="t", by="k", tolerance=line.offset(1)).to_arrow().to_pylist()
    pairs = left.join_interval(
        right, left_on="t", right_on="t", by="k", lower=line.offset(-3), upper=line.offset(2)
    ).to_arrow()

    assert [row["r"] for row in sorted(back, key=lambda row: row["l"])] == [
        (place // 3 if place % 3 < 2 else None) for place in range(19)
    ]
    wanted = [
        (i, j)
        for i, (_, n) in enumerate(ours)
        for j, (_, m) in enumerate(theirs)
        if n is not None and m is not None and -3 <= m - n <= 2
    ]
    assert sorted((row["l"], row["r"]) for row in pairs.to_pylist()) == wanted
