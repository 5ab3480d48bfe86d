"""Texts are cut at the matches of a pattern, up to a limit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.sql.expressions import parse
from millrace.sql.functions.nested.array_makers import plain_pattern
from millrace.sql.vectorised.pattern_calls import split


@pytest.mark.parametrize(
    ("limit", "pieces"),
    [
        (-1, ["", "b", "", "c", ""]),
        (0, ["", "b", "", "c", ""]),
        (2, ["", "b11c1"]),
        (1, ["1b11c1"]),
    ],
)
def test_the_last_piece_of_a_limit_is_the_rest(limit: int, pieces: list[str]) -> None:
    assert split("1b11c1", "(1)", limit) == pieces


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(",", ","), ("\\.", "."), ("[|]", "|"), ("a\\\\b", "a\\b"), ("", ""), (", ", ", ")],
)
def test_a_pattern_that_means_one_text_is_that_text(pattern: str, text: str) -> None:
    assert plain_pattern(pattern) == text


@pytest.mark.parametrize("pattern", [".", "a|b", "[ab]", "\\d", "a+", "[^a]", "(a)", "a{2}", "\\"])
def test_other_patterns_mean_several_texts(pattern: str) -> None:
    assert plain_pattern(pattern) is None


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("split(s, ',')", "string_split("),
        ("split(s, '[,;]')", "string_split_regex("),
        ("split(s, '[,;]', 2)", "spark_split("),
        ("split(s, '^a')", "spark_split("),
        ("split(s, 'a$')", "spark_split("),
    ],
)
def test_the_engine_splits_where_it_sees_all_that_the_pattern_looks_at(
    text: str, engine: str
) -> None:
    assert engine in parse(text, pa.schema({"s": pa.string()}), call="select").sql
