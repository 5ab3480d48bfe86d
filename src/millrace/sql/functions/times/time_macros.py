"""Macros that turn text, dates and times into each other as Spark does.

Invariant: a macro that reads text gives null for text that Spark does not take; the cast around it
decides whether that is an error. In the hour that a change of clocks repeats, a local time is the
earlier of its two instants.
"""

from __future__ import annotations

from typing import Final

from millrace.sql.engine_functions import macro, versions_in
from millrace.sql.functions.times.zone_names import SHORT_ZONES, ZONE_NAMES
from millrace.sql.types import DATE, TIMESTAMP, TIMESTAMP_NTZ

READ_TEXT: Final = {
    DATE: "spark_text_to_date",
    TIMESTAMP: "spark_text_to_timestamp",
    TIMESTAMP_NTZ: "spark_text_to_timestamp_ntz",
}
_DAY_MICROS: Final = 86_400_000_000
# The least local times have no day before them.
_EARLIEST: Final = "-9223000000000000000"
_BLANK: Final = r"[\x00-\x20\x7f]*"
_CLOCK: Final = (
    r"([01]?[0-9]|2[0-3])(?::([0-5]?[0-9])(?::([0-5]?[0-9])(?:\.([0-9]*))?"
    r"(?:[\x00-\x20]*([A-Za-z+-][A-Za-z0-9/_+:.~-]*))?)?)?"
)
_YEAR_MONTH_DAY: Final = (
    r"([+-]?[0-9]{{4,{most}}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:{rest})?)?)?"
)
_MOMENT: Final = f"^{_BLANK}{_YEAR_MONTH_DAY.format(most=6, rest='[ T]' + _CLOCK)}{_BLANK}$"
_TIME_OF_DAY: Final = f"^(?:T|{_BLANK}){_CLOCK}{_BLANK}$"
_DATE: Final = f"^(?s){_BLANK}{_YEAR_MONTH_DAY.format(most=7, rest='[ T].*')}{_BLANK}$"
_PLAIN_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_PLAIN_MOMENT: Final = (
    _PLAIN_DATE + r"[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z?"
)
_OFFSET: Final = (
    "(?:UTC|GMT|UT)?[+-](?:[0-9]{1,2}|[0-9]{4}|[0-9]{6}|[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)"
)
TIME_OF_DAY: Final = "spark_time_of_day"
NO_DATE: Final = (
    "has no date: Spark would take the day of the run, and saved rows would be wrong on the next "
    "day; to fix: put a date before it"
)
MICROS_VARIABLE: Final = "run_micros"
"""The variable of the engine that has the moment of the run."""
_RUN_MICROS: Final = f"CAST(getvariable('{MICROS_VARIABLE}') AS BIGINT)"
_RUN_INSTANT: Final = f"make_timestamptz({_RUN_MICROS})"
_CLOCK_NAMES: Final = "'hour', 'minute', 'second', 'fraction', 'zone'"


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _earlier(local: str, later: str, local_of: str) -> str:
    """The earlier instant of a local time, if there are two: by the offset of the day before."""
    before = f"{later} - to_microseconds({_DAY_MICROS})"
    offset = f"epoch_us({local_of.format(before)}) - epoch_us({before})"
    earlier = f"make_timestamptz(epoch_us({local}) - ({offset}))"
    return (
        f"CASE WHEN {local} IS NULL OR epoch_us({local}) < {_EARLIEST} THEN {later} "
        f"WHEN {earlier} < {later} AND {local_of.format(earlier)} = {local} THEN {earlier} "
        f"ELSE {later} END"
    )


