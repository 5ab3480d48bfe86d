"""Dates, times, numbers and casts have Spark's value on every row, or fail on it as in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.row_answers import (
    NOT_NATIVE,
    EngineAnswers,
    SparkAnswers,
    differences,
    listed,
    settings,
)
from tests.spark.times_table import TABLE

from millrace.sql.sql_mode import with_ansi

# A row's error is caught in the JVM of a classic session.
pytestmark = [pytest.mark.spark, pytest.mark.classic_only]
CASES = Path(__file__).parent / "times_cases.txt"
ZONES = ("UTC", "America/Los_Angeles", "Asia/Kolkata", "Europe/Berlin", "Pacific/Apia")


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    path = Path(tmp_path_factory.mktemp("times")) / "table.parquet"
    pq.write_table(TABLE, path)
    given = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with settings(spark, given):
        frame = spark.read.parquet(str(path)).cache()
        yield frame
        frame.unpersist()


def compared(frame: DataFrame, cases: list[str], zone: str, *, ansi: bool = True) -> list[str]:
    """What differs from Spark in a time zone."""
    given = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": str(ansi).lower()}
    with settings(frame.sparkSession, given):
        theirs = SparkAnswers(frame)(cases)
    engine = EngineAnswers(TABLE, zone)
    with with_ansi(ansi=ansi):
        mine = [engine(case, own.failing) for case, own in zip(cases, theirs, strict=True)]
    engine.close()
    native = sum(own.kind != NOT_NATIVE for own in mine)
    assert native == len(cases) if ansi else native > len(cases) // 2
    return differences(cases, mine, theirs, TABLE)


@pytest.mark.slow
def test_without_ansi_mode_every_native_case_still_equals_sparks(frame: DataFrame) -> None:
    assert compared(frame, listed(CASES), "UTC", ansi=False) == []


def test_every_row_of_every_case_equals_sparks(frame: DataFrame) -> None:
    assert compared(frame, listed(CASES), "America/Los_Angeles") == []


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_every_row_of_every_case_equals_sparks_in_every_zone(frame: DataFrame, zone: str) -> None:
    assert compared(frame, listed(CASES), zone) == []
