"""Functions of dates and timestamps, as Spark calculates them in the session's time zone."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, timedelta
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.typed_sql import (
    ExpressionRefused,
    TypedSql,
    call_label,
    combined,
    day_literal,
    require,
)
from millrace.sql.types import DATE, INT, LONG, STRING, TIMESTAMP, TIMESTAMP_NTZ, VOID

DATES: Final = "Dates and times"
_MOMENTS: Final = (TIMESTAMP, TIMESTAMP_NTZ)
_DAY_LIKE: Final = (DATE, *_MOMENTS, STRING)


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of one unit: whole months, whole days or microseconds."""

    months: int = 0
    days: int = 0
    micros: int = 0


_UNITS: Final = {
    "YEAR": Span(months=12),
    "MONTH": Span(months=1),
    "WEEK": Span(days=7),
    "DAY": Span(days=1),
    "HOUR": Span(micros=3_600_000_000),
    "MINUTE": Span(micros=60_000_000),
    "SECOND": Span(micros=1_000_000),
}


_DAY_MICROS: Final = 24 * 3_600_000_000


def span(amount: str, unit: str) -> Span:
    """An interval as it is written: a whole number and a unit."""
    unit_span = _UNITS.get(unit.upper().removesuffix("S"))
    try:
        count = int(amount)
    except ValueError:
        unit_span = None
        count = 0
    if unit_span is None:
        raise ExpressionRefused(
            "an interval is a whole number of one unit here",
            found=f"INTERVAL '{amount}' {unit}",
            fix=f"use {', '.join(_UNITS)}, one at a time: d + INTERVAL 1 DAY",
        )
    return Span(
        months=unit_span.months * count,
        days=unit_span.days * count,
        micros=unit_span.micros * count,
    )


def shifted(term: TypedSql, by: Span, sign: int) -> TypedSql:
    """A date or timestamp plus or minus an interval."""
    require(term, term.type in (DATE, *_MOMENTS), "a date or timestamp", "interval arithmetic")
    if term.type == VOID:
        raise ExpressionRefused("NULL has no type to add an interval to", fix="cast it to date")
    if term.day is not None and not by.micros:
        day = _moved_day(term.day, sign * by.months, sign * by.days)
        if day is not None:
            return day_literal(day)
    if by.micros:
        base = cast(term, TIMESTAMP) if term.type == DATE else term
        # As Spark does it: 24 hours are a day of the calendar, which may have 23 or 25.
        days, rest = divmod(abs(by.micros), _DAY_MICROS)
        sign = sign if by.micros > 0 else -sign
        step = f"to_days(CAST({sign * days} AS INTEGER)) + " if days else ""
        step += f"to_microseconds(CAST({sign * rest} AS BIGINT))"
    elif by.months:
        base, step = term, f"to_months(CAST({sign * by.months} AS INTEGER))"
    else:
        base, step = term, f"to_days(CAST({sign * by.days} AS INTEGER))"
    return combined(f"({base.sql} + {step})", base.type, [base], raises=True)