macro(
    "spark_instant",
    "moment",
    "list_transform([CAST(moment AS TIMESTAMP)], lambda il: "
    f"{_earlier('il', 'CAST(il AS TIMESTAMPTZ)', 'CAST({} AS TIMESTAMP)')})[1]",
)
macro(
    "spark_instant_in",
    "zone, moment",
    "list_transform([CAST(moment AS TIMESTAMP)], lambda zl: "
    f"{_earlier('zl', 'timezone(zone, zl)', 'timezone(zone, {})')})[1]",
)
macro(
    "spark_zone",
    "name",
    f"coalesce(map {{{', '.join(f'{k!r}: {v!r}' for k, v in SHORT_ZONES.items())}}}[name], "
    r"regexp_replace(regexp_replace(name, '([+-])([0-9]):', '\10\2:'), "
    r"'([+-])([0-9]{2}):([0-9])$', '\1\2:0\3'))",
)
"""A zone's name as Java takes it: no short names, and two digits for hours and minutes."""
macro(
    "spark_offset_of_digits",
    "sign, digits",
    "CASE WHEN digits[3:4] > '59' OR digits[5:6] > '59' OR (length(digits) > 1 "
    "AND rpad(digits, 6, '0') > '180000') "
    "THEN NULL ELSE sign * (CAST(digits[1:2] AS INTEGER) * 3600 "
    "+ coalesce(TRY_CAST(digits[3:4] AS INTEGER), 0) * 60 "
    "+ coalesce(TRY_CAST(digits[5:6] AS INTEGER), 0)) END",
)
macro(
    "spark_zone_offset",
    "zone",
    f"CASE WHEN zone IN ('Z', 'UTC', 'GMT', 'UT') THEN 0 "
    f"WHEN regexp_full_match(zone, '{_OFFSET}') THEN spark_offset_of_digits("
    "CASE WHEN contains(zone, '-') THEN -1 ELSE 1 END, "
    "regexp_replace(zone, '[^0-9]', '', 'g')) END",
)
"""The seconds of a zone that is an offset; null if it is another or none."""
macro("spark_zone_known", "zone", f"list_contains([{_words(ZONE_NAMES)}], zone)")
macro(
    "spark_instant_at",
    "zone_name, moment",
    "list_transform([spark_zone(zone_name)], lambda zn: "
    "CASE WHEN spark_zone_offset(zn) IS NOT NULL "
    "THEN make_timestamptz(epoch_us(moment) - CAST(spark_zone_offset(zn) AS BIGINT) * 1000000) "
    "WHEN spark_zone_known(zn) THEN spark_instant_in(zn, moment) END)[1]",
)
"""A local time in a zone as an instant; null if there is no such zone."""
macro(
    "spark_day_micros",
    "g",
    "CAST('0' || g.hour AS BIGINT) * 3600000000 + CAST('0' || g.minute AS BIGINT) * 60000000 "
    "+ CAST('0' || g.second AS BIGINT) * 1000000 + CAST(rpad(g.fraction[1:6], 6, '0') AS BIGINT)",
)
_ONE: Final = "coalesce(TRY_CAST(g.{} AS BIGINT), 1)"
macro(
    "spark_date_of_parts",
    "g",
    f"TRY(make_date(TRY_CAST(g.year AS BIGINT), {_ONE.format('month')}, {_ONE.format('day')}))",
)
macro(
    "spark_moment_parts",
    "text",
    f"regexp_extract(text, '{_MOMENT}', ['year', 'month', 'day', {_CLOCK_NAMES}])",
)
macro(
    "spark_moment_of_parts",
    "g",
    "CASE WHEN g.year = '' THEN NULL ELSE "
    "TRY(CAST(spark_date_of_parts(g) AS TIMESTAMP) + to_microseconds(spark_day_micros(g))) END",
)
macro(
    "spark_plain_moment",
    "text",
    f"CASE WHEN regexp_full_match(text, '{_PLAIN_MOMENT}') "
    "THEN TRY_CAST(rtrim(text, 'Z') AS TIMESTAMP) END",
)
macro(
    "spark_text_to_timestamp_ntz",
    "text",
    "CASE WHEN text IS NULL THEN NULL ELSE coalesce(spark_plain_moment(text), "
    "list_transform([spark_moment_parts(text)], lambda mp: CASE WHEN mp.zone = '' "
    "OR spark_instant_at(mp.zone, TIMESTAMP '2000-01-01') IS NOT NULL "
    "THEN spark_moment_of_parts(mp) END)[1]) END",
)
macro(
    "spark_text_to_date",
    "text",
    f"CASE WHEN text IS NULL THEN NULL WHEN regexp_full_match(text, '{_PLAIN_DATE}') "
    "THEN TRY_CAST(text AS DATE) ELSE list_transform("
    f"[regexp_extract(text, '{_DATE}', ['year', 'month', 'day'])], "
    "lambda dp: spark_date_of_parts(dp))[1] END",
)
macro(
    "spark_year_text",
    "y",
    "CASE WHEN y > 9999 THEN '+' || y WHEN y < 0 THEN '-' || lpad(CAST(-y AS VARCHAR), "
    "CAST(greatest(4, length(CAST(-y AS VARCHAR))) AS INTEGER), '0') "
    "ELSE lpad(CAST(y AS VARCHAR), 4, '0') END",
)
macro(
    "spark_timestamp_to_text",
    "moment",
    "list_transform([CAST(moment AS TIMESTAMP)], lambda tt: "
    "CASE WHEN year(tt) BETWEEN 1 AND 9999 THEN CAST(tt AS VARCHAR) "
    "ELSE spark_year_text(year(tt)) || strftime(tt, '-%m-%d ') "
    "|| CAST(CAST(tt AS TIME) AS VARCHAR) END)[1]",
)
macro(
    "spark_moved",
    "instant, moment",
    "list_transform([CAST(moment AS TIMESTAMP)], lambda ml: list_transform([make_timestamptz("
    "epoch_us(ml) - (epoch_us(CAST(instant AS TIMESTAMP)) - epoch_us(instant)))], lambda mi: "
    "CASE WHEN CAST(mi AS TIMESTAMP) = ml THEN mi ELSE spark_instant(ml) END)[1])[1]",
)
"""The instant of a local time, with the offset of another instant where that is possible."""
macro(
    "spark_local_in",
    "zone_name, instant",
    "list_transform([spark_zone(zone_name)], lambda lz: "
    "CASE WHEN spark_zone_offset(lz) IS NOT NULL THEN make_timestamp(epoch_us(instant) "
    "+ CAST(spark_zone_offset(lz) AS BIGINT) * 1000000) "
    "WHEN spark_zone_known(lz) THEN timezone(lz, instant) END)[1]",
)
"""The local time of an instant in a zone; null if there is no such zone."""
macro(
    TIME_OF_DAY,
    "text",
    f"list_transform([regexp_extract(text, '{_TIME_OF_DAY}', [{_CLOCK_NAMES}])], lambda tg: "
    "CASE WHEN tg.hour = '' OR (tg.minute = '' AND NOT starts_with(text, 'T')) THEN NULL "
    f"WHEN {_RUN_MICROS} IS NULL THEN CAST('the time of day ' || text || ' {NO_DATE}' "
    "AS TIMESTAMPTZ) "
    f"WHEN tg.zone = '' THEN spark_instant(CAST(CAST(CAST({_RUN_INSTANT} AS TIMESTAMP) AS DATE) "
    "AS TIMESTAMP) + to_microseconds(spark_day_micros(tg))) "
    "ELSE list_transform([CAST(CAST(spark_local_in(tg.zone, "
    f"{_RUN_INSTANT}) AS DATE) AS TIMESTAMP)], lambda td: spark_instant_at(tg.zone, "
    "td + to_microseconds(spark_day_micros(tg))))[1] END)[1]",
)
"""Null if the text is no time of day. One that is has another value each day: without the moment of
the run it fails, by a cast as error() has no place within TRY. Then the query runs again with that
moment, and is not recognised in other runs."""
macro(
    "spark_text_to_timestamp",
    "text",
    "list_transform([spark_plain_moment(text)], lambda pm: "
    "CASE WHEN pm IS NOT NULL AND ends_with(text, 'Z') THEN make_timestamptz(epoch_us(pm)) "
    "WHEN pm IS NOT NULL THEN spark_instant(pm) WHEN text IS NULL THEN NULL ELSE "
    "list_transform([spark_moment_parts(text)], lambda mp: CASE "
    "WHEN mp.year = '' THEN spark_time_of_day(text) "
    "WHEN mp.zone = '' THEN TRY(spark_instant(spark_moment_of_parts(mp))) "
    "ELSE TRY(spark_instant_at(mp.zone, spark_moment_of_parts(mp))) END)[1] END)[1]",
)
macro(
    "spark_floor_div",
    "n, size",
    "((n - ((n % size) + size) % size) // size)",
)
_SECONDS_IN_DAY: Final = (
    "((epoch_us({i}) - epoch_us(spark_instant(CAST(CAST({i} AS TIMESTAMP) AS DATE)))) // 1000000)"
)
_LAST_DAY: Final = "day(CAST({i} AS TIMESTAMP)) = day(last_day(CAST({i} AS TIMESTAMP)))"
_MONTHS: Final = "(year(CAST({i} AS TIMESTAMP)) * 12 + month(CAST({i} AS TIMESTAMP)))"
_MONTH_DAY: Final = "day(CAST({i} AS TIMESTAMP))"
_MONTHS_APART: Final = f"({_MONTHS.format(i='be')} - {_MONTHS.format(i='bs')})"
macro(
    "spark_months_between",
    "later, earlier",
    "list_transform([later], lambda be: list_transform([earlier], lambda bs: "
    f"CASE WHEN {_MONTH_DAY.format(i='be')} = {_MONTH_DAY.format(i='bs')} "
    f"OR ({_LAST_DAY.format(i='be')} AND {_LAST_DAY.format(i='bs')}) "
    f"THEN CAST({_MONTHS_APART} AS DOUBLE) ELSE CAST({_MONTHS_APART} AS DOUBLE) "
    f"+ CAST(({_MONTH_DAY.format(i='be')} - {_MONTH_DAY.format(i='bs')}) * 86400 "
    f"+ {_SECONDS_IN_DAY.format(i='be')} - {_SECONDS_IN_DAY.format(i='bs')} AS DOUBLE) "
    "/ CAST(2678400 AS DOUBLE) END)[1])[1]",
)
macro(
    "spark_months_rounded",
    "months",
    "(floor(months * CAST(100000000 AS DOUBLE) + CAST('0.5' AS DOUBLE)) "
    "/ CAST(100000000 AS DOUBLE))",
)
"""Rounded as Java rounds: a half goes up."""


def reads_times_of_day(sql: str) -> bool:
    """Whether some text of a query may be a time of day: without a moment of the run it fails."""
    return TIME_OF_DAY in versions_in(sql)
