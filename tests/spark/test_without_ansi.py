"""With spark.sql.ansi.enabled = false every native expression has Spark's value and type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.laws import few_quick
from tests.spark import (
    test_expressions_equal_spark,
    test_nested_equal_spark,
    test_text_equal_spark,
)
from tests.spark.nested_kit import NESTED
from tests.spark.row_answers import NOT_NATIVE, EngineAnswers, SparkAnswers, differences, settings
from tests.spark.text_kit import TABLE as TEXTS
from tests.spark.text_kit import listed as listed_texts

from millrace.sql.sql_mode import with_ansi

# A row's error is caught in the JVM of a classic session.
pytestmark = [pytest.mark.spark, pytest.mark.classic_only]


def expressions() -> list[str]:
    kit = test_expressions_equal_spark
    return [case.partition(" where ")[0] for case in kit.listed(*kit.SECTIONS, "errors")]


def nested() -> list[str]:
    kit = test_nested_equal_spark
    return [case.partition(" where ")[0] for case in kit.listed(*kit.SECTIONS, "errors")]


def texts() -> list[str]:
    sections = (*test_text_equal_spark.SECTIONS, "errors")
    cases = [case.partition(" where ")[0] for part in sections for case in listed_texts(part)]
    # Without code generation Spark has another value for a limit that is null.
    return [case for case in cases if case != "levenshtein(s, t, n)"]


NAN = float("nan")
JUNK = [
    *("1.5", ".", "-.", "+", "-", "1.x", "99999999999", "-129", " 12\t", "\x001.9", "1e3", "+.5"),
    *("9223372036854775808", "-9223372036854775808.9", "", " ", "--1", "1.", "TRUE", "n", None),
    *("32768.2", "-0", "NaN", "123456789012345678901234567890123456789", "0x1F", "2020-02-30"),
]
CASTS = pa.table(
    {
        "id": pa.array(range(len(JUNK)), pa.int32()),
        "s": JUNK,
        "l": pa.array([(n - 13) * 7**n for n in range(len(JUNK) - 6)] + [None] * 6, pa.int64()),
        "x": pa.array(
            [(n - 13) * 10.7**n for n in range(len(JUNK) - 3)] + [float("nan"), 0.5, None]
        ),
        "f": pa.array([(n - 13) * 5.3**n for n in range(len(JUNK))], pa.float32()),
        "d": pa.array(
            [Decimal((n - 13) * 19**n).scaleb(-2) for n in range(len(JUNK))], pa.decimal128(38, 2)
        ),
        "b": pa.array([n % 3 == 0 for n in range(len(JUNK))]),
    }
)
TARGETS = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "date"),
    *("decimal(5,2)", "decimal(38,0)", "decimal(3,3)", "decimal(38,10)", "timestamp"),
)


def casts() -> list[str]:
    names = [name for name in CASTS.column_names if name != "id"]
    tried = [f"cast({name} as {to})" for name in names for to in TARGETS]
    chained = [
        "cast(cast(s as double) as int)",
        "cast(cast(l as int) as tinyint)",
        "l * l",
        "l + l",
    ]
    return [
        *tried,
        *chained,
        "l - x",
        "d * d",
        "d + 1",
        "d / l",
        "l div 0",
        "x % 0",
        "-l",
        "abs(l)",
    ]


KITS: dict[str, tuple[pa.Table, Callable[[], list[str]]]] = {
    "expressions": (test_expressions_equal_spark.TABLE, expressions),
    "nested": (NESTED, nested),
    "texts": (TEXTS, texts),
    "casts": (CASTS, casts),
}


@pytest.fixture(scope="module")
def off(spark: SparkSession) -> Iterator[SparkSession]:
    given = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    with settings(spark, given):
        yield spark


@pytest.mark.parametrize("kit", few_quick(KITS, 1))
def test_every_native_case_equals_sparks(off: SparkSession, tmp_path: Path, kit: str) -> None:
    table, listed = KITS[kit]
    cases = list(dict.fromkeys(listed()))
    pq.write_table(table, tmp_path / "table.parquet")
    frame = off.read.parquet(str(tmp_path / "table.parquet")).cache()
    engine = EngineAnswers(table)
    with with_ansi(ansi=False):
        mine = [engine(case) for case in cases]
    engine.close()
    pairs = [(c, own) for c, own in zip(cases, mine, strict=True) if own.kind != NOT_NATIVE]
    assert len(pairs) > len(cases) * 2 // 3
    cases, mine = [case for case, _ in pairs], [own for _, own in pairs]
    found = differences(cases, mine, SparkAnswers(frame)(cases), table)
    frame.unpersist()
    assert found == []
