"""Calls of users' functions that Spark makes itself, over the saved rows of their input.

Tasks call functions through the code of Spark's own workers. Before Spark 4.3 that code cannot be
called from a task, so there the call is Spark's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField

from millrace.identity.unrecognisable import Unrecognisable
from millrace.plan.nodes.on_spark import SparkCode
from millrace.plan.nodes.user_code.user_function import FunctionCall, UserFunction


def calls_on_spark(
    calls: Sequence[FunctionCall], *, passed: Sequence[str], keys: Sequence[str] | None
) -> SparkCode:
    """Columns that are passed on, then results: of each row, or with keys of each group."""

    def build(frame: DataFrame) -> DataFrame:
        results = [_column(call, frame) for call in calls]
        if keys is not None:
            return frame.groupBy(*(frame[_quoted(key)] for key in keys)).agg(*results)
        return frame.select(*(frame[_quoted(name)] for name in passed), *results)

    text = ", ".join([*passed, *(call.describe() for call in calls)])
    try:
        identity: str | None = " ".join([text, *(call.identity() for call in calls)])
    except Unrecognisable:
        identity = None
    return SparkCode(text=text, build=build, identity=identity)


def _column(call: FunctionCall, frame: DataFrame) -> Column:
    arguments = [frame[_quoted(name)] for name in call.arguments]
    named = {keyword: frame[_quoted(name)] for keyword, name in call.keywords}
    made: Column = _spark_function(call.function, frame)(*arguments, **named)
    return made.alias(call.column)


def _spark_function(function: UserFunction, frame: DataFrame) -> Any:  # noqa: ANN401 - PySpark's
    """The function as the DataFrame's kind of session calls it."""
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect import udf  # noqa: PLC0415 - needs a client's packages
    else:
        from pyspark.sql import udf  # type: ignore[no-redef]  # noqa: PLC0415 - beside it
    made = udf.UserDefinedFunction(
        function.function,
        returnType=StructField.fromJson(
            {"name": "r", "type": json.loads(function.result_json), "nullable": True}
        ).dataType,
        name=function.name,
        evalType=function.eval_type,
        deterministic=function.deterministic,
    )
    return made._wrapped()  # noqa: SLF001 - as PySpark's own maker does


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
