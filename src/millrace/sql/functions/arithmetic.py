"""Arithmetic with Spark's types and values: overflow and division by zero are errors.

Invariant: decimals are calculated exactly and rounded once, half up. Where the digits of a step
could pass 38 the step is done in 128 bits, and for values that do not fit there in more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.lenient_casts import wrapped
from millrace.sql.functions.nested.nested_sql import named
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.typed_sql import NotNative, TypedSql, as_type, combined, failure
from millrace.sql.types import (
    DOUBLE,
    INT,
    LONG,
    PRECISION_MAX,
    SCALE_KEPT,
    VOID,
    SqlType,
    adjusted,
    as_decimal,
    common,
    decimal,
)
from millrace.sql.vectorised.wide_decimals import WIDE_DECIMAL

# A product that may pass 38 digits is still taken if this many fit before its point.
_WHOLE_KEPT: Final = 12
_SIGNED_DIGITS_MAX: Final = 34
_LONG_DIGITS: Final = 18
_INTEGER_MAX: Final = 2**31 - 1
_REPEATED_CHARS: Final = 300
"""Operands of decimals are repeated up to this length: lambdas cost time for each row."""
_DIVIDED: Final = "division by zero; guard the divisor with nullif(x, 0)"


def arithmetic(symbol: str, left: TypedSql, right: TypedSql) -> TypedSql:
    """One of + - * / % div between two numbers."""
    left, right = _typed(symbol, left, right)
    label = None
    if left.label is not None and right.label is not None:
        label = f"({left.label} {symbol} {right.label})"
    if left.type.is_decimal or right.type.is_decimal:
        if left.type.is_floating or right.type.is_floating:
            left, right = cast(left, DOUBLE), cast(right, DOUBLE)
        else:
            return replace(_decimal_term(symbol, left, right), label=label)
    term = _left_first(left, right, _plain(symbol, left, right))
    certain = symbol in ("+", "-", "*") and left.never_null and right.never_null
    return replace(term, label=label, never_null=certain)


def _decimal_term(symbol: str, left: TypedSql, right: TypedSql) -> TypedSql:
    """An operator over decimals, whose SQL repeats its operands: long ones get names."""
    first, second = in_decimal(left), in_decimal(right)

    def over(a: str, b: str) -> TypedSql:
        return _DECIMAL[symbol](replace(first, sql=a), replace(second, sql=b))

    def over_left(a: str) -> str:
        value = named([second.sql], lambda b: over(a, b).sql, short_chars=_REPEATED_CHARS)
        return _null_with(a, value) if right.raises else value

    sql = named([first.sql], over_left, short_chars=_REPEATED_CHARS)
    return replace(over("a", "b"), sql=sql)


def _left_first(left: TypedSql, right: TypedSql, value: TypedSql) -> TypedSql:
    """As in Spark: a null on the left is the result, whether or not the right side fails."""
    if not right.raises:
        return value
    return replace(value, sql=_null_with(left.sql, value.sql))


def _null_with(test: str, value: str) -> str:
    return f"CASE WHEN {test} IS NULL THEN NULL ELSE {value} END"


def _typed(symbol: str, left: TypedSql, right: TypedSql) -> tuple[TypedSql, TypedSql]:
    for side, term in (("left", left), ("right", right)):
        if not term.type.is_numeric and term.type != VOID:
            raise NotNative(
                f"the {side} side of {symbol} is not a number",
                found=f"{term.label or term.sql} of type {term.type}",
                fix="cast it to a number",
            )
    if left.type == VOID and right.type == VOID:
        raise NotNative(f"both sides of {symbol} are NULL", fix="cast one of them")
    if left.type == VOID:
        left = cast(left, right.type)
    if right.type == VOID:
        right = cast(right, left.type)
    return left, right


def in_decimal(term: TypedSql) -> TypedSql:
    """A whole number as a decimal: a literal by its own digits, a column by its type's."""
    if term.type.is_decimal:
        return term
    if isinstance(term.literal, int):
        return cast(term, decimal(max(1, len(str(abs(term.literal)))), 0))
    return cast(term, as_decimal(term.type))


