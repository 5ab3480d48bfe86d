"""Names that are offered are near to what was written."""

from __future__ import annotations

import pytest

from millrace.text import did_you_mean, listed, near_names

FUNCTIONS = ["exp", "ln", "pow", "sum", "count", "upper", "date_add", "to_date", "length"]


@pytest.mark.parametrize("name", ["explode", "len", "now", "size", "levenshtein", "x", ""])
def test_a_far_name_is_not_offered(name: str) -> None:
    assert near_names(name, FUNCTIONS) == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("summ", "sum"),
        ("smu", "sum"),
        ("conut", "count"),
        ("uper", "upper"),
        ("UPPER", "upper"),
        ("date_ad", "date_add"),
        ("to_dat", "to_date"),
        ("lenght", "length"),
    ],
)
def test_a_slip_of_the_keyboard_is_noticed(name: str, near: str) -> None:
    assert near_names(name, FUNCTIONS) == [near]
    assert did_you_mean(name, FUNCTIONS, "look") == f"did you mean {near}?"


def test_names_of_several_words_are_near_by_their_words_where_that_is_asked_for() -> None:
    known = ["sync", "job_lease_ms", "agent_lease_ms"]
    assert near_names("sync_ms", known, by_words=True) == ["sync"]
    assert near_names("lease_ms", known, by_words=True) == ["job_lease_ms", "agent_lease_ms"]
    assert near_names("sync_ms", known) == []


def test_of_many_names_the_first_are_listed() -> None:
    assert listed([]) == "none"
    assert listed(f"c{n}" for n in range(3)) == "c0, c1, c2"
    assert listed(map(str, range(1000))).endswith(", 11 and 988 more")
