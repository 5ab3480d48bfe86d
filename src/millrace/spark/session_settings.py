"""Settings of a Spark session that change answers: followed, part of identity, or refused.

Invariant: Millrace's answer is Spark's answer under the session's settings. The time zone is
followed and recorded with the work. Of the others Millrace supports one value each; a
session with another value gets an error before any work begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import UserError
from millrace.spark.spark_presence import call_spark, setting

_TIME_ZONE: Final = "spark.sql.session.timeZone"
COMPUTED: Final[Mapping[str, tuple[str, ...]]] = {
    "spark.sql.ansi.enabled": ("true",),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("false",),
    "spark.sql.caseSensitive": ("false",),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("true",),
    "spark.sql.legacy.allowNegativeScaleOfDecimal": ("false",),
    "spark.sql.legacy.castComplexTypesToString.enabled": ("false",),
    "spark.sql.legacy.literal.pickMinimumPrecision": ("true",),
    "spark.sql.legacy.nullInEmptyListBehavior": ("false",),
    "spark.sql.legacy.sizeOfNull": ("false",),
    "spark.sql.legacy.statisticalAggregate": ("false",),
    "spark.sql.legacy.timeParserPolicy": ("corrected", "exception"),
    "spark.sql.parquet.binaryAsString": ("false",),
    "spark.sql.parquet.int96TimestampConversion": ("false",),
    "spark.sql.parser.escapedStringLiterals": ("false",),
    "spark.sql.parser.quotedRegexColumnNames": ("false",),
    "spark.sql.timestampType": ("timestamp_ltz",),
}
"""For settings that change answers the values, in lower case, as which Millrace computes."""


def time_zone(spark: SparkSession, config: Config) -> str:
    """The session's time zone, which decides what times mean."""
    return setting(spark, config, _TIME_ZONE, "UTC")


def check_settings(spark: SparkSession, config: Config) -> None:
    """Raise if Spark would answer otherwise under this session's settings."""
    given = given_settings(spark, config)
    for name in sorted(COMPUTED.keys() & given.keys()):
        if given[name].lower() not in COMPUTED[name]:
            computed = COMPUTED[name][0]
            raise UserError(
                f"the session has {name} = {given[name]}\n"
                f"  found: Spark answers otherwise then; Millrace computes as with {computed}\n"
                f"  to fix: spark.conf.set({name!r}, {computed!r}); or let Spark compute what "
                "depends on it, and give the result to ws.from_spark(frame)"
            )


def settings_of(spark: SparkSession, config: Config) -> dict[str, str]:
    """All settings of a session that may change what Spark answers, where they were given."""
    given = given_settings(spark, config)
    names = {name for name in given if name in COMPUTED or name.startswith("spark.sql.legacy.")}
    return {**{name: given[name] for name in sorted(names)}, _TIME_ZONE: time_zone(spark, config)}


def given_settings(spark: SparkSession, config: Config) -> dict[str, str]:
    """All settings that the session was given."""
    settings = call_spark(spark, config, lambda: spark.conf.getAll)
    return {name: str(value) for name, value in settings.items()}