def _plain(symbol: str, left: TypedSql, right: TypedSql) -> TypedSql:
    kind = common(left.type, right.type)
    assert kind is not None
    if symbol == "/":
        kind = DOUBLE
    elif symbol == "div":
        if kind.is_floating:
            raise NotNative(
                "div needs whole numbers or decimals",
                found=f"{left.type} and {right.type}",
                fix="use floor(a / b)",
            )
        kind = LONG
    first, second = cast(left, kind), cast(right, kind)
    if symbol in ("+", "-", "*"):
        value = f"({first.sql} {symbol} {second.sql})"
        if kind.is_integer and not in_ansi_mode():
            return combined(_wrapped(symbol, first, second), kind, [first, second])
        raises = kind.is_integer and not (kind in (INT, LONG) and _fits_int(symbol, left, right))
        return combined(value, kind, [first, second], raises=raises)
    if symbol == "%":
        value = f"({first.sql} % {second.sql})"
        if kind.is_integer and not _nonzero(right):
            value = f"CASE WHEN {second.sql} = -1 THEN {first.sql} - {first.sql} ELSE {value} END"
    else:
        value = f"({first.sql} {'//' if symbol == 'div' else '/'} {second.sql})"
        if symbol == "div" and not in_ansi_mode():
            zero = TypedSql(sql=as_type("0", kind), type=kind)
            wrapped = _wrapped("-", zero, first)
            value = f"CASE WHEN {second.sql} = -1 THEN {wrapped} ELSE {value} END"
    return divided(value, kind, first, second, never_zero=_nonzero(right))


def _fits_int(symbol: str, left: TypedSql, right: TypedSql) -> bool:
    """Whether both sides are literals, and their result is an int."""
    if not isinstance(left.literal, int) or not isinstance(right.literal, int):
        return False
    results = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    result: int = results[symbol](left.literal, right.literal)
    return abs(result) <= _INTEGER_MAX


def _wrapped(symbol: str, left: TypedSql, right: TypedSql) -> str:
    """Whole numbers that wrap around at the ends of their type, as Java's do."""
    wide = f"(CAST({left.sql} AS HUGEINT) {symbol} CAST({right.sql} AS HUGEINT))"
    return f"coalesce(TRY({left.sql} {symbol} {right.sql}), {wrapped(wide, left.type)})"


def _nonzero(term: TypedSql) -> bool:
    return isinstance(term.literal, int) and term.literal not in (0, -1)


def divided(
    value: str, kind: SqlType, left: TypedSql, right: TypedSql, *, never_zero: bool
) -> TypedSql:
    """A quotient or remainder that fails for a divisor of zero."""
    if never_zero:
        return combined(value, kind, [left, right])
    if not in_ansi_mode():
        return combined(
            f"CASE WHEN {right.sql} = 0 THEN NULL ELSE {value} END", kind, [left, right]
        )
    stop = f"CASE WHEN {left.sql} IS NULL THEN NULL ELSE {failure(_DIVIDED)} END"
    sql = f"CASE WHEN {right.sql} = 0 THEN {stop} ELSE {value} END"
    return combined(sql, kind, [left, right], raises=True)


def negated(term: TypedSql) -> TypedSql:
    """Unary minus."""
    label = None if term.label is None else f"(- {term.label})"
    if not term.type.is_numeric:
        raise NotNative(
            "the operand of - is not a number",
            found=f"{term.label or term.sql} of type {term.type}",
            fix="cast it to a number",
        )
    keeps_digits(term, "-")
    if term.type.is_integer and not in_ansi_mode():
        zero = TypedSql(sql=as_type("0", term.type), type=term.type)
        return combined(_wrapped("-", zero, term), term.type, [term], label=label)
    return combined(f"(-{term.sql})", term.type, [term], label=label, raises=term.type.is_integer)


def keeps_digits(term: TypedSql, where: str) -> TypedSql:
    """Leave to Spark a decimal of so many digits that Spark rounds it when its sign changes."""
    if term.type.is_decimal and term.type.precision > _SIGNED_DIGITS_MAX:
        raise NotNative(
            f"{where} of {term.type} rounds to {_SIGNED_DIGITS_MAX} digits in Spark",
            found=term.label or term.sql,
            fix="cast it to fewer digits",
        )
    return term


