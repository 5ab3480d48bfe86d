"""Functions in Python run once for each distinct value, and give Spark's answers."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from millrace.sql.vectorised.distinct_values import per_value
from millrace.sql.vectorised.letter_case import initcap, lower, upper


def test_python_is_called_once_for_each_distinct_value() -> None:
    calls: list[str] = []

    def shout(text: str) -> str:
        calls.append(text)
        return text + "!"

    answer = per_value(pa.array(["a", None, "a", "b"]), call=shout, kind=pa.string())

    assert answer.to_pylist() == ["a!", None, "a!", "b!"]
    assert calls == ["a", "b"]


def test_rows_of_several_columns_are_distinct_together() -> None:
    calls: list[tuple[str, int]] = []

    def joined(text: str, number: int) -> str:
        calls.append((text, number))
        return f"{text}{number}"

    texts = pa.array(["a", "b", "a", None, "a", "b"])
    numbers = pa.array([1, 1, 2, 1, 1, None])
    answer = per_value(texts, numbers, call=joined, kind=pa.string())

    assert answer.to_pylist() == ["a1", "b1", "a2", None, "a1", None]
    assert sorted(calls) == [("a", 1), ("a", 2), ("b", 1)]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_zeros_of_both_signs_are_two_values(kind: pa.DataType) -> None:
    zeros = pa.array([0.0, -0.0, 0.0, None], kind)
    sign = per_value(zeros, call=lambda x: math.copysign(1, x), kind=pa.float64())
    assert sign.to_pylist() == [1.0, -1.0, 1.0, None]


def test_letters_have_the_case_that_spark_gives_them() -> None:
    sigma, final = "\N{GREEK SMALL LETTER SIGMA}", "\N{GREEK SMALL LETTER FINAL SIGMA}"
    capital = sigma.upper()
    assert upper("straße \N{LATIN SMALL LIGATURE FI} \ua7cd") == "STRASSE FI \ua7cc"
    assert lower(f"A{capital} {capital} A{capital}A İ") == f"a{final} {sigma} a{sigma}a i̇"
    assert initcap(f"ab  cD-EF \u01c6x A{capital}") == f"Ab  Cd-ef \u01c5x A{final}"


def test_a_sigma_is_within_a_word_also_before_a_mark_of_a_newer_unicode() -> None:
    sigma, final = "\N{GREEK SMALL LETTER SIGMA}", "\N{GREEK SMALL LETTER FINAL SIGMA}"
    capital = sigma.upper()
    assert lower(f"A{capital}\u0897A") == f"a{sigma}\u0897a"
    assert lower(f"A{capital}\u0897") == f"a{final}\u0897"
