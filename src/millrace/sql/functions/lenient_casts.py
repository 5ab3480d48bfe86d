"""Casts as with spark.sql.ansi.enabled = false: what does not fit wraps, saturates or is null.

Invariant: a cast of this table never fails. A pair that is not here is as in ANSI mode where that
cannot fail, and else left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.sql.functions.cast_texts import (
    BLANK,
    BLANK_OR_DELETE,
    NUMBER,
    PLAIN_NUMBER,
    between,
    word_steps,
)
from millrace.sql.typed_sql import NotNative, TypedSql, as_type, text_literal
from millrace.sql.types import (
    BYTE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    PRECISION_MAX,
    SHORT,
    SqlType,
    to_duckdb,
)

BITS: Final = {BYTE: 8, SHORT: 16, INT: 32, LONG: 64}
# The digits before a point count; what follows it must be digits as well.
_CUT_OFF: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]*)"
_WHOLE_PART: Final = r"[+-]?[0-9]*"
DOUBLE_DIGITS_CERTAIN: Final = 15
"""Doubles with no more digits before the point print the same digits in every Java."""


def wrapped(whole: str, kind: SqlType) -> str:
    """A 128-bit whole number, cut down to the bits of its type as Java does."""
    half = 1 << (BITS[kind] - 1)
    bits = f"CAST({2 * half - 1} AS HUGEINT)"
    return as_type(f"((({whole}) + CAST({half} AS HUGEINT)) & {bits}) - {half}", kind)


def _or_null(sql: str, to: SqlType) -> str:
    return f"TRY_CAST({sql} AS {to_duckdb(to)})"


def _fitting(term: TypedSql, to: SqlType) -> str:
    return _or_null(term.sql, to)


def _integer_to_integer(term: TypedSql, to: SqlType) -> str:
    if BITS[to] >= BITS[term.type]:
        return term.sql
    return wrapped(f"CAST({term.sql} AS HUGEINT)", to)


def _decimal_to_integer(term: TypedSql, to: SqlType) -> str:
    return wrapped(f"CAST(trunc({term.sql}) AS HUGEINT)", to)


def _floating_to_integer(term: TypedSql, to: SqlType) -> str:
    """Java's way: NaN is 0, what is beyond is the end of the type; small types go through int."""
    x = as_type(term.sql, DOUBLE)
    step = LONG if to == LONG else INT
    half = 1 << (BITS[step] - 1)
    ends = (
        f"WHEN isnan({x}) THEN 0 WHEN {x} >= CAST({half} AS DOUBLE) THEN {half - 1} "
        f"WHEN {x} <= CAST({-half} AS DOUBLE) THEN {-half}"
    )
    whole = f"CASE WHEN {x} IS NULL THEN NULL {ends} ELSE CAST(trunc({x}) AS HUGEINT) END"
    return wrapped(whole, to) if BITS[to] < BITS[step] else as_type(whole, to)


def finite_digits(term: TypedSql, to: SqlType, *, tried: bool = False) -> str:
    """The digits of a double as Java writes them, null for NaN and infinities."""
    if to.precision - to.scale > DOUBLE_DIGITS_CERTAIN:
        raise NotNative(
            f"{term.type} cannot be cast to {to}",
            found=f"{term.label or term.sql}: how Java writes a double of 2^53 or more depends on "
            "its version",
            fix=f"use a decimal with at most {DOUBLE_DIGITS_CERTAIN} digits before the point",
        )
    if to.scale == PRECISION_MAX:
        raise NotNative(f"{term.type} cannot be cast to {to}", found=term.label or term.sql, fix="")
    x = as_type(term.sql, DOUBLE)
    # The engine does not check the digits before the point of a text with an exponent.
    beyond = (
        f"WHEN abs({x}) >= 1e{to.precision - to.scale} THEN CAST({x} AS VARCHAR) || ' is beyond'"
    )
    digits = f"CASE WHEN isnan({x}) OR isinf({x}) THEN NULL {beyond} ELSE CAST({x} AS VARCHAR) END"
    if to.precision == to.scale:  # The engine reads no exponent into a type of fractions alone.
        wider = f"DECIMAL({to.precision + 1},{to.scale})"
        return f"TRY_CAST({digits} AS {wider})" if tried else f"CAST({digits} AS {wider})"
    return digits


def _floating_to_decimal(term: TypedSql, to: SqlType) -> str:
    return _or_null(finite_digits(term, to, tried=True), to)


def _text_to_integer(term: TypedSql, to: SqlType) -> str:
    x = term.sql
    good = f"regexp_full_match({x}, {between(BLANK_OR_DELETE, _CUT_OFF)})"
    pattern = text_literal(rf"^{BLANK_OR_DELETE}({_WHOLE_PART})")
    digits = f"regexp_extract({x}, {pattern}, 1)"
    value = f"CASE WHEN {digits} IN ('', '+', '-') THEN 0 ELSE {_or_null(digits, to)} END"
    return f"CASE WHEN {good} THEN {value} END"


def _text_to_decimal(term: TypedSql, to: SqlType) -> str:
    x = term.sql
    good = f"regexp_full_match({x}, {between(BLANK, PLAIN_NUMBER)})"
    digits = _or_null(f"regexp_extract({x}, {text_literal(PLAIN_NUMBER)})", to)
    rare = _or_null(f"spark_decimal_text({x}, {to.scale})", to)
    return f"CASE WHEN {good} THEN {digits} ELSE {rare} END"


def _text_to_floating(term: TypedSql, to: SqlType) -> str | None:
    if to == FLOAT:
        return None
    x = term.sql
    good = f"regexp_full_match({x}, {between(BLANK, NUMBER)})"
    number = _or_null(f"regexp_extract({x}, {text_literal(NUMBER)})", DOUBLE)
    return f"CASE WHEN {good} THEN {number} ELSE spark_double_of_text({x}) END"


def _text_to_boolean(term: TypedSql, _: SqlType) -> str:
    return f"CASE {word_steps(term.sql)} END"


LENIENT: Final[dict[tuple[str, str], Callable[[TypedSql, SqlType], str | None]]] = {
    ("integer", "integer"): _integer_to_integer,
    ("integer", "decimal"): _fitting,
    ("floating", "integer"): _floating_to_integer,
    ("floating", "decimal"): _floating_to_decimal,
    ("decimal", "decimal"): _fitting,
    ("decimal", "integer"): _decimal_to_integer,
    ("string", "integer"): _text_to_integer,
    ("string", "decimal"): _text_to_decimal,
    ("string", "floating"): _text_to_floating,
    ("string", "boolean"): _text_to_boolean,
}
"""For two families of types the SQL of the cast; None leaves it to Spark."""
