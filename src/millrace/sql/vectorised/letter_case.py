"""Capital and small letters as Spark maps them: with ICU's tables of Unicode 17.

Python has the same rules, of an older Unicode. Invariant: letters that are newer than Python's
tables have their case here; a test compares every character with Spark.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Final

import pyarrow as pa

from millrace.sql.engine_functions import vector_function
from millrace.sql.vectorised.distinct_values import per_value

_PAIRS: Final = {
    0x1C89: 0x1C8A,
    0xA7CB: 0x264,
    0xA7CC: 0xA7CD,
    0xA7CE: 0xA7CF,
    0xA7D2: 0xA7D3,
    0xA7D4: 0xA7D5,
    0xA7DA: 0xA7DB,
    0xA7DC: 0x19B,
    **{capital: capital + 0x20 for capital in range(0x10D50, 0x10D66)},
    **{capital: capital + 0x1B for capital in range(0x16EA0, 0x16EB9)},
}
"""Capital letters that came after Unicode 14, each with its small form."""
_CAPITALS: Final = {small: capital for capital, small in _PAIRS.items()}
_SIGMA: Final = "Σ"


def _codes(ranges: str) -> chain[int]:
    """The characters of `a-b c d-e`, in hexadecimal."""
    bounds = [part.partition("-") for part in ranges.split()]
    return chain(*(range(int(a, 16), int(b or a, 16) + 1) for a, _, b in bounds))


_MARKS: Final = (
    "897 ece 1acf-1add 1ae0-1aeb a7f1 10d4e 10d69-10d6d 10d6f 10ec5 10efa-10eff 11241 113bb-113c0 "
    "113ce 113d0 113d2 113e1-113e2 11b60 11b62-11b64 11b66 11dd9 11f00-11f01 11f36-11f3a 11f40 "
    "11f42 11f5a 13439-13440 13447-13455 1611e-16129 1612d-1612f 16d40-16d42 16d6b-16d6c "
    "16ff2-16ff3 1e030-1e06d 1e08f 1e4eb-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1e6ff"
)
_LETTERS: Final = "1df25-1df2a"
_STAND_INS: Final = {
    **dict.fromkeys(_codes(_MARKS), "\u0301"),
    **dict.fromkeys(chain(_PAIRS, _CAPITALS, _codes(_LETTERS)), "a"),
    0x295: "1",
    0x1171E: "1",
    ord("İ"): "a",
}
"""Characters whose class is new, by one of the same class that Python knows: a mark, which stands
within a word, a letter, or neither. The form of a sigma depends on the classes around it."""
_NEWER: Final = re.compile(f"[{''.join(map(chr, _STAND_INS))}]")


def upper(text: str) -> str:
    """Capital letters."""
    return text.upper().translate(_CAPITALS)


def lower(text: str) -> str:
    """Small letters; a sigma at the end of a word has a form of its own."""
    if _SIGMA in text and _NEWER.search(text):
        shaped = text.translate(_STAND_INS).lower()
        pairs = zip(text, shaped, strict=True)
        text = "".join(small if letter == _SIGMA else letter for letter, small in pairs)
    return text.lower().translate(_PAIRS)


def initcap(text: str) -> str:
    """Words between single spaces, each with a capital letter first and small ones behind it."""
    return " ".join(map(_titled, text.split(" ")))


def _titled(word: str) -> str:
    return word[:1].title().translate(_CAPITALS) + lower(word)[len(lower(word[:1])) :]


@vector_function("spark_upper", ("VARCHAR",), "VARCHAR")
def _upper(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=upper)


@vector_function("spark_lower", ("VARCHAR",), "VARCHAR")
def _lower(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=lower)


@vector_function("spark_initcap", ("VARCHAR",), "VARCHAR")
def _initcap(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=initcap)
