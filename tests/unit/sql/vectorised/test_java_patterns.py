"""Java's patterns are written for RE2 and Python where they mean the same there."""

from __future__ import annotations

import re

import duckdb
import pytest

from millrace.sql.vectorised.java_classes import PatternUnknown
from millrace.sql.vectorised.java_patterns import java_pattern

TEXTS = ["", "a", "ab12", "a\n", "\ra", "x\x0by", "é", "😀", "AB", "a-b_c", "K", "aaa", "ſ"]  # noqa: RUF001
TAKEN = [
    *("a", "^a", "[a-c]+", r"\d{2,}", "a|b", "(a)(b)?", ".", r"\s", r"[^\s]", "(?i)k|S", "(?s)a."),
    *(r"\p{Alpha}\p{Digit}", r"\Qa-b\E", r"[\w-]+", "a+?", "(?:ab)+", r"\x61", "[.]", "a{3}"),
]


@pytest.mark.parametrize("text", TAKEN)
def test_both_languages_find_the_same(text: str) -> None:
    pattern = java_pattern(text)
    assert pattern.re2 is not None
    with duckdb.connect() as connection:
        for value in TEXTS:
            if pattern.has_pairs and not value.isascii():
                continue
            row = connection.execute(
                "SELECT regexp_matches($1, $2), regexp_extract($1, $2)", [value, pattern.re2]
            ).fetchone()
            match = re.search(pattern.python, value)
            assert row == (match is not None, "" if match is None else match[0]), value


@pytest.mark.parametrize(
    "text",
    [
        *(r"\ba", "a*+", "(?m)^a", "[a&&b]", "[a[b]]", "(a", "a)", "[]a]", r"\1", "a{,2}", "*a"),
        *(
            r"\p{IsGreek}",
            "(a*)*",
            "(?<=a)b",
            "[^😀]",
            r"[\x00-\uffff]",
            "a**",
            r"\y",
            "{1}",
            "[b-a]",
        ),
    ],
)
def test_what_may_mean_something_else_is_unknown(text: str) -> None:
    with pytest.raises(PatternUnknown):
        java_pattern(text)


def test_a_letter_without_case_stands_for_ascii_only() -> None:
    pattern = java_pattern("(?i)k")
    assert re.fullmatch(pattern.python, "K")
    assert not re.fullmatch(pattern.python, "\N{KELVIN SIGN}")


@pytest.mark.parametrize(
    ("value", "ends"),
    [("a", True), ("a\n", True), ("a\r\n", True), ("a\n\n", False), ("a\u2028", True)],
)
def test_a_dollar_stands_before_a_last_line_end(value: str, *, ends: bool) -> None:
    pattern = java_pattern("a$")
    assert pattern.has_end
    assert (re.search(pattern.python, value) is not None) is ends


def test_a_look_ahead_is_for_python_only() -> None:
    pattern = java_pattern(r"^(?=.*\d)(?!x).+")
    assert pattern.re2 is None
    assert not pattern.may_be_empty


def test_what_a_pattern_has_is_counted() -> None:
    assert java_pattern("(a)((?:b)|c)").groups == 2
    assert java_pattern("(a)+").groups_repeat
    assert not java_pattern("(a)?").groups_repeat
    assert java_pattern("a*").may_be_empty
    assert java_pattern("(?i)k|S").has_pairs
    assert java_pattern("[sS]").has_pairs
    assert not java_pattern("(?i)[a-z]").has_pairs
    assert java_pattern("(?<name>a)").groups == 1
