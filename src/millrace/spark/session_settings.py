"""Settings of a Spark session that change answers: followed, or reasons to let Spark compute.

Invariant: Millrace's answer is Spark's answer under the session's settings. A plan is built in the
session's mode (`sql/sql_mode.py`), and runs only while the session still has that mode. The time
zone is followed and recorded with the work.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import UserError
from millrace.plan.nodes.node import Node
from millrace.plan.plan_modes import modes_in
from millrace.spark.spark_presence import call_spark, is_connect, setting
from millrace.sql.sql_mode import DEFAULT, FILES, SqlMode, changes_answers, mode_of

_TIME_ZONE: Final = "spark.sql.session.timeZone"


def time_zone(spark: SparkSession, config: Config) -> str:
    """The session's time zone, which decides what times mean."""
    return setting(spark, config, _TIME_ZONE, "UTC")


def session_mode(spark: SparkSession, config: Config) -> SqlMode:
    """The mode that the session asks for."""
    return mode_of(given_settings(spark, config))


def files_on_spark(spark: SparkSession, config: Config) -> str | None:
    """The first setting because of which Spark itself has to read files; None if there is none.

    A classic session is asked for these settings alone. All of them would be two calls to the JVM
    for each setting that the session was given.
    """
    if is_connect(spark):
        return session_mode(spark, config).files_on_spark

    def ask() -> dict[str, str]:
        found = {name: spark.conf.get(name, None) for name in FILES}
        return {name: str(value) for name, value in found.items() if value is not None}

    return mode_of(call_spark(spark, config, ask)).files_on_spark


def check_mode(plan: Node, mode: SqlMode) -> None:
    """Raise if a part of the plan was built in another mode than the session has now."""
    for built in modes_in(plan):
        if built != mode:
            raise UserError(
                "the settings of the session changed after this was described\n"
                f"  found: {mode}\n"
                f"  described with: {built}\n"
                "  to fix: describe it again, with the session given to mr.open(path, spark)"
            )


def check_job_settings(spark: SparkSession, config: Config) -> None:
    """Raise if Spark would answer otherwise under this session's settings than a job does."""
    mode = session_mode(spark, config)
    if mode not in (DEFAULT, SqlMode(files_on_spark=mode.files_on_spark)):
        raise UserError(
            f"jobs compute with Spark's default settings\n  found: {mode}\n"
            "  to fix: run the job in a session with the defaults of these settings"
        )


def settings_of(spark: SparkSession, config: Config) -> dict[str, str]:
    """All settings of a session that may change what Spark answers, where they were given."""
    given = given_settings(spark, config)
    names = sorted(filter(changes_answers, given))
    return {**{name: given[name] for name in names}, _TIME_ZONE: time_zone(spark, config)}


def given_settings(spark: SparkSession, config: Config) -> dict[str, str]:
    """All settings that the session was given."""
    return call_spark(
        spark, config, lambda: {name: str(value) for name, value in spark.conf.getAll.items()}
    )
