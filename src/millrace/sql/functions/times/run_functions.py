"""The moment and the day of a run: one value for all rows and tasks, as Spark has one for a query.

The caller of a query sets the variables that these macros read (`engine/run_values.py`). Without
them a query fails: in a job, for example, whose steps run for weeks.
"""

from __future__ import annotations

from typing import Final

from millrace.sql.engine_functions import macro
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.times.parsing_functions import DATES
from millrace.sql.functions.times.time_macros import MICROS_VARIABLE
from millrace.sql.typed_sql import TypedSql, combined
from millrace.sql.types import DATE, TIMESTAMP, TIMESTAMP_NTZ

DAY_VARIABLE: Final = "run_day"
RUN_DAY: Final = "spark_run_day"
RUN_MICROS: Final = "spark_run_micros"
NO_RUN: Final = "the time of the run is not known here"

for _name, _variable, _type in (
    (RUN_DAY, DAY_VARIABLE, "DATE"),
    (RUN_MICROS, MICROS_VARIABLE, "BIGINT"),
):
    # A text that is no value fails. error() would too, but has no place within TRY.
    _text = f"coalesce(CAST(getvariable('{_variable}') AS VARCHAR), '{NO_RUN}')"
    macro(_name, "", f"CAST({_text} AS {_type})")


@function("current_date(); curdate()", group=DATES, least=0)
def _current_date(_: str, args: list[TypedSql]) -> TypedSql:
    return combined(f"{RUN_DAY}()", DATE, args, label="current_date()", never_null=True)


@function("current_timestamp(); now()", group=DATES, least=0)
def _current_timestamp(name: str, args: list[TypedSql]) -> TypedSql:
    sql = f"make_timestamptz({RUN_MICROS}())"
    return combined(sql, TIMESTAMP, args, label=f"{name}()", never_null=True)


@function("localtimestamp()", group=DATES, least=0)
def _local_timestamp(name: str, args: list[TypedSql]) -> TypedSql:
    sql = f"CAST(make_timestamptz({RUN_MICROS}()) AS TIMESTAMP)"
    return combined(sql, TIMESTAMP_NTZ, args, label=f"{name}()", never_null=True)
