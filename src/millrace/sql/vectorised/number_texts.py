"""Numbers written in ways that Java reads and the engine does not: once for each distinct text.

Null stands for a text that is no number. Java takes blanks and control characters around a number,
digits of all scripts in decimals, and hexadecimal digits, suffixes and words in doubles.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

import pyarrow as pa

from millrace.sql.engine_functions import vector_function
from millrace.sql.vectorised.distinct_values import per_value

_BLANKS: Final = "".join(map(chr, range(33)))
_DECIMAL: Final = re.compile(r"([+-]?)(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d+))?")
_DOUBLE: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[fFdD]?$)")
_HEX: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+(?=[fFdD]?$)"
)
_WORDS: Final = {"NaN": "nan", "+NaN": "nan", "-NaN": "nan"}
_NAMES: Final = frozenset({"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "nan"})
_CHAR_MAX: Final = "\uffff"
"""Java reads digits by chars of 16 bits, and takes none that needs two of them."""
_EXPONENT_MAX: Final = 2**31 - 1
_DIGITS_MAX: Final = 60
_EXACT: Final = Context(prec=200_000, rounding=ROUND_HALF_UP, Emax=10**9, Emin=-(10**9))


@vector_function("spark_decimal_text", ("VARCHAR", "INTEGER"), "VARCHAR", version=2)
def _decimal_text(texts: pa.Array, scales: pa.Array) -> pa.Array:
    return per_value(texts, scales, call=decimal_text)


def decimal_text(text: str, scale: int) -> str | None:
    """The digits of a number, rounded half up; too many before the point stay too many."""
    match = _DECIMAL.fullmatch(text.strip(_BLANKS))
    if match is None or max(text) > _CHAR_MAX:
        return None
    whole, behind = match[2] or "", match[3] or match[4] or ""
    exponent = int(match[5] or 0)
    if abs(exponent) > _EXPONENT_MAX or abs(len(behind) - exponent) > _EXPONENT_MAX:
        return None
    digits = str(int(whole + behind or "0"))
    exponent -= len(behind)
    if digits == "0":
        return "0"
    if len(digits) + exponent > _DIGITS_MAX:
        return "9" * _DIGITS_MAX
    if len(digits) + exponent < -_DIGITS_MAX:
        return "0"
    number = Decimal(f"{match[1]}{digits}e{exponent}")
    return f"{number.quantize(Decimal(1).scaleb(-scale), context=_EXACT):f}"


@vector_function("spark_double_of_text", ("VARCHAR",), "DOUBLE")
def _double_of_text(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=double_of_text, kind=pa.float64())


def double_of_text(text: str) -> float | None:
    """The double that Java reads."""
    bare = text.strip(_BLANKS)
    if bare in _WORDS or bare.lower() in _NAMES:
        return float(_WORDS.get(bare, bare))
    plain, hexadecimal = _DOUBLE.match(bare), _HEX.match(bare)
    if plain is not None:
        return float(plain[0])
    if hexadecimal is None:
        return None
    try:
        return float.fromhex(hexadecimal[0])
    except OverflowError:
        return float("-inf" if bare.startswith("-") else "inf")
