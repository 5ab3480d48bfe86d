"""Numbers as formatted text, once for each distinct number of a call."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

import pyarrow as pa

from millrace.sql.engine_functions import vector_function
from millrace.sql.vectorised.distinct_values import per_value

_EXACT: Final = Context(prec=1000, rounding=ROUND_HALF_EVEN)
DIGITS_MAX: Final = 300


@vector_function("spark_format_number", ("VARCHAR", "INTEGER"), "VARCHAR")
def _format_number(numbers: pa.Array, digits: pa.Array) -> pa.Array:
    return per_value(numbers, digits, call=format_number)


def format_number(number: str, digits: int) -> str | None:
    """A number with commas between thousands, rounded half even."""
    if digits < 0:
        return None
    rounded = Decimal(number).quantize(Decimal(1).scaleb(-min(digits, DIGITS_MAX)), context=_EXACT)
    return f"{rounded:,f}"
