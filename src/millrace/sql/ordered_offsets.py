"""Offsets between ordered values: a number between numbers, an interval between times.

Invariant: an offset fits the type it was read for, and covers the same values as the one given. For
whole numbers it is a whole number, for decimals it has at most their digits after the point.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from numbers import Integral, Real
from typing import Final

from millrace.errors import UserError
from millrace.sql.functions.dates import Span
from millrace.sql.types import DATE, PRECISION_MAX, TIMESTAMP, TIMESTAMP_NTZ, SqlType

OffsetValue = int | float | Decimal | str
Offset = int | float | Decimal | Span
DAY_MICROS: Final = 86_400_000_000
LONG_MAX: Final = (1 << 63) - 1
LONG_MIN: Final = -(1 << 63)
TIMES: Final = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_EXACT: Final = Context(prec=800)
_PART: Final = re.compile(r"\s*([+-]?\d+)(\.\d{1,6})?\s+([a-z]+)\s*")
_MONTHS: Final = {"year": 12, "month": 1}
_DAYS: Final = {"week": 7, "day": 1}
_MICROS: Final = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_MONTH_DAYS: Final = (28, 31)
_MONTHS_MAX: Final = (1 << 31) - 1
_CLOCK_CHANGE: Final = 26 * 3_600_000_000
"""More than clocks of any place were ever put forward or back."""


@dataclass(frozen=True, slots=True)
class OffsetArgument:
    """The argument that an offset was given to: of which call, for values of which type.

    `least` if it is the lower end of an interval, not the upper.
    """

    call: str
    name: str
    on_type: SqlType
    least: bool = False

    def refused(self, given: object, why: str, fix: str) -> UserError:
        """What is wrong with it."""
        return UserError(f"{self.call}: {self.name} {why}\n  found: {given!r}\n  to fix: {fix}")


def read_offset(given: OffsetValue, argument: OffsetArgument) -> Offset:
    """The offset, in the type of its values."""
    if argument.on_type in TIMES:
        if not isinstance(given, str):
            fix = f"write an interval, such as {argument.name}='10 days'"
            raise argument.refused(given, f"is no interval, for a {argument.on_type}", fix)
        return _span(given, argument)
    number = _number(given)
    if number is None:
        raise argument.refused(given, f"is no number, for a {argument.on_type}", "give a number")
    if not math.isfinite(number):
        raise argument.refused(given, "has no end", "give a number that can be added to others")
    if argument.on_type.is_floating:
        return float(number)
    scale = argument.on_type.scale if argument.on_type.is_decimal else 0
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    way = ROUND_CEILING if argument.least else ROUND_FLOOR
    fitted = exact.quantize(Decimal(1).scaleb(-scale), way, _EXACT)
    if argument.on_type.is_decimal:
        if len(fitted.as_tuple().digits) > PRECISION_MAX:
            raise argument.refused(given, "has too many digits", "give at most 38")
        return fitted
    if not LONG_MIN <= fitted <= LONG_MAX:
        raise argument.refused(given, "does not fit bigint", "give a smaller number")
    return int(fitted)


def _number(given: object) -> int | float | Decimal | None:
    """A number of Python or numpy as one of Python; None if it is no number."""
    if isinstance(given, bool):
        return None
    if isinstance(given, Integral):
        return int(given)
    if isinstance(given, Real):
        return float(given)
    return given if isinstance(given, Decimal) else None


def is_negative(offset: Offset) -> bool:
    """Whether it is below zero."""
    return _micros(offset, lowest=False) < 0 if isinstance(offset, Span) else offset < 0


def is_above(lower: Offset, upper: Offset) -> bool:
    """Whether no value can be between the two."""
    if not isinstance(lower, Span) or not isinstance(upper, Span):
        assert not isinstance(lower, Span)
        assert not isinstance(upper, Span)
        return lower > upper
    if lower.months and upper.months:
        return lower.months > upper.months
    return _micros(lower, lowest=True) > _micros(upper, lowest=False)


def width(lower: Offset, upper: Offset, kind: SqlType) -> float:
    """The largest distance between the two: whole days or microseconds for times."""
    if not isinstance(lower, Span) or not isinstance(upper, Span):
        assert not isinstance(lower, Span)
        assert not isinstance(upper, Span)
        if isinstance(lower, int) and isinstance(upper, int):
            return upper - lower
        return float(upper) - float(lower)
    if lower == upper:
        return 0
    between = _micros(upper, lowest=False) - _micros(lower, lowest=True)
    if kind == DATE:
        return between // DAY_MICROS
    calendar = any((lower.months, lower.days, upper.months, upper.days))
    return between + (_CLOCK_CHANGE if kind == TIMESTAMP and calendar else 0)


def _micros(span: Span, *, lowest: bool) -> int:
    """The length of an interval, in the shortest months if that gives the lowest, or longest."""
    short, long = _MONTH_DAYS
    days = short if lowest == (span.months > 0) else long
    return (span.months * days + span.days) * DAY_MICROS + span.micros


def _span(given: str, argument: OffsetArgument) -> Span:
    """An interval as Spark writes it: `10 seconds`, `1 day 2 hours`, `INTERVAL 3 MONTHS`."""
    text = given.lower().replace("'", " ").strip().removeprefix("interval ")
    months = days = micros = at = 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = part[3].removesuffix("s") if part else ""
        if part is None or unit not in {*_MONTHS, *_DAYS, *_MICROS}:
            break
        if part[2] and unit != "second":
            break
        amount = Decimal(part[1] + (part[2] or ""))
        months += int(amount * _MONTHS.get(unit, 0))
        days += int(amount * _DAYS.get(unit, 0))
        micros += int(amount * _MICROS.get(unit, 0))
        at = part.end()
        if argument.on_type == DATE and unit in _MICROS:
            fix = "use days, or cast the column to timestamp with with_columns"
            raise argument.refused(given, "is less than dates can tell apart", fix)
    if at < len(text) or not text:
        units = ", ".join([*_MONTHS, *_DAYS, *_MICROS])
        fix = f"write numbers and units, such as '1 day 12 hours'; units: {units}"
        raise argument.refused(given, "is no interval", fix)
    if months and (days or micros):
        fix = "use one or the other, as in Spark"
        raise argument.refused(given, "mixes months with days or hours", fix)
    # As in Spark, 24 hours are a day, which is longer or shorter where clocks change.
    total = days * DAY_MICROS + micros
    if abs(total) > LONG_MAX or abs(months) > _MONTHS_MAX:
        raise argument.refused(given, "is longer than Spark's intervals", "give a shorter one")
    days = abs(total) // DAY_MICROS * (1 if total >= 0 else -1)
    return Span(months=months, days=days, micros=total - days * DAY_MICROS)
