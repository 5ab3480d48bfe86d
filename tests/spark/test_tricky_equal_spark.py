"""Expressions over rows that are hard for them have Spark's values, or fail as in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
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
from tests.spark.tricky_table import KINDS, TABLE

from millrace.sql.sql_mode import with_ansi

# A row's error is caught in the JVM of a classic session.
pytestmark = [pytest.mark.spark, pytest.mark.classic_only, pytest.mark.slow]
CASES = Path(__file__).parent / "tricky_cases.txt"
SECTIONS = ("times", "days", "texts", "numbers", "nulls", "tried", "more")
NATIVE_MIN = {"times": 0.95, "days": 0.85, "texts": 0.85, "numbers": 0.85, "nulls": 0.75}
"""How many of the cases of a section are native at least; of the others all may be Spark's."""
DECIMALS = [f"{a} {op} {b}" for a, b in product(KINDS, KINDS) for op in "+-*/%"]
DECIMALS += [f"{a} div {b}" for a, b in product(KINDS, KINDS)]


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    path = Path(tmp_path_factory.mktemp("tricky")) / "table.parquet"
    pq.write_table(TABLE, path)
    given = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # What two cases share would be evaluated first, and fail where neither case does.
        "spark.sql.subexpressionElimination.enabled": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    }
    with settings(spark, given):
        frame = spark.read.parquet(str(path)).cache()
        yield frame
        frame.unpersist()


def compared(
    frame: DataFrame, cases: list[str], *, ansi: bool, native_min: float, zone: str = "UTC"
) -> list[str]:
    """What differs from Spark; at least a part of the cases is native."""
    given = {"spark.sql.ansi.enabled": str(ansi).lower(), "spark.sql.session.timeZone": zone}
    with settings(frame.sparkSession, given):
        theirs = SparkAnswers(frame)(cases)
    engine = EngineAnswers(TABLE, zone)
    with with_ansi(ansi=ansi):
        mine = [engine(case, own.failing) for case, own in zip(cases, theirs, strict=True)]
    engine.close()
    assert sum(own.kind != NOT_NATIVE for own in mine) >= native_min * len(cases)
    return differences(cases, mine, theirs, TABLE)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_case_equals_sparks(frame: DataFrame, section: str) -> None:
    cases, least = listed(CASES, section), NATIVE_MIN.get(section, 0)
    assert compared(frame, cases, ansi=True, native_min=least) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_case_equals_sparks_without_ansi_mode(frame: DataFrame, section: str) -> None:
    assert compared(frame, listed(CASES, section), ansi=False, native_min=0) == []


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata"])
def test_times_equal_sparks_in_other_zones(frame: DataFrame, zone: str) -> None:
    cases = listed(CASES, "times", "days")
    assert compared(frame, cases, ansi=True, native_min=0.85, zone=zone) == []


@pytest.mark.parametrize("mode", ["ansi", "not ansi"])
def test_arithmetic_of_decimals_of_every_width_equals_sparks(frame: DataFrame, mode: str) -> None:
    assert compared(frame, DECIMALS, ansi=mode == "ansi", native_min=0.5) == []
