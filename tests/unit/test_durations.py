"""A time is said in one of three ways, and each gives the same length."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.durations import Duration, milliseconds, seconds, shown
from millrace.errors import UserError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("15m", 900),
        ("2h", 7200),
        ("7d", 604_800),
        ("1.5 h", 5400),
        (" 3s ", 3),
        (timedelta(minutes=2), 120),
        (0, 0),
        (2.5, 2.5),
    ],
)
def test_each_form_gives_its_seconds(given: Duration, expected: float) -> None:
    assert seconds(given, "timeout") == expected


@pytest.mark.parametrize(
    "given", ["10", "s", "", "1y", "-3s", "1s 2s", None, True, float("nan"), []]
)
def test_what_is_no_time_is_refused_with_examples(given: Duration) -> None:
    with pytest.raises(
        UserError, match="timeout is not a time\n  found: .*\n  to fix: give seconds"
    ):
        seconds(given, "timeout")


@pytest.mark.parametrize("given", [-1, timedelta(days=-1), float("inf"), "40000d"])
def test_what_is_out_of_range_is_refused(given: Duration) -> None:
    with pytest.raises(UserError, match="timeout is out of range"):
        seconds(given, "timeout")


@given(st.integers(0, 10**9))
def test_what_is_shown_reads_back_as_it_was(value: int) -> None:
    assert milliseconds(shown(value / 1000), "x") == value


def test_milliseconds_are_never_cut_to_nothing() -> None:
    assert milliseconds(0.0001, "x") == 1
    assert milliseconds(0.29, "x") == 290
