"""Dates and times from text and to text: to_date, to_timestamp, date_format and their kind."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.lenient_casts import wrapped
from millrace.sql.functions.times.date_patterns import read_pattern, written
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    require,
    text_literal,
)
from millrace.sql.types import DATE, LONG, STRING, TIMESTAMP, TIMESTAMP_NTZ, VOID

DATES: Final = "Dates and times"
_DEFAULT: Final = "yyyy-MM-dd HH:mm:ss"
_MOMENTS: Final = (TIMESTAMP, TIMESTAMP_NTZ)


def written_out(part: TypedSql, name: str) -> str:
    """An argument that has to be a text literal."""
    if not isinstance(part.literal, str):
        raise NotNative(
            f"{name} needs its pattern written out", found=part.label or part.sql, fix="write it"
        )
    return part.literal


def _parsed(name: str, text: TypedSql, pattern: str, *, failing: bool = True) -> TypedSql:
    """A text as an instant, by a pattern."""
    if text.type != STRING:
        raise NotNative(
            f"{name} with a pattern reads text", found=str(text.type), fix="cast it to string"
        )
    value = read_pattern(pattern, text.sql)
    if not failing:
        return combined(value, TIMESTAMP, [text], raises=True)
    after = text_literal(f"' of {text.label or 'an expression'} to timestamp")
    stop = f"error(concat('cannot cast ''', {text.sql}, {after}))"
    stop = f"CASE WHEN {text.sql} IS NULL THEN NULL ELSE {stop} END"
    return combined(f"coalesce({value}, {stop})", TIMESTAMP, [text], raises=True)


def _dated(name: str, part: TypedSql) -> None:
    require(part, part.type in (DATE, STRING, *_MOMENTS), "a date, a timestamp or text", name)


@function("to_date(s, pattern)", group=DATES, most=2)
def _to_date(name: str, args: list[TypedSql]) -> TypedSql:
    label = call_label(name, args)
    _dated(name, args[0])
    if len(args) == 1:
        return cast(args[0], DATE, label=label)
    pattern = written_out(args[1], name)
    return cast(_parsed(name, args[0], pattern), DATE, label=label)


@function(
    "to_timestamp(s, pattern); to_timestamp_ltz(s, pattern); to_timestamp_ntz(s, pattern)",
    group=DATES,
    most=2,
)
def _to_timestamp(name: str, args: list[TypedSql]) -> TypedSql:
    label = call_label(name, args)
    kind = TIMESTAMP_NTZ if name.endswith("ntz") else TIMESTAMP
    _dated(name, args[0])
    if len(args) == 1:
        return cast(args[0], kind, label=label)
    if kind == TIMESTAMP_NTZ:
        raise NotNative(f"{name} with a pattern is Spark's", fix="use to_timestamp")
    return cast(_parsed(name, args[0], written_out(args[1], name)), kind, label=label)


@function("try_to_timestamp(s, pattern)", group=DATES, least=1, most=2)
def _try_to_timestamp(name: str, args: list[TypedSql]) -> TypedSql:
    label = call_label(name, args)
    if args[0].type != STRING:
        raise NotNative(f"{name} of text only", found=str(args[0].type), fix="use to_timestamp")
    if args[0].raises:
        raise NotNative(f"{name} of what can fail is Spark's", fix="calculate it in a column")
    if len(args) == 1:
        raise NotNative(f"{name} without a pattern is Spark's", fix="give the pattern")
    parsed = _parsed(name, args[0], written_out(args[1], name), failing=False)
    return cast(parsed, TIMESTAMP, label=label)


def _instant(name: str, part: TypedSql) -> TypedSql:
    _dated(name, part)
    return cast(part, TIMESTAMP)


@function("date_format(ts, pattern)", group=DATES, least=2)
def _date_format(name: str, args: list[TypedSql]) -> TypedSql:
    instant = _instant(name, args[0])
    sql = written(written_out(args[1], name), instant.sql)
    return combined(sql, STRING, [instant], label=call_label(name, args))


@function("from_unixtime(seconds, pattern)", group=DATES, most=2)
def _from_unixtime(name: str, args: list[TypedSql]) -> TypedSql:
    require(args[0], args[0].type.is_integer, "a number of seconds", name)
    seconds = cast(args[0], LONG)
    pattern = written_out(args[1], name) if len(args) > 1 else _DEFAULT
    micros = f"CAST({seconds.sql} AS HUGEINT) * 1000000"
    # Beyond the years of a timestamp Java's product wraps around.
    instant = f"make_timestamptz({wrapped(micros, LONG)})"
    label = call_label(name, args[:1], pattern)
    return combined(written(pattern, instant), STRING, [seconds], label=label, raises=True)


@function("unix_timestamp(s, pattern); to_unix_timestamp(s, pattern)", group=DATES, least=1, most=2)
def _unix_timestamp(name: str, args: list[TypedSql]) -> TypedSql:
    _dated(name, args[0])
    if args[0].type == VOID:
        raise NotNative(f"{name} of NULL is Spark's", fix="cast it to string")
    pattern = written_out(args[1], name) if len(args) > 1 else _DEFAULT
    label = call_label(name, args[:1], pattern)
    if args[0].type == STRING:
        instant = _parsed(name, args[0], pattern)
        return combined(f"(epoch_us({instant.sql}) // 1000000)", LONG, [instant], label=label)
    instant = args[0] if args[0].type == TIMESTAMP_NTZ else cast(args[0], TIMESTAMP)
    if instant.type == TIMESTAMP_NTZ:
        raise NotNative(f"{name} of a local time is Spark's", fix="cast it to timestamp")
    return combined(f"(epoch_us({instant.sql}) // 1000000)", LONG, [instant], label=label)
