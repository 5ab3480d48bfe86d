"""Functions of dates and timestamps, as Spark calculates them in the session's time zone."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, timedelta
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.lenient_casts import wrapped
from millrace.sql.functions.times.parsing_functions import DATES, written_out
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    day_literal,
    require,
)
from millrace.sql.types import (
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    decimal,
)

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
        raise NotNative(
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
        raise NotNative("NULL has no type to add an interval to", fix="cast it to date")
    if term.day is not None and not by.micros:
        day = _moved_day(term.day, sign * by.months, sign * by.days)
        if day is not None:
            return day_literal(day)
    base = cast(term, TIMESTAMP) if term.type == DATE and by.micros else term
    if not by.micros:
        step = f"to_months(CAST({sign * by.months} AS INTEGER))"
        step = step if by.months else f"to_days(CAST({sign * by.days} AS INTEGER))"
        if base.type == TIMESTAMP:
            local = f"CAST({base.sql} AS TIMESTAMP) + {step}"
            return combined(f"spark_moved({base.sql}, {local})", TIMESTAMP, [base], raises=True)
        if base.type == DATE and by.months:
            months = f"CAST({sign * by.months} AS INTEGER)"
            return combined(f"spark_add_months({base.sql}, {months})", DATE, [base], raises=True)
        if base.type == DATE:
            count = f"CAST({sign * by.days} AS BIGINT)"
            return combined(f"spark_date_add({base.sql}, {count})", DATE, [base])
        return combined(f"({base.sql} + {step})", base.type, [base], raises=True)
    # As Spark does it: 24 hours are a day of the calendar, which may have 23 or 25.
    days, rest = divmod(abs(by.micros), _DAY_MICROS)
    sign = sign if by.micros > 0 else -sign
    sql = base.sql
    if days and base.type == TIMESTAMP:
        local = f"CAST({sql} AS TIMESTAMP) + to_days(CAST({sign * days} AS INTEGER))"
        sql = f"spark_moved({sql}, {local})"
    elif days:
        sql = f"({sql} + to_days(CAST({sign * days} AS INTEGER)))"
    sql = f"({sql} + to_microseconds(CAST({sign * rest} AS BIGINT)))"
    return combined(sql, base.type, [base], raises=True)


def shifted_label(base: TypedSql, symbol: str, by: str, *, is_days: bool) -> str | None:
    """Spark's name of a date or timestamp plus or minus an interval."""
    if base.label is None:
        return None
    if base.type != DATE or not is_days:
        return f"{base.label} {symbol} {by}"
    days = f"extractansiintervaldays({by})"
    return f"date_add({base.label}, {days if symbol == '+' else f'(- {days})'})"


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
    count_sql = whole.sql if sign == "+" else f"(-CAST({whole.sql} AS BIGINT))"
    sql = f"spark_date_add({day.sql}, {count_sql})"
    return combined(sql, DATE, [day, whole], label=label)


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
    sql = f"spark_add_months({day.sql}, {count.sql})"
    return combined(sql, DATE, [day, count], label=call_label(name, args), raises=True)


@function("datediff(end, start); date_diff(end, start)", group=DATES, least=2)
def _datediff(name: str, args: list[TypedSql]) -> TypedSql:
    end, start = _day(name, args[0]), _day(name, args[1])
    days = wrapped(f"CAST({end.sql} - {start.sql} AS HUGEINT)", INT)
    return combined(days, INT, [end, start], label=call_label(name, args))


@function("last_day(d)", group=DATES)
def _last_day(name: str, args: list[TypedSql]) -> TypedSql:
    day = _day(name, args[0])
    return combined(f"spark_last_day({day.sql})", DATE, [day], label=call_label(name, args))


_FIELDS: Final = {
    "year": "spark_year({})",
    "month": "spark_month({})",
    "day": "spark_day({})",
    "dayofmonth": "spark_day({})",
    "quarter": "spark_quarter({})",
    "dayofyear": "spark_dayofyear({})",
    "weekofyear": "spark_week({})",
    "dayofweek": "(spark_dayofweek({}) + 1)",
    "weekday": "(spark_isodow({}) - 1)",
}
_CLOCK: Final = {"hour": "hour({})", "minute": "minute({})", "second": "second({})"}


@function("; ".join(f"{name}(d)" for name in _FIELDS), group=DATES)
def _field(name: str, args: list[TypedSql]) -> TypedSql:
    day = _day(name, args[0])
    return combined(_FIELDS[name].format(day.sql), INT, [day], label=call_label(name, args))


@function("; ".join(f"{name}(ts)" for name in _CLOCK), group=DATES)
def _clock(name: str, args: list[TypedSql]) -> TypedSql:
    require(args[0], args[0].type in _DAY_LIKE, "a timestamp", name)
    moment = args[0] if args[0].type in _MOMENTS else cast(args[0], TIMESTAMP)
    return combined(_CLOCK[name].format(moment.sql), INT, [moment], label=call_label(name, args))


@function("dayname(d); monthname(d)", group=DATES)
def _short_name(name: str, args: list[TypedSql]) -> TypedSql:
    day = _day(name, args[0])
    short = f"strftime(spark_inner_day({day.sql}), '{'%a' if name == 'dayname' else '%b'}')"
    return combined(short, STRING, [day], label=call_label(name, args))


_PARTS: Final = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year"),
    **dict.fromkeys(("yearofweek",), "yearofweek"),
    **dict.fromkeys(("quarter", "qtr"), "quarter"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month"),
    **dict.fromkeys(("week", "w", "weeks"), "weekofyear"),
    **dict.fromkeys(("day", "d", "days"), "day"),
    **dict.fromkeys(("dayofweek", "dow"), "dayofweek"),
    **dict.fromkeys(("dayofweek_iso", "dow_iso"), "dayofweek_iso"),
    **dict.fromkeys(("doy",), "dayofyear"),
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
    **dict.fromkeys(("second", "s", "sec", "seconds", "secs"), "second"),
}


