"""Hashes and rare spellings of numbers are those of Spark, also on every size of text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace.sql.vectorised.hash_calls import murmur3, xxhash64
from millrace.sql.vectorised.number_texts import decimal_text, double_of_text


def seeds(count: int, kind: pa.DataType) -> pa.Array:
    return pa.array([42] * count, kind)


def test_hashes_are_those_that_spark_documents() -> None:
    texts = pa.array(["Spark"])
    one = murmur3(seeds(1, pa.int32()), texts)
    two = murmur3(one, pa.array([123], pa.int32()))
    assert murmur3(two, pa.array([2], pa.int32())).to_pylist() == [-1321691492]
    text = xxhash64(seeds(1, pa.int64()), texts)
    array_item = xxhash64(text, pa.array([123], pa.int32()))
    assert xxhash64(array_item, pa.array([2], pa.int32())).to_pylist() == [5602566077635097486]


def test_a_null_leaves_the_hash_as_it_is() -> None:
    before = pa.array([7, 42], pa.int64())
    assert xxhash64(before, pa.array([None, None], pa.string())) == before


def test_a_text_has_one_hash_whether_alone_or_among_others() -> None:
    texts = ["x" * size for size in (0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 64, 100, 5000)]
    together = xxhash64(seeds(len(texts), pa.int64()), pa.array(texts)).to_pylist()
    alone = [xxhash64(seeds(1, pa.int64()), pa.array([text])).to_pylist()[0] for text in texts]
    assert together == alone
    assert len(set(together)) == len(texts)


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [
        ("1e3", 2, "1000.00"),
        ("\x00 2.345\x1f", 2, "2.35"),
        ("-0.005e0", 2, "-0.01"),
        ("\u0663.5", 0, "4"),
        ("1e-99999", 2, "0"),
        ("0e99999", 2, "0"),
        ("1e99999", 2, "9" * 60),
        ("1e99999999999", 2, None),
        ("1\x7f", 2, None),
        ("", 2, None),
        ("1d", 2, None),
    ],
)
def test_a_decimal_is_read_as_java_does(text: str, scale: int, value: str | None) -> None:
    assert decimal_text(text, scale) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1.5d", 1.5), ("0x1.8p1", 3.0), ("-0X1p3f", -8.0), ("1e400", float("inf"))),
        *(("-Infinity", float("-inf")), ("0x1p99999", float("inf")), ("0x1", None), ("1dd", None)),
        *(("+nan", None), ("\u0663", None), ("", None), ("infinit", None)),
    ],
)
def test_a_double_is_read_as_java_does(text: str, value: Any) -> None:  # noqa: ANN401
    assert double_of_text(text) == value