def _moved_day(day: date, months: int, days: int) -> date | None:
    """A day that many months, then days, later; None outside of the years that are known here."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    if not MINYEAR <= year <= MAXYEAR:
        return None
    last = monthrange(year, month + 1)[1]
    try:
        return date(year, month + 1, min(day.day, last)) + timedelta(days=days)
    except OverflowError:
        return None


def _day(name: str, part: TypedSql) -> TypedSql:
    require(part, part.type in _DAY_LIKE, "a date or timestamp", name)
    return cast(part, DATE)


def moved(name: str, args: list[TypedSql], sign: str) -> TypedSql:
    """A date some days later or earlier."""
    day, count = _day(name, args[0]), args[1]
    require(count, count.type.is_integer and count.type != LONG, "a number of days", name)
    whole = cast(count, INT)
    label = call_label(name, args)
    return combined(f"({day.sql} {sign} {whole.sql})", DATE, [day, whole], label=label, raises=True)


@function("date_add(d, days)", group=DATES, least=2)
def _date_add(name: str, args: list[TypedSql]) -> TypedSql:
    return moved(name, args, "+")


@function("date_sub(d, days)", group=DATES, least=2)
def _date_sub(name: str, args: list[TypedSql]) -> TypedSql:
    return moved(name, args, "-")


@function("add_months(d, months)", group=DATES, least=2)
def _add_months(name: str, args: list[TypedSql]) -> TypedSql:
    day = _day(name, args[0])
    require(args[1], args[1].type.is_integer, "a number of months", name)
    count = cast(args[1], INT)
    sql = f"({day.sql} + to_months({count.sql}))"
    return combined(sql, DATE, [day, count], label=call_label(name, args), raises=True)


@function("datediff(end, start); date_diff(end, start)", group=DATES, least=2)
def _datediff(name: str, args: list[TypedSql]) -> TypedSql:
    end, start = _day(name, args[0]), _day(name, args[1])
    return combined(f"({end.sql} - {start.sql})", INT, [end, start], label=call_label(name, args))


@function("last_day(d)", group=DATES)
def _last_day(name: str, args: list[TypedSql]) -> TypedSql:
    day = _day(name, args[0])
    return combined(f"last_day({day.sql})", DATE, [day], label=call_label(name, args))


_FIELDS: Final = {
    "year": "year({})",
    "month": "month({})",
    "day": "day({})",
    "dayofmonth": "day({})",
    "quarter": "quarter({})",
    "dayofyear": "dayofyear({})",
    "weekofyear": "week({})",
    "dayofweek": "(dayofweek({}) + 1)",
    "weekday": "(isodow({}) - 1)",
}
_CLOCK: Final = {"hour": "hour({})", "minute": "minute({})", "second": "second({})"}
EXTRACTED: Final = ("year", "month", "day", "quarter", "hour", "minute")


@function("; ".join(f"{name}(d)" for name in _FIELDS), group=DATES)
def _field(name: str, args: list[TypedSql]) -> TypedSql:
    day = _day(name, args[0])
    return combined(_FIELDS[name].format(day.sql), INT, [day], label=call_label(name, args))


@function("; ".join(f"{name}(ts)" for name in _CLOCK), group=DATES)
def _clock(name: str, args: list[TypedSql]) -> TypedSql:
    require(args[0], args[0].type in _DAY_LIKE, "a timestamp", name)
    moment = args[0] if args[0].type in _MOMENTS else cast(args[0], TIMESTAMP)
    return combined(_CLOCK[name].format(moment.sql), INT, [moment], label=call_label(name, args))


_STARTS: Final = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mm": "month",
    "mon": "month",
    "week": "week",
    "day": "day",
    "dd": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
}


def _start(part: TypedSql, name: str, allowed: tuple[str, ...]) -> str:
    unit = _STARTS.get(str(part.literal).lower()) if isinstance(part.literal, str) else None
    if unit not in allowed:
        raise ExpressionRefused(
            f"{name} needs its unit written out",
            found=part.label or part.sql,
            fix=f"use one of {', '.join(allowed)}",
        )
    assert unit is not None
    return unit


@function("date_trunc(unit, ts)", group=DATES, least=2)
def _date_trunc(name: str, args: list[TypedSql]) -> TypedSql:
    units = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
    unit = _start(args[0], name, units)
    require(args[1], args[1].type in _DAY_LIKE, "a timestamp", name)
    moment = cast(args[1], TIMESTAMP)
    sql = f"date_trunc('{unit}', {moment.sql})"
    if unit in _CLOCK:
        # Within a day the offset stays, also in the hour that a change of clocks repeats.
        local = f"CAST({moment.sql} AS TIMESTAMP)"
        since = f"epoch_us({local}) - epoch_us(date_trunc('{unit}', {local}))"
        sql = f"({moment.sql} - to_microseconds({since}))"
    return combined(sql, TIMESTAMP, [moment], label=call_label(name, args))


@function("trunc(d, unit)", group=DATES, least=2)
def _trunc(name: str, args: list[TypedSql]) -> TypedSql:
    unit = _start(args[1], name, ("year", "quarter", "month", "week"))
    day = _day(name, args[0])
    return combined(f"date_trunc('{unit}', {day.sql})", DATE, [day], label=call_label(name, args))


@function("to_date(s)", group=DATES)
def _to_date(name: str, args: list[TypedSql]) -> TypedSql:
    return cast(_day(name, args[0]), DATE, label=call_label(name, args))
