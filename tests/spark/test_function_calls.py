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
GENERATORS = frozenset(
    {
        *("variant_explode", "variant_explode_outer", "stack", "json_tuple"),
        *("window", "session_window"),
    }
)
"""Functions of which a query has one."""
CHANGING = frozenset({"rand", "randn"})
"""Functions whose columns have another name each time: their seed."""
TOGETHER_MAX = 60
"""How many calls are columns of one query."""


def test_what_is_left_to_spark_comes_back_as_spark_gives_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_rows: dict[tuple[str, str], list[FunctionCall]] = defaultdict(list)
    for call, kind, _ in outcomes():
        if kind == ON_SPARK and call.answer is not None:
            makes_rows = len(call.names) != 1 or call.function in GENERATORS
            by_rows[call.rows, call.call if makes_rows else ""].append(call)
    unlike = []
    with mr.open(tmp_path / "mill", spark, create=True) as ws:
        for (rows, alone), calls in by_rows.items():
            if alone:
                query = ws.sql(rows).select(columns_of(calls[0], F, mr.Window))
                assert tuple(query.columns) == calls[0].names
                found = plain_rows(query.to_arrow())
                unlike += [] if alike(found, calls[0].answer) else [(alone, found)]
                continue
            for first in range(0, len(calls), TOGETHER_MAX):
                part = calls[first : first + TOGETHER_MAX]
                columns = [columns_of(call, F, mr.Window) for call in part]
                query = ws.sql(rows).select(*columns)
                names = tuple(name for call in part for name in call.names)
                assert tuple(query.columns) == names
                found = plain_rows(query.to_arrow())
                for number, call in enumerate(part):
                    values = tuple((row[number],) for row in found)
                    unlike += [] if alike(values, call.answer) else [(call.call, values)]
    assert unlike == []


def test_the_stored_answers_are_sparks(spark: SparkSession) -> None:
    changed = [
        (call, now)
        for call in stored_calls()
        if call.function not in CHANGING
        if (now := answered(spark, call)).names != call.names or now.error != call.error
    ]
    assert changed == []
