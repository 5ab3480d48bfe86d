"""Arithmetic with Spark's types and values: overflow and division by zero are errors.

Invariant: decimals are calculated exactly and rounded once, half up. Where the digits of a step
could pass 38 the step is done in 128 bits and fails when a value does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.terms import ExpressionRefused, Term, failure, made
from millrace.sql.types import (
    DOUBLE,
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

# A product that may pass 38 digits is still taken if this many fit before its point.
_WHOLE_KEPT: Final = 12
_DIVIDED: Final = "division by zero; guard the divisor with nullif(x, 0)"


def arithmetic(symbol: str, left: Term, right: Term) -> Term:
    """One of + - * / % div between two numbers."""
    left, right = _typed(symbol, left, right)
    label = None
    if left.label is not None and right.label is not None:
        label = f"({left.label} {symbol} {right.label})"
    if left.type.is_decimal or right.type.is_decimal:
        if left.type.is_floating or right.type.is_floating:
            left, right = cast(left, DOUBLE), cast(right, DOUBLE)
        else:
            one, two = in_decimal(left), in_decimal(right)
            return _labelled(_DECIMAL[symbol](one, two), label)
    return _labelled(_plain(symbol, left, right), label)


def _labelled(term: Term, label: str | None) -> Term:
    return Term(sql=term.sql, type=term.type, columns=term.columns, label=label, raises=term.raises)


def _typed(symbol: str, left: Term, right: Term) -> tuple[Term, Term]:
    for side, term in (("left", left), ("right", right)):
        if not term.type.is_numeric and term.type != VOID:
            raise ExpressionRefused(
                f"the {side} side of {symbol} is not a number",
                found=f"{term.label or term.sql} of type {term.type}",
                fix="cast it to a number",
            )
    if left.type == VOID and right.type == VOID:
        raise ExpressionRefused(f"both sides of {symbol} are NULL", fix="cast one of them")
    if left.type == VOID:
        left = cast(left, right.type)
    if right.type == VOID:
        right = cast(right, left.type)
    return left, right


def in_decimal(term: Term) -> Term:
    """A whole number as a decimal: a literal by its own digits, a column by its type's."""
    if term.type.is_decimal:
        return term
    if isinstance(term.literal, int):
        return cast(term, decimal(max(1, len(str(abs(term.literal)))), 0))
    return cast(term, as_decimal(term.type))


def _plain(symbol: str, left: Term, right: Term) -> Term:
    kind = common(left.type, right.type)
    assert kind is not None
    if symbol == "/":
        kind = DOUBLE
    elif symbol == "div":
        if kind.is_floating:
            raise ExpressionRefused(
                "div needs whole numbers or decimals",
                found=f"{left.type} and {right.type}",
                fix="use floor(a / b)",
            )
        kind = LONG
    one, two = cast(left, kind), cast(right, kind)
    if symbol in ("+", "-", "*"):
        return made(f"({one.sql} {symbol} {two.sql})", kind, [one, two], raises=kind.is_integer)
    if symbol == "%":
        value = f"({one.sql} % {two.sql})"
        if kind.is_integer and not _nonzero(right):
            value = f"CASE WHEN {two.sql} = -1 THEN {one.sql} - {one.sql} ELSE {value} END"
    else:
        value = f"({one.sql} {'//' if symbol == 'div' else '/'} {two.sql})"
    return divided(value, kind, one, two, never_zero=_nonzero(right))


def _nonzero(term: Term) -> bool:
    return isinstance(term.literal, int) and term.literal not in (0, -1)


def divided(value: str, kind: SqlType, one: Term, two: Term, *, never_zero: bool) -> Term:
    """A quotient or remainder that fails for a divisor of zero."""
    if never_zero:
        return made(value, kind, [one, two])
    stop = f"CASE WHEN {one.sql} IS NULL THEN NULL ELSE {failure(_DIVIDED)} END"
    sql = f"CASE WHEN {two.sql} = 0 THEN {stop} ELSE {value} END"
    return made(sql, kind, [one, two], raises=True)


def negated(term: Term) -> Term:
    """Unary minus."""
    label = None if term.label is None else f"(- {term.label})"
    if not term.type.is_numeric:
        raise ExpressionRefused(
            "the operand of - is not a number",
            found=f"{term.label or term.sql} of type {term.type}",
            fix="cast it to a number",
        )
    return made(f"(-{term.sql})", term.type, [term], label=label, raises=term.type.is_integer)