def _wholes(*kinds: SqlType) -> int:
    return max(kind.precision - kind.scale for kind in kinds)


def _added(symbol: str) -> Callable[[TypedSql, TypedSql], TypedSql]:
    def build(first: TypedSql, second: TypedSql) -> TypedSql:
        scale = max(first.type.scale, second.type.scale)
        precision = _wholes(first.type, second.type) + scale + 1
        kind = adjusted(precision, scale)
        if precision > PRECISION_MAX + 1:
            raise _too_wide(symbol, first, second)
        step = decimal(min(precision, PRECISION_MAX), scale)
        a, b = cast(first, step), cast(second, step)
        value = as_type(f"({a.sql} {symbol} {b.sql})", kind)
        if precision > PRECISION_MAX:
            return _checked(symbol, value, kind, first, second)
        return combined(value, kind, [first, second])

    return build


def _too_wide(symbol: str, left: TypedSql, right: TypedSql) -> NotNative:
    return NotNative(
        f"{symbol} of {left.type} and {right.type} needs more than 38 digits on the way",
        found=f"{left.label or left.sql} and {right.label or right.sql}",
        fix="cast one side to fewer digits, or to double",
    )


def _multiplied(left: TypedSql, right: TypedSql) -> TypedSql:
    scale = left.type.scale + right.type.scale
    digits = left.type.precision + right.type.precision
    if digits > PRECISION_MAX and PRECISION_MAX - scale < _WHOLE_KEPT:
        raise _too_wide("*", left, right)
    kind = adjusted(digits + 1, scale)
    value = as_type(f"({_wide(left)} * {right.sql})", kind)
    if digits > PRECISION_MAX:
        return _checked("*", value, kind, left, right)
    return combined(value, kind, [left, right])


def _checked(symbol: str, value: str, kind: SqlType, left: TypedSql, right: TypedSql) -> TypedSql:
    """A value in 128 bits; where they overflow, in more; an error where it does not fit `kind`."""
    numbers = (left.type.scale, right.type.scale, kind.scale, kind.precision)
    sides = f"CAST({unscaled(left)} AS DECIMAL(38,0)), CAST({unscaled(right)} AS DECIMAL(38,0))"
    listed = ", ".join(map(str, numbers))
    digits = f"{WIDE_DECIMAL}('{symbol}', {sides}, {listed})"
    wide = as_type(scaled(digits, kind), kind)
    ansi = in_ansi_mode()
    stop = failure(f"the result of {symbol} does not fit {kind}") if ansi else "NULL"
    missing = f"{left.sql} IS NULL OR {right.sql} IS NULL"
    # DuckDB refuses TRY around what calls error(), as operands that can fail do.
    narrow = f"TRY({value})"
    if left.raises or right.raises:
        narrow = f"CASE WHEN {_fits(symbol, kind, left, right)} THEN {value} END"
    sql = f"CASE WHEN {missing} THEN NULL ELSE coalesce({narrow}, {wide}, {stop}) END"
    return combined(sql, kind, [left, right], raises=ansi)


def _fits(symbol: str, kind: SqlType, left: TypedSql, right: TypedSql) -> str:
    """Whether 128 bits hold a value and the steps to it; false for some that they just hold."""
    a, b = (f"abs(CAST({term.sql} AS DOUBLE))" for term in (left, right))
    scales = left.type.scale, right.type.scale
    whole = kind.precision - kind.scale
    if symbol == "*":
        return f"{a} * {b} < 9e{min(whole, PRECISION_MAX - sum(scales)) - 1}"
    if symbol == "/":
        shifted = PRECISION_MAX - kind.scale - right.type.scale - 1
        return f"{a} < 9e{shifted} AND {a} < {b} * 9e{whole - 1}"
    return f"{a} + {b} < 9e{min(whole, PRECISION_MAX - max(scales)) - 1}"


def _wide(term: TypedSql) -> str:
    """A decimal in 128 bits: DuckDB multiplies two short ones in 64 and fails beyond."""
    return f"CAST({term.sql} AS DECIMAL({PRECISION_MAX},{term.type.scale}))"


