"""Literals with the types Spark gives them: 1 is an int, 1.5 a decimal(2,1), 1e3 a double."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.sql_mode import with_ansi
from millrace.sql.typed_sql import (
    ExpressionRefused,
    NotNative,
    TypedSql,
    as_type,
    text_literal,
)
from millrace.sql.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    PRECISION_MAX,
    SHORT,
    STRING,
    SqlType,
    decimal,
)

_BITS: Final = {BYTE: 8, SHORT: 16, INT: 32, LONG: 64}
_SUFFIXES: Final = {"L": LONG, "S": SHORT, "Y": BYTE}
_NANOSECONDS: Final = re.compile(r"\.\d{7,9}\b")
_PLAIN_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_PLAIN_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_MOMENT: Final = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d{1,9})?)?)?")


def string(value: str) -> TypedSql:
    """A text."""
    sql = as_type(text_literal(value), STRING)
    return TypedSql(sql=sql, type=STRING, label=value, literal=value, never_null=True)


def boolean(*, value: bool) -> TypedSql:
    """True or false."""
    word = "true" if value else "false"
    return TypedSql(sql=as_type(word, BOOLEAN), type=BOOLEAN, label=word, never_null=True)


def binary(digits: str) -> TypedSql:
    """X'1F'."""
    if len(digits) % 2:
        digits = "0" + digits
    sql = as_type(f"unhex('{digits}')", BINARY)
    return TypedSql(sql=sql, type=BINARY, label=f"X'{digits.upper()}'", never_null=True)


def number(written: str, suffix: str = "", *, negative: bool = False) -> TypedSql:
    """A number as it is written, with the suffix that gives its type."""
    sign = "-" if negative else ""
    if suffix in _SUFFIXES:
        return _whole(int(sign + written), _SUFFIXES[suffix])
    if suffix in ("D", "F") or (not suffix and "e" in written.lower()):
        return _floating(float(sign + written), FLOAT if suffix == "F" else DOUBLE)
    if suffix not in ("", "BD") or "e" in written.lower():
        raise ExpressionRefused(
            "the number cannot be read", found=written + suffix, fix="use a cast"
        )
    if "." not in written and not suffix:
        value = int(sign + written)
        for kind in (INT, LONG):
            if _fits(value, kind):
                return _whole(value, kind)
    return _exact(sign, written)


def _fits(value: int, kind: SqlType) -> bool:
    half = 1 << (_BITS[kind] - 1)
    return -half <= value < half


def _whole(value: int, kind: SqlType) -> TypedSql:
    if not _fits(value, kind):
        raise ExpressionRefused(f"{value} does not fit {kind}", fix="use a wider type")
    sql = as_type(f"{value}", kind)
    return TypedSql(sql=sql, type=kind, label=str(value), literal=value, never_null=True)


def _exact(sign: str, written: str) -> TypedSql:
    whole, _, behind = written.partition(".")
    digits = (whole + behind).lstrip("0")
    kind = decimal(max(len(digits), len(behind), 1), len(behind))
    if kind.precision > PRECISION_MAX:
        raise ExpressionRefused(
            "a decimal has at most 38 digits", found=written, fix="write it as a double"
        )
    value = f"{sign}{whole or '0'}{'.' + behind if behind else ''}"
    tiny = len(behind) - max(len(digits), 1) > 5  # noqa: PLR2004 - Java writes 1E-7 from there on
    label = None if tiny else f"{sign}{int(whole or '0')}{'.' + behind if behind else ''}"
    return TypedSql(sql=as_type(f"'{value}'", kind), type=kind, label=label, never_null=True)


def _floating(value: float, kind: SqlType) -> TypedSql:
    if value in (float("inf"), float("-inf")):
        raise ExpressionRefused("the number is beyond double", fix="write cast('inf' as double)")
    label = shown(value) if kind == DOUBLE else None
    return TypedSql(sql=as_type(f"'{value!r}'", kind), type=kind, label=label, never_null=True)


def shown(value: float) -> str | None:
    """A double as Java writes it, where that is certain."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:  # noqa: PLR2004 - Java's bounds
        return repr(value)
    return None


def dated(value: str, kind: SqlType) -> TypedSql:
    """DATE '2020-01-31' or TIMESTAMP '2020-01-31 10:00:00'."""
    plain = _PLAIN_DAY if kind == DATE else _PLAIN_MOMENT
    if _NANOSECONDS.search(value):
        raise NotNative("a time with nanoseconds has a type of its own", found=value, fix="")
    if not (_PLAIN_DAY if kind == DATE else _MOMENT).fullmatch(value):
        raise NotNative(
            f"the {kind} cannot be read here",
            found=value,
            fix="write 2020-01-31 or 2020-01-31 10:00:00; zones are left to the session",
        )
    _check_calendar(value, kind)
    label = f"{kind.name.upper()} '{value}'" if plain.fullmatch(value) else None
    with with_ansi(ansi=False):  # It was read above, and so cannot fail.
        return replace(cast(string(value), kind), label=label)


def _check_calendar(value: str, kind: SqlType) -> None:
    """Refuse a day or a time that no calendar has, at the call and not in a task."""
    numbers = [int(digits) for digits in re.findall(r"\d+", value.partition(".")[0])]
    try:
        if numbers[0]:  # Python has no year zero.
            datetime(*numbers)  # type: ignore[arg-type]  # noqa: DTZ001 - of no zone
    except ValueError as error:
        raise ExpressionRefused(
            f"there is no such {kind}", found=f"{value}: {error}", fix="write a day of the calendar"
        ) from None