def _wholes(*kinds: SqlType) -> int:
    return max(kind.precision - kind.scale for kind in kinds)


def _added(symbol: str) -> Callable[[Term, Term], Term]:
    def build(one: Term, two: Term) -> Term:
        scale = max(one.type.scale, two.type.scale)
        precision = _wholes(one.type, two.type) + scale + 1
        kind = adjusted(precision, scale)
        if precision > PRECISION_MAX + 1:
            raise _too_wide(symbol, one, two)
        step = decimal(min(precision, PRECISION_MAX), scale)
        a, b = cast(one, step), cast(two, step)
        raises = precision > PRECISION_MAX
        return made(f"({a.sql} {symbol} {b.sql})", kind, [one, two], raises=raises)

    return build


def _too_wide(symbol: str, one: Term, two: Term) -> ExpressionRefused:
    return ExpressionRefused(
        f"{symbol} of {one.type} and {two.type} needs more than 38 digits on the way",
        found=f"{one.label or one.sql} and {two.label or two.sql}",
        fix="cast one side to fewer digits, or to double",
    )


def _multiplied(one: Term, two: Term) -> Term:
    scale = one.type.scale + two.type.scale
    digits = one.type.precision + two.type.precision
    if digits > PRECISION_MAX and PRECISION_MAX - scale < _WHOLE_KEPT:
        raise _too_wide("*", one, two)
    kind = adjusted(digits + 1, scale)
    raises = digits > PRECISION_MAX
    return made(f"({_wide(one)} * {two.sql})", kind, [one, two], raises=raises)


def _wide(term: Term) -> str:
    """A decimal in 128 bits: DuckDB multiplies two short ones in 64 and fails beyond."""
    return f"CAST({term.sql} AS DECIMAL({PRECISION_MAX},{term.type.scale}))"


def unscaled(term: Term) -> str:
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


def quotient(one: Term, two: Term, kind: SqlType) -> str:
    """A decimal divided by another, exact and rounded half up to the scale of `kind`."""
    shift = kind.scale - one.type.scale + two.type.scale
    assert shift >= 0
    n = unscaled(one)
    if shift:
        n = f"({n} * CAST('{10**shift}' AS HUGEINT))"
    d = unscaled(two)
    rest = f"abs({n} % {d})"
    away = f"CASE WHEN ({n} < 0) = ({d} < 0) THEN 1 ELSE -1 END"
    whole = f"(({n} // {d}) + CASE WHEN {rest} >= abs({d}) - {rest} THEN {away} ELSE 0 END)"
    return scaled(whole, kind)


def _decimal_divided(one: Term, two: Term) -> Term:
    scale = max(SCALE_KEPT, one.type.scale + two.type.precision + 1)
    kind = adjusted(one.type.precision - one.type.scale + two.type.scale + scale, scale)
    return divided(quotient(one, two, kind), kind, one, two, never_zero=False)


def _same_scale(symbol: str, one: Term, two: Term) -> tuple[Term, Term]:
    scale = max(one.type.scale, two.type.scale)
    precision = _wholes(one.type, two.type) + scale
    if precision > PRECISION_MAX:
        raise _too_wide(symbol, one, two)
    kind = decimal(precision, scale)
    return cast(one, kind), cast(two, kind)


def _decimal_rest(one: Term, two: Term) -> Term:
    a, b = _same_scale("%", one, two)
    whole = min(one.type.precision - one.type.scale, two.type.precision - two.type.scale)
    kind = adjusted(whole + a.type.scale, a.type.scale)
    return divided(f"({a.sql} % {b.sql})", kind, a, b, never_zero=False)


def _decimal_div(one: Term, two: Term) -> Term:
    a, b = _same_scale("div", one, two)
    return divided(f"({unscaled(a)} // {unscaled(b)})", LONG, a, b, never_zero=False)


_DECIMAL: Final[dict[str, Callable[[Term, Term], Term]]] = {
    "+": _added("+"),
    "-": _added("-"),
    "*": _multiplied,
    "/": _decimal_divided,
    "%": _decimal_rest,
    "div": _decimal_div,
}
