"""Users' functions as PySpark describes them: objects of its own, or messages of Spark Connect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.pandas import typehints
from pyspark.sql.types import DataType, StructField, StructType
from pyspark.util import PythonEvalType

from millrace.errors import UserError
from millrace.identity.unrecognisable import Unrecognisable
from millrace.plan.nodes.on_spark import SparkCode
from millrace.plan.nodes.user_code.user_function import Shape, TaskCaller, UserFunction
from millrace.spark.spark_analysis import arrow_columns
from millrace.spark.udfs.ddl_types import type_of_ddl
from millrace.spark.udfs.pickled_results import PickledResults
from millrace.spark.versions.spark_versions import CALLS_IN_TASKS, has

_SHAPES: Final[dict[str, Shape]] = {
    "SQL_BATCHED_UDF": "row",
    "SQL_ARROW_BATCHED_UDF": "row",
    "SQL_SCALAR_PANDAS_UDF": "batch",
    "SQL_SCALAR_ARROW_UDF": "batch",
    "SQL_SCALAR_PANDAS_ITER_UDF": "stream",
    "SQL_SCALAR_ARROW_ITER_UDF": "stream",
    "SQL_GROUPED_AGG_PANDAS_UDF": "group",
    "SQL_GROUPED_AGG_ARROW_UDF": "group",
    "SQL_GROUPED_AGG_PANDAS_ITER_UDF": "group",
    "SQL_GROUPED_AGG_ARROW_ITER_UDF": "group",
    "SQL_MAP_ARROW_ITER_UDF": "rows",
    "SQL_MAP_PANDAS_ITER_UDF": "rows",
    "SQL_GROUPED_MAP_ARROW_UDF": "rows",
    "SQL_GROUPED_MAP_ARROW_ITER_UDF": "rows",
    "SQL_GROUPED_MAP_PANDAS_UDF": "rows",
    "SQL_GROUPED_MAP_PANDAS_ITER_UDF": "rows",
    "SQL_COGROUPED_MAP_ARROW_UDF": "pairs",
    "SQL_COGROUPED_MAP_PANDAS_UDF": "pairs",
}
SHAPES: Final[dict[int, Shape]] = {
    getattr(PythonEvalType, name): shape
    for name, shape in _SHAPES.items()
    if hasattr(PythonEvalType, name)  # Some came after Spark 4.0.
}

_ROW_METHODS: Final = {
    "mapInArrow": PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    "mapInPandas": PythonEvalType.SQL_MAP_PANDAS_ITER_UDF,
    "applyInArrow": PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF,
    "applyInPandas": PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF,
    "cogroup.applyInArrow": PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF,
    "cogroup.applyInPandas": PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF,
}
_METHODS: Final = {
    **{kind: method.rpartition(".")[2] for method, kind in _ROW_METHODS.items()},
    getattr(PythonEvalType, "SQL_GROUPED_MAP_ARROW_ITER_UDF", -1): "applyInArrow",
    getattr(PythonEvalType, "SQL_GROUPED_MAP_PANDAS_ITER_UDF", -1): "applyInPandas",
}
"""The methods of DataFrames that call functions of these kinds."""


class PythonUdfMessage(Protocol):
    """The message of a function in a plan of Spark Connect."""

    function_name: str
    deterministic: bool

    @property
    def python_udf(self) -> Any:  # noqa: ANN401 - protobuf
        """Its pickled code, its type, and how it is called."""


def is_udf(value: object) -> bool:
    """Whether this is a function that `udf`, `pandas_udf` or `arrow_udf` made."""
    return all(hasattr(value, name) for name in ("func", "returnType", "evalType"))


def function_of_udf(udf: Any, name: str | None = None) -> UserFunction:  # noqa: ANN401 - PySpark's
    """A function that PySpark's `udf`, `pandas_udf` or `arrow_udf` made."""
    if not is_udf(udf):
        raise UserError(
            f"{type(udf).__name__} is no function of Spark\n"
            "  to fix: make one with functions.udf(), pandas_udf() or arrow_udf()"
        )
    own_name = getattr(udf, "_name", None) or getattr(udf, "__name__", None) or "udf"
    return user_function(
        name or own_name,
        udf.func,
        udf.returnType,
        udf.evalType,
        deterministic=bool(getattr(udf, "deterministic", True)),
    )


