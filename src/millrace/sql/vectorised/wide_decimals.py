"""Decimal arithmetic beyond 128 bits, for the few rows whose digits pass 38 on the way.

The engine calculates in 128 bits. Only rows that do not fit there reach this function: so it may
use Python's numbers of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from millrace.sql.engine_functions import vector_function

WIDE_DECIMAL: Final = "spark_wide_decimal"
_QUOTIENT_SCALE: Final = 38
"""The digits behind the point to which Spark divides before it rounds to those of the result."""


@vector_function(
    WIDE_DECIMAL,
    ("VARCHAR", "DECIMAL(38,0)", "DECIMAL(38,0)", "INTEGER", "INTEGER", "INTEGER", "INTEGER"),
    "DECIMAL(38,0)",
)
def _wide_decimal(*columns: pa.Array) -> pa.Array:
    """The digits of a + b, a - b, a * b or a / b; null if they are more than the precision."""
    symbols, lefts, rights, *sizes = columns
    if not len(symbols):
        return pa.array([], pa.decimal128(38, 0))
    left_scale, right_scale, scale, precision = (size[0].as_py() for size in sizes)
    step = _STEPS[symbols[0].as_py()]
    most = 10**precision
    digits: list[int | None] = []
    for left, right in zip(lefts.to_pylist(), rights.to_pylist(), strict=True):
        value = None
        if left is not None and right is not None and not (step is _divided and right == 0):
            value = step(int(left), int(right), left_scale, right_scale, scale)
            value = value if abs(value) < most else None
        digits.append(value)
    return pa.array(digits, pa.decimal128(38, 0))


def _rounded(digits: int, dropped: int) -> int:
    """Fewer digits, rounded half up; more if `dropped` is negative."""
    if dropped <= 0:
        return digits * int(10**-dropped)
    return _half_up(digits, 10**dropped)


def _half_up(dividend: int, divisor: int) -> int:
    sign = -1 if (dividend < 0) != (divisor < 0) else 1
    whole, rest = divmod(abs(dividend), abs(divisor))
    return sign * (whole + (2 * rest >= abs(divisor)))


def _added(left: int, right: int, left_scale: int, right_scale: int, scale: int) -> int:
    common = max(left_scale, right_scale)
    total = left * 10 ** (common - left_scale) + right * 10 ** (common - right_scale)
    return _rounded(total, common - scale)


def _multiplied(left: int, right: int, left_scale: int, right_scale: int, scale: int) -> int:
    return _rounded(left * right, left_scale + right_scale - scale)


def _divided(left: int, right: int, left_scale: int, right_scale: int, scale: int) -> int:
    shift = _QUOTIENT_SCALE - left_scale + right_scale
    dividend, divisor = left * 10 ** max(shift, 0), right * 10 ** max(-shift, 0)
    return _rounded(_half_up(dividend, divisor), _QUOTIENT_SCALE - scale)


_STEPS: Final[dict[str, Callable[[int, int, int, int, int], int]]] = {
    "+": _added,
    "-": lambda left, right, *scales: _added(left, -right, *scales),
    "*": _multiplied,
    "/": _divided,
}
