"""Functions of `pyspark.sql.functions` that the engine does not know: Spark computes the column."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.function_calls import FunctionCall, answered, columns_of, stored_calls
from tests.spark.spark_examples import alike, plain_rows
from tests.unit.sql.test_function_calls import ON_SPARK, outcomes

import millrace as mr
from millrace import functions as F  # noqa: N812 - as Spark's users write it

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:WARN WindowExpression"),
    pytest.mark.filterwarnings("ignore:Deprecated"),
]
TOGETHER_MAX = 60
"""How many calls are columns of one query."""


def test_what_is_left_to_spark_comes_back_as_spark_gives_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_rows: dict[str, list[FunctionCall]] = defaultdict(list)
    for call, kind, _ in outcomes():
        if kind == ON_SPARK and call.answer is not None and len(call.answer) == 1:
            by_rows[call.rows].append(call)
    unlike = []
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        for rows, calls in by_rows.items():
            for first in range(0, len(calls), TOGETHER_MAX):
                part = calls[first : first + TOGETHER_MAX]
                columns = [columns_of(call, F, mr.Window) for call in part]
                query = ws.sql(rows).select(
                    *(column.alias(f"c{n}") for n, column in enumerate(columns))
                )
                (values,) = plain_rows(query.to_arrow())
                unlike += [
                    (call.call, value, call.answer)
                    for call, value in zip(part, values, strict=True)
                    if not alike(((value,),), call.answer)
                ]
    assert unlike == []


def test_the_stored_answers_are_sparks(spark: SparkSession) -> None:
    changed = [
        (call, now)
        for call in stored_calls()
        if (now := answered(spark, call)).names != call.names or now.error != call.error
    ]
    assert changed == []
