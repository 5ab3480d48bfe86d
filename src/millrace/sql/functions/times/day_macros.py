"""Macros over days as Spark has them: 32 bits of days, without a place for infinity.

The engine takes the days 5881580-07-11 and -5877641-06-24 for infinite ones, which have no fields.
The calendar repeats itself after 400 years, of whole weeks: the fields of such days, and of days so
near to the ends that their week or year is not whole, are those of a day 400 years nearer.
"""

from __future__ import annotations

from typing import Final

from millrace.sql.engine_functions import macro
from millrace.sql.functions.times import time_macros as _called_here  # noqa: F401 - they come first

DATE_TEXT: Final = "spark_date_to_text({})"
"""The text of a day."""
_USUAL: Final = "d BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'"
_NUMBER: Final = "CAST(d - DATE '1970-01-01' AS BIGINT)"
_YEARS: Final = 400
_DAYS: Final = 146_097
_FIELDS: Final = {
    "month": "month(d)",
    "day": "day(d)",
    "quarter": "quarter(d)",
    "dayofyear": "dayofyear(d)",
    "dayofweek": "dayofweek(d)",
    "isodow": "isodow(d)",
}
macro(
    "spark_inner_day",
    "d",
    f"CASE WHEN {_USUAL} THEN d WHEN d > DATE '1970-01-01' "
    f"THEN make_date(CAST({_NUMBER} - {_DAYS} AS INTEGER)) "
    f"ELSE make_date(CAST({_NUMBER} + {_DAYS} AS INTEGER)) END",
)
"""A usual day as it is, another one 400 years nearer."""
macro(
    "spark_years_away",
    "d",
    f"CASE WHEN {_USUAL} THEN 0 WHEN d > DATE '1970-01-01' THEN {_YEARS} ELSE -{_YEARS} END",
)
macro("spark_year", "d", "coalesce(year(d), year(spark_inner_day(d)) + spark_years_away(d))")
macro("spark_isoyear", "d", "(isoyear(spark_inner_day(d)) + spark_years_away(d))")
macro("spark_week", "d", "week(spark_inner_day(d))")
for _name, _sql in _FIELDS.items():
    macro(f"spark_{_name}", "d", f"coalesce({_sql}, {_sql.replace('(d)', '(spark_inner_day(d))')})")
macro(
    "spark_date_to_text",
    "d",
    "CASE WHEN year(d) BETWEEN 1 AND 9999 THEN CAST(d AS VARCHAR) "
    "ELSE spark_year_text(spark_year(d)) || strftime(spark_inner_day(d), '-%m-%d') END",
)
macro(
    "spark_date_add",
    "d, days",
    f"CASE WHEN {_USUAL} AND days BETWEEN -2000000 AND 2000000 THEN d + CAST(days AS INTEGER) "
    f"ELSE make_date(CAST((({_NUMBER} + days "
    "+ 2147483648) & 4294967295) - 2147483648 AS INTEGER)) END",
)
"""Some days later; days wrap around at the ends of their 32 bits."""
for _unit, _first in {
    "year": "make_date(year({d}), CAST(1 AS BIGINT), CAST(1 AS BIGINT))",
    "month": "make_date(year({d}), month({d}), CAST(1 AS BIGINT))",
    "quarter": "make_date(year({d}), quarter({d}) * 3 - 2, CAST(1 AS BIGINT))",
    "week": "({d} - CAST(isodow({d}) - 1 AS INTEGER))",
}.items():
    _inner = "spark_inner_day(d)"
    macro(
        f"spark_first_day_of_{_unit}",
        "d",
        f"CASE WHEN {_USUAL} THEN {_first.format(d='d')} "
        f"ELSE spark_date_add(d, {_first.format(d=_inner)} - {_inner}) END",
    )
macro(
    "spark_last_day",
    "d",
    f"CASE WHEN {_USUAL} THEN last_day(d) "
    "ELSE spark_date_add(d, last_day(spark_inner_day(d)) - spark_inner_day(d)) END",
)
macro(
    "spark_same_day_of_month",
    "d, months",
    "list_transform([make_date(CAST(spark_floor_div(months, 12) AS BIGINT), "
    "CAST(((months % 12) + 12) % 12 + 1 AS BIGINT), CAST(1 AS BIGINT))], lambda fm: "
    "spark_date_add(fm, least(spark_day(d), spark_day(spark_last_day(fm))) - 1))[1]",
)
macro(
    "spark_add_months",
    "d, months",
    f"CASE WHEN {_USUAL} AND months BETWEEN -60000 AND 60000 "
    "THEN CAST(d + to_months(months) AS DATE) ELSE spark_same_day_of_month("
    "d, CAST(spark_year(d) AS BIGINT) * 12 + spark_month(d) - 1 + months) END",
)
