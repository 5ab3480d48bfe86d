"""Values that are the same for all tasks of a run: its moment, and the day of that moment.

Invariant: rows that depend on the moment of a run are not recognised in another run; those that
depend on its day alone are, on the same day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb

from millrace.sql.engine_functions import versions_in
from millrace.sql.functions.times.run_functions import (
    DAY_VARIABLE,
    RUN_DAY,
    RUN_MICROS,
)
from millrace.sql.functions.times.time_macros import MICROS_VARIABLE, NO_DATE, TIME_OF_DAY

OF_THIS_RUN: Final = "current_timestamp is the time of the run, which is another one in each run"
OF_THIS_DAY: Final = "a text is a time without a date: one of the day on which the query runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMoment:
    """When a run began. With `dates_texts`, a text that is a time of day is one of that day."""

    micros: int
    dates_texts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValues:
    """What a query needs of its run. `reason` says why its rows are not recognised in another."""

    micros: int | None = None
    day: str | None = None
    reason: str | None = None

    def give(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Set the variables that our functions read."""
        if self.micros is not None:
            connection.execute(f"SET VARIABLE {MICROS_VARIABLE} = CAST({self.micros} AS BIGINT)")
        if self.day is not None:
            connection.execute(f"SET VARIABLE {DAY_VARIABLE} = DATE '{self.day}'")


NO_VALUES: Final = RunValues()


def values_for(sql: str, moment: RunMoment | None, time_zone: str) -> RunValues:
    """What a query uses of the run that began at a moment."""
    if moment is None:
        return NO_VALUES
    used = versions_in(sql)
    dates_texts = moment.dates_texts and TIME_OF_DAY in used
    reason = OF_THIS_RUN if RUN_MICROS in used else OF_THIS_DAY if dates_texts else None
    return RunValues(
        micros=moment.micros if reason is not None else None,
        day=day_of(moment.micros, time_zone) if RUN_DAY in used else None,
        reason=reason,
    )


def day_of(micros: int, time_zone: str) -> str:
    """The day of a moment in a time zone, as the engine knows zones."""
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = ?", [time_zone])
        rows = connection.execute(
            f"SELECT CAST(CAST(make_timestamptz({micros}) AS DATE) AS VARCHAR)"
        ).fetchall()
    return str(rows[0][0])


def uses_the_run(sql: str) -> bool:
    """Whether a query needs the moment or the day of its run."""
    return not versions_in(sql).keys().isdisjoint({RUN_DAY, RUN_MICROS})


def lacks_day_of_run(error: Exception) -> bool:
    """Whether a query failed because a text is a time of day, and no day was given for it."""
    return NO_DATE in str(error)
