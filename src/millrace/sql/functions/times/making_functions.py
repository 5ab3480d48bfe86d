"""Dates and times from numbers and to numbers."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.times.parsing_functions import DATES
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    failure,
    require,
    tried,
)
from millrace.sql.types import (
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    decimal,
)

UNIX_UNITS: Final = {
    "seconds": 1_000_000,
    "millis": 1_000,
    "micros": 1,
}


@function("timestamp_seconds(n); timestamp_millis(n); timestamp_micros(n)", group=DATES)
def _of_number(name: str, args: list[TypedSql]) -> TypedSql:
    unit = UNIX_UNITS[name.removeprefix("timestamp_")]
    if not args[0].type.is_integer:
        raise NotNative(f"{name} of whole numbers only", found=str(args[0].type), fix="cast it")
    count = cast(args[0], LONG)
    sql = f"make_timestamptz({count.sql} * {unit})"
    return combined(sql, TIMESTAMP, [count], label=call_label(name, args), raises=True)


@function("unix_seconds(ts); unix_millis(ts); unix_micros(ts)", group=DATES)
def _to_number(name: str, args: list[TypedSql]) -> TypedSql:
    unit = UNIX_UNITS[name.removeprefix("unix_")]
    _instants_only(name, args[0])
    instant = cast(args[0], TIMESTAMP)
    micros = f"epoch_us({instant.sql})"
    sql = micros if unit == 1 else f"spark_floor_div({micros}, {unit})"
    return combined(sql, LONG, [instant], label=call_label(name, args))


def _instants_only(name: str, part: TypedSql) -> None:
    if part.type == STRING:
        raise NotNative(f"{name} of text is Spark's", fix="cast it to timestamp")
    require(part, part.type in (TIMESTAMP, DATE, TIMESTAMP_NTZ), "a timestamp", name)


@function("unix_date(d)", group=DATES)
def _unix_date(name: str, args: list[TypedSql]) -> TypedSql:
    if args[0].type != DATE:
        raise NotNative(f"{name} of dates only", found=str(args[0].type), fix="cast it to date")
    sql = f"({args[0].sql} - DATE '1970-01-01')"
    return combined(sql, INT, args, label=call_label(name, args))


@function("date_from_unix_date(days)", group=DATES)
def _date_from_days(name: str, args: list[TypedSql]) -> TypedSql:
    if not args[0].type.is_integer or args[0].type == LONG:
        raise NotNative(f"{name} of ints only", found=str(args[0].type), fix="cast it to int")
    days = cast(args[0], INT)
    return combined(f"make_date({days.sql})", DATE, [days], label=call_label(name, args))


def _whole(name: str, part: TypedSql) -> TypedSql:
    if not part.type.is_integer or part.type == LONG:
        raise NotNative(f"{name} of ints only", found=str(part.type), fix="cast it to int")
    return cast(part, INT)


_DAY: Final = "make_date(CAST({y} AS BIGINT), CAST({m} AS BIGINT), CAST({d} AS BIGINT))"
_CLOCK: Final = (
    "(CAST({h} AS BIGINT) * 60 + CAST({n} AS BIGINT)) * 60000000 "
    "+ CAST({s} * CAST(1000000 AS DECIMAL(7,0)) AS BIGINT)"
)


@function("make_date(year, month, day)", group=DATES, least=3)
def _make_date(name: str, args: list[TypedSql]) -> TypedSql:
    parts = [_whole(name, part) for part in args]
    missing = " OR ".join(f"{part.sql} IS NULL" for part in parts)
    stop = failure("make_date has a year, month or day that is none")
    value = tried(_DAY, y=parts[0], m=parts[1], d=parts[2])
    sql = f"coalesce({value}, CASE WHEN {missing} THEN NULL ELSE {stop} END)"
    return combined(sql, DATE, parts, label=call_label(name, args), raises=True)


@function(
    "make_timestamp(year, month, day, hour, minute, second); "
    "make_timestamp_ltz(year, month, day, hour, minute, second); "
    "make_timestamp_ntz(year, month, day, hour, minute, second); "
    "try_make_timestamp(year, month, day, hour, minute, second); "
    "try_make_timestamp_ltz(year, month, day, hour, minute, second); "
    "try_make_timestamp_ntz(year, month, day, hour, minute, second)",
    group=DATES,
    least=6,
)
def _make_timestamp(name: str, args: list[TypedSql]) -> TypedSql:
    kind = TIMESTAMP_NTZ if name.endswith("ntz") else TIMESTAMP
    parts = [_whole(name, part) for part in args[:5]]
    if args[5].type == DOUBLE or not args[5].type.is_numeric:
        raise NotNative(f"{name} takes seconds as a decimal", fix="cast them to decimal(16, 6)")
    second = cast(args[5], decimal(16, 6))
    year, hour, minute = (f"CAST({parts[at].sql} AS BIGINT)" for at in (0, 3, 4))
    y, m, d, h, n = parts
    # The sixtieth second is the first of the next minute, if it has no fraction.
    fits = (
        f"{hour} BETWEEN 0 AND 23 AND {minute} BETWEEN 0 AND 59 AND {second.sql} >= 0 "
        f"AND ({second.sql} < 60 OR {second.sql} = 60)"
    )
    local = tried(
        f"CAST({_DAY} AS TIMESTAMP) + to_microseconds({_CLOCK})", y=y, m=m, d=d, h=h, n=n, s=second
    )
    value = f"CASE WHEN {fits} THEN {local} END"
    value = f"spark_instant({value})" if kind == TIMESTAMP else value
    every = [*parts, second]
    if not name.startswith("try_"):
        missing = " OR ".join(f"{part.sql} IS NULL" for part in every)
        stop = failure(f"{name} has a part that is none")
        value = f"coalesce({value}, CASE WHEN {missing} THEN NULL ELSE {stop} END)"
        return combined(value, kind, every, label=call_label(name, args), raises=True)
    if any(part.raises for part in every):
        raise NotNative(f"{name} of what can fail is Spark's", fix="calculate it in a column")
    beyond = f"{year} > 294246 OR {year} < -290307"
    stop = failure(f"{name} has a year beyond those of a timestamp")
    is_day = f"{tried(_DAY, y=y, m=m, d=d)} IS NOT NULL"
    value = f"CASE WHEN {fits} AND {is_day} AND ({beyond}) THEN {stop} ELSE {value} END"
    return combined(value, kind, every, label=call_label(name, args), raises=True)


@function("from_utc_timestamp(ts, zone); to_utc_timestamp(ts, zone)", group=DATES, least=2)
def _utc(name: str, args: list[TypedSql]) -> TypedSql:
    if args[0].type not in (TIMESTAMP, DATE, STRING) or args[1].type != STRING:
        raise NotNative(f"{name} of a timestamp and text", found=str(args[0].type), fix="cast it")
    instant, zone = cast(args[0], TIMESTAMP), args[1]
    if name.startswith("from"):
        sql = f"make_timestamptz(epoch_us(spark_local_in({zone.sql}, {instant.sql})))"
    else:
        local = f"make_timestamp(epoch_us({instant.sql}))"
        sql = f"spark_instant_at({zone.sql}, {local})"
    missing = f"{instant.sql} IS NULL OR {zone.sql} IS NULL"
    stop = failure(f"{name} has a time zone that is none")
    sql = f"CASE WHEN {missing} THEN NULL ELSE coalesce({sql}, {stop}) END"
    return combined(sql, TIMESTAMP, [instant, zone], label=call_label(name, args), raises=True)


@function("convert_timezone(from, to, local)", group=DATES, least=3)
def _convert_timezone(name: str, args: list[TypedSql]) -> TypedSql:
    source, target, given = args
    if source.type != STRING or target.type != STRING or given.type not in (TIMESTAMP_NTZ, DATE):
        raise NotNative(f"{name} of two texts and a local time", fix="cast it to timestamp_ntz")
    local = cast(given, TIMESTAMP_NTZ)
    sql = f"spark_local_in({target.sql}, spark_instant_at({source.sql}, {local.sql}))"
    missing = " OR ".join(f"{part.sql} IS NULL" for part in (source, target, local))
    stop = failure(f"{name} has a time zone that is none")
    sql = f"CASE WHEN {missing} THEN NULL ELSE coalesce({sql}, {stop}) END"
    parts = [source, target, local]
    return combined(sql, TIMESTAMP_NTZ, parts, label=call_label(name, args), raises=True)
