"""Numbers and texts put into a form."""

from __future__ import annotations

import re
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import ANY_NUMBER, function
from millrace.sql.functions.string_functions import TEXT
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined, text_literal
from millrace.sql.types import BOOLEAN, INT, STRING, VOID
from millrace.sql.vectorised import format_calls

VECTORISED: Final = (format_calls,)
"""Imported for the functions that they give the engine."""
_PLACE: Final = re.compile(r"%(?:(%)|(s)|(0?)([1-9][0-9]{0,2})?(d))")


@function("format_number(x, digits)", group=TEXT, least=2)
def _format_number(name: str, args: list[TypedSql]) -> TypedSql:
    x, digits = args
    if not (x.type.is_integer or x.type.is_decimal) or not digits.type.is_integer:
        raise NotNative(
            "format_number takes whole numbers and decimals, and a number of digits, here",
            found=f"{x.label or x.sql} of type {x.type}",
            fix="cast it to a decimal",
        )
    if not isinstance(digits.literal, int) or digits.literal > format_calls.DIGITS_MAX:
        raise NotNative("format_number needs its digits written out", fix="write a number")
    text = cast(x, STRING)
    sql = f"spark_format_number({text.sql}, {cast(digits, INT).sql})"
    return combined(sql, STRING, [x], label=call_label(name, args))


@function("format_string(format, a, ...); printf(format, a, ...)", group=TEXT, most=ANY_NUMBER)
def _format_string(name: str, args: list[TypedSql]) -> TypedSql:
    form, values = args[0].literal, iter(args[1:])
    if not isinstance(form, str):
        raise NotNative(f"{name} needs its format written out", fix="write it in quotes")
    parts, at = [], 0
    for place in _PLACE.finditer(form):
        parts.append(text_literal(_without_places(name, form[at : place.start()])))
        at = place.end()
        if place[1]:
            parts.append("'%'")
            continue
        value = next(values, None)
        if value is None:
            raise NotNative(f"{name} has fewer values than its format", fix="add values")
        parts.append(_written(name, value, place))
    parts.append(text_literal(_without_places(name, form[at:])))
    if next(values, None) is not None:
        raise NotNative(f"{name} has more values than its format", fix="leave them out")
    return combined(f"concat({', '.join(parts)})", STRING, args, label=call_label(name, args))


def _without_places(name: str, text: str) -> str:
    if "%" in text:
        raise NotNative(f"{name} takes %s, %d, %5d, %05d and %% here", found=text, fix="use those")
    return text


def _written(name: str, value: TypedSql, place: re.Match[str]) -> str:
    """The value at a place of the format; null is written as `null`."""
    whole = place[5] is not None
    fits = value.type.is_integer or (not whole and value.type in (STRING, BOOLEAN))
    if not fits or value.type == VOID:
        raise NotNative(
            f"{name} writes whole numbers, texts and booleans here",
            found=f"{value.label or value.sql} of type {value.type}",
            fix="cast it to string",
        )
    x = cast(value, STRING).sql
    if place[4] is None:
        return f"coalesce({x}, 'null')"
    size = int(place[4])
    null = "'null'"
    if not place[3]:
        return _padded(f"coalesce({x}, {null})", size)
    digits = f"ltrim({x}, '-')"
    sign = f"CASE WHEN {x} LIKE '-%' THEN '-' ELSE '' END"
    zeros = f"repeat('0', greatest({size} - length({x}), 0))"
    return f"coalesce({sign} || {zeros} || {digits}, {_padded(null, size)})"


def _padded(text: str, size: int) -> str:
    return f"(repeat(' ', greatest({size} - length({text}), 0)) || {text})"