def function_of_message(message: PythonUdfMessage) -> UserFunction:
    """A function as a plan of Spark Connect carries it."""
    function, result = cloudpickle.loads(message.python_udf.command)
    return user_function(
        message.function_name,
        function,
        result,
        message.python_udf.eval_type,
        deterministic=message.deterministic,
    )


def user_function(
    name: str,
    function: Callable[..., Any],
    result: DataType,
    eval_type: int,
    *,
    deterministic: bool,
) -> UserFunction:
    """A function with Spark's type of its results, called as `eval_type` says."""
    if eval_type not in SHAPES:
        raise UserError(
            f"{name} cannot be called in an expression\n  found: eval type {eval_type}\n"
            "  to fix: use the method that takes such a function, as mapInArrow or applyInPandas"
        )
    called: Callable[..., Any] = function
    if eval_type == PythonEvalType.SQL_BATCHED_UDF:
        called = PickledResults(function, result)
    try:
        command: bytes = cloudpickle.dumps((called, result))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise UserError(
            f"{name} cannot be sent to tasks: {error}\n"
            "  to fix: open files, connections and locks inside the function, not outside"
        ) from error
    return UserFunction(
        name=name,
        function=function,
        command=command,
        eval_type=eval_type,
        shape=SHAPES[eval_type],
        result=result_type(result),
        result_json=result.json(),
        deterministic=deterministic,
        caller=_task_caller(),
    )


def _task_caller() -> TaskCaller:
    """What calls functions in tasks; where Spark calls them itself, nothing does."""
    if has(CALLS_IN_TASKS):
        from millrace.spark.udfs.udf_worker import call_functions  # noqa: PLC0415 - not before it

        return call_functions
    return _no_caller


def _no_caller(*_arguments: object, **_named: object) -> NoReturn:
    raise AssertionError("before Spark 4.3, Spark calls functions itself")


def rows_function(function: object, schema: object, method: str) -> UserFunction:
    """The function of mapInArrow, mapInPandas, applyInArrow or applyInPandas of a dataset."""
    method, whole = method.rpartition(".")[2], method
    if not callable(function):
        raise UserError(
            f"{method}() of {type(function).__name__}, which cannot be called\n"
            "  to fix: give a function"
        )
    result = type_of_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(result, StructType):
        raise UserError(
            f"{method}(): schema names no columns\n  found: {schema!r}\n"
            "  to fix: write 'a int, b string', or give a StructType"
        )
    eval_type = _ROW_METHODS[whole]
    kind = {"applyInArrow": "arrow", "applyInPandas": "pandas"}.get(whole)
    infer = getattr(typehints, f"infer_group_{kind}_eval_type_from_func", None)
    if infer is not None:  # Since Spark 4.1.
        with contextlib.suppress(Exception):  # Type hints that tell nothing.
            eval_type = infer(function) or eval_type
    name = getattr(function, "__name__", type(function).__name__)
    return user_function(name, function, result, eval_type, deterministic=True)


def call_on_spark(
    function: UserFunction, keys: Sequence[Sequence[str]], arguments: Sequence[object]
) -> SparkCode:
    """The method of DataFrames that calls the function; keys of each DataFrame are SQL."""
    method = _METHODS[function.eval_type]
    schema = StructType.fromJson(json.loads(function.result_json))

    def build(*frames: DataFrame) -> DataFrame:
        over: Any = frames[0]
        if keys:
            groups = [f.groupBy(*map(expr, texts)) for f, texts in zip(frames, keys, strict=True)]
            over = groups[0].cogroup(groups[1]) if len(groups) > 1 else groups[0]
        made: DataFrame = getattr(over, method)(function.function, schema, *arguments)
        return made

    by = "; ".join(", ".join(texts) for texts in keys)
    try:
        identity: str | None = f"{function.identity()} by {keys} with {arguments!r}"
    except Unrecognisable:
        identity = None
    given = ", ".join([function.name, *map(repr, arguments)])
    return SparkCode(
        text=f"{f'groups by {by}: ' if keys else ''}{method}({given})",
        build=build,
        identity=identity,
    )


def result_type(result: DataType) -> pa.DataType:
    """The type of a function's results as they are saved."""
    return arrow_columns(StructType([StructField("r", result)])).field(0).type