def extracted(unit: str, source: TypedSql, label: str | None = None) -> TypedSql:
    """EXTRACT of a field from a date or a timestamp."""
    field = _PARTS.get(unit.lower())
    if field is None or source.type not in _DAY_LIKE:
        raise NotNative(
            f"EXTRACT of {unit} from {source.type} is not known",
            fix=f"use one of {', '.join(dict.fromkeys(_PARTS.values()))}",
        )
    if field == "second":
        moment = source if source.type in _MOMENTS else cast(source, TIMESTAMP)
        micros = f"epoch_us({moment.sql})"
        micros = f"((({micros} % 60000000) + 60000000) % 60000000)"
        if moment.type == TIMESTAMP:
            micros = f"epoch_us(CAST({moment.sql} AS TIMESTAMP))"
            micros = f"((({micros} % 60000000) + 60000000) % 60000000)"
        exact = f"CAST({micros} AS DECIMAL(8,0)) * CAST('0.000001' AS DECIMAL(6,6))"
        return combined(exact, decimal(8, 6), [moment], label=label)
    if field in ("yearofweek", "dayofweek_iso"):
        day = _day("extract", source)
        value = f"{'spark_isoyear' if field == 'yearofweek' else 'spark_isodow'}({day.sql})"
        return combined(value, INT, [day], label=label)
    whole = _clock(field, [source]) if field in _CLOCK else _field(field, [source])
    return combined(whole.sql, INT, [whole], label=label)


@function("date_part(unit, d); datepart(unit, d)", group=DATES, least=2)
def _date_part(name: str, args: list[TypedSql]) -> TypedSql:
    label = call_label(name, args)
    if name == "datepart" and label is not None:
        label = f"datepart({args[0].label} FROM {args[1].label})"
    return extracted(written_out(args[0], name), args[1], label)


_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@function("next_day(d, weekday)", group=DATES, least=2)
def _next_day(name: str, args: list[TypedSql]) -> TypedSql:
    given = written_out(args[1], name).lower()
    number = next(
        (n for n, word in enumerate(_WEEKDAYS) if given in (word, word[:2], word[:3])), None
    )
    if number is None:
        raise NotNative(f"{name} needs a day of the week", found=given, fix="write 'MON'")
    day = _day(name, args[0])
    ahead = f"(({number} - (spark_isodow({day.sql}) - 1) + 6) % 7 + 1)"
    sql = f"spark_date_add({day.sql}, {ahead})"
    return combined(sql, DATE, [day], label=call_label(name, args))


@function("months_between(end, start, rounded)", group=DATES, least=2, most=3)
def _months_between(name: str, args: list[TypedSql]) -> TypedSql:
    if args[2:] and args[2].sql not in ("CAST(true AS BOOLEAN)", "CAST(false AS BOOLEAN)"):
        raise NotNative(f"{name} needs true or false written out", fix="write it")
    rounded = not args[2:] or "true" in args[2].sql
    require(args[0], args[0].type in _DAY_LIKE, "a timestamp", name)
    require(args[1], args[1].type in _DAY_LIKE, "a timestamp", name)
    end, start = cast(args[0], TIMESTAMP), cast(args[1], TIMESTAMP)
    sql = f"spark_months_between({end.sql}, {start.sql})"
    if rounded:
        sql = f"spark_months_rounded({sql})"
    sql = f"CASE WHEN {end.sql} IS NULL THEN NULL ELSE {sql} END"
    label = call_label(name, args[:2], "true" if rounded else "false")
    return combined(sql, DOUBLE, [end, start], label=label)


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
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}


def _start(part: TypedSql, name: str, allowed: tuple[str, ...]) -> str:
    unit = _STARTS.get(str(part.literal).lower()) if isinstance(part.literal, str) else None
    if unit not in allowed:
        raise NotNative(
            f"{name} needs its unit written out",
            found=part.label or part.sql,
            fix=f"use one of {', '.join(allowed)}",
        )
    assert unit is not None
    return unit


@function("date_trunc(unit, ts)", group=DATES, least=2)
def _date_trunc(name: str, args: list[TypedSql]) -> TypedSql:
    unit = _start(args[0], name, tuple(_STARTS.values()))
    require(args[1], args[1].type in _DAY_LIKE, "a timestamp", name)
    moment = cast(args[1], TIMESTAMP)
    if unit == "microsecond":
        sql = moment.sql
    elif unit in ("millisecond", "second"):
        size = 1_000 if unit == "millisecond" else 1_000_000
        micros = f"epoch_us({moment.sql})"
        sql = f"make_timestamptz({micros} - (({micros} % {size}) + {size}) % {size})"
    else:
        sql = f"date_trunc('{unit}', CAST({moment.sql} AS TIMESTAMP))"
        kept = unit in ("day", "hour", "minute")
        sql = f"spark_moved({moment.sql}, {sql})" if kept else f"spark_instant({sql})"
    return combined(sql, TIMESTAMP, [moment], label=call_label(name, args))


@function("trunc(d, unit)", group=DATES, least=2)
def _trunc(name: str, args: list[TypedSql]) -> TypedSql:
    unit = _start(args[1], name, ("year", "quarter", "month", "week"))
    day = _day(name, args[0])
    sql = f"spark_first_day_of_{unit}({day.sql})"
    return combined(sql, DATE, [day], label=call_label(name, args))