def unscaled(term: TypedSql) -> str:
    """A decimal's digits without the point, as a 128-bit whole number."""
    precision, scale = term.type.precision, term.type.scale
    if scale == 0:
        return f"CAST({term.sql} AS HUGEINT)"
    if precision + scale + 1 <= PRECISION_MAX:
        power = f"CAST({10**scale} AS DECIMAL({scale + 1},0))"
        return f"CAST({_wide(term)} * {power} AS HUGEINT)"
    return f"CAST(replace(CAST({term.sql} AS VARCHAR), '.', '') AS HUGEINT)"


def scaled(sql: str, kind: SqlType) -> str:
    """A 128-bit whole number as the digits of a decimal."""
    if kind.scale == 0:
        return f"CAST({sql} AS DECIMAL(38,0))"
    unit = "0." + "0" * (kind.scale - 1) + "1"
    return f"(CAST({sql} AS DECIMAL(38,0)) * CAST('{unit}' AS DECIMAL({kind.scale},{kind.scale})))"


def quotient(dividend: TypedSql, divisor: TypedSql, kind: SqlType) -> str:
    """A decimal divided by another, exact and rounded half up to the scale of `kind`."""
    shift = kind.scale - dividend.type.scale + divisor.type.scale
    assert shift >= 0
    n, d = _short_digits(dividend, shift), _short_digits(divisor, 0)
    if n is None or d is None:
        n, d = unscaled(dividend), unscaled(divisor)
        n = f"({n} * CAST('{10**shift}' AS HUGEINT))" if shift else n
    rest = f"abs({n} % {d})"
    away = f"CASE WHEN ({n} < 0) = ({d} < 0) THEN 1 ELSE -1 END"
    whole = f"(({n} // {d}) + CASE WHEN {rest} >= abs({d}) - {rest} THEN {away} ELSE 0 END)"
    return scaled(whole, kind)


def _short_digits(term: TypedSql, shift: int) -> str | None:
    """A decimal's digits, with some more zeros, as a 64-bit whole number; None if they may not fit.

    128 bits take several times as long.
    """
    power = term.type.scale + shift
    if term.type.precision + power + 1 > _LONG_DIGITS:
        return None
    return f"CAST({term.sql} * CAST({10**power} AS DECIMAL({power + 1},0)) AS BIGINT)"


def _decimal_divided(dividend: TypedSql, divisor: TypedSql) -> TypedSql:
    scale = max(SCALE_KEPT, dividend.type.scale + divisor.type.precision + 1)
    precision = dividend.type.precision - dividend.type.scale + divisor.type.scale + scale
    kind = adjusted(precision, scale)
    value = as_type(quotient(dividend, divisor, kind), kind)
    if precision > PRECISION_MAX:  # With fewer digits the dividend and all quotients fit.
        value = _checked("/", value, kind, dividend, divisor).sql
    return divided(value, kind, dividend, divisor, never_zero=False)


def _same_scale(symbol: str, left: TypedSql, right: TypedSql) -> tuple[TypedSql, TypedSql]:
    scale = max(left.type.scale, right.type.scale)
    precision = _wholes(left.type, right.type) + scale
    if precision > PRECISION_MAX:
        raise _too_wide(symbol, left, right)
    kind = decimal(precision, scale)
    return cast(left, kind), cast(right, kind)


def _decimal_rest(dividend: TypedSql, divisor: TypedSql) -> TypedSql:
    a, b = _same_scale("%", dividend, divisor)
    whole = min(
        dividend.type.precision - dividend.type.scale, divisor.type.precision - divisor.type.scale
    )
    kind = adjusted(whole + a.type.scale, a.type.scale)
    return divided(f"({a.sql} % {b.sql})", kind, a, b, never_zero=False)


def _decimal_div(dividend: TypedSql, divisor: TypedSql) -> TypedSql:
    a, b = _same_scale("div", dividend, divisor)
    # What is beyond a bigint wraps around, also in ANSI mode.
    value = wrapped(f"{unscaled(a)} // {unscaled(b)}", LONG)
    return divided(value, LONG, a, b, never_zero=False)


_DECIMAL: Final[dict[str, Callable[[TypedSql, TypedSql], TypedSql]]] = {
    "+": _added("+"),
    "-": _added("-"),
    "*": _multiplied,
    "/": _decimal_divided,
    "%": _decimal_rest,
    "div": _decimal_div,
}
