"""`udf`, `pandas_udf` and `arrow_udf` of `millrace.functions`: PySpark's, without a session.

PySpark's own need one, to read types that are texts and to look a setting up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as pyspark_functions
from pyspark.sql.connect.functions import udf as connect_udf
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.udf import UserDefinedFunction
from pyspark.sql.types import DataType, StringType
from pyspark.util import PythonEvalType

from millrace.spark.udfs.ddl_types import type_of_ddl
from millrace.spark.versions.added_names import FUNCTIONS
from millrace.spark.versions.spark_versions import lacks

Given = Callable[..., Any] | DataType | str | None


def udf(
    f: Given = None,
    returnType: DataType | str | None = None,  # noqa: N803 - PySpark's name
    *,
    useArrow: bool | None = None,  # noqa: N803 - PySpark's name
) -> Any:  # noqa: ANN401 - PySpark's own object, or a decorator
    """A function of rows, as `pyspark.sql.functions.udf`; called with Arrow unless told not to."""
    if f is None or isinstance(f, str | DataType):
        return functools.partial(_row_function, result=_type_of(f or returnType), arrow=useArrow)
    return _row_function(f, result=_type_of(returnType), arrow=useArrow)


def pandas_udf(
    f: Given = None,
    returnType: DataType | str | int | None = None,  # noqa: N803 - PySpark's name
    functionType: int | None = None,  # noqa: N803 - PySpark's name
) -> Any:  # noqa: ANN401 - as above
    """A function of pandas' Series, as `pyspark.sql.functions.pandas_udf`."""
    return _vectorised("pandas_udf", f, returnType, functionType)


def arrow_udf(
    f: Given = None,
    returnType: DataType | str | int | None = None,  # noqa: N803 - PySpark's name
    functionType: int | None = None,  # noqa: N803 - PySpark's name
) -> Any:  # noqa: ANN401 - as above
    """A function of Arrow's arrays, as `pyspark.sql.functions.arrow_udf`."""
    return _vectorised("arrow_udf", f, returnType, functionType)


def _row_function(f: Callable[..., Any], *, result: DataType, arrow: bool | None) -> Any:  # noqa: ANN401
    made: Any = connect_udf(f, returnType=result, useArrow=arrow)
    is_pickled = made.evalType == PythonEvalType.SQL_BATCHED_UDF
    if arrow is None and is_pickled and SparkSession.getActiveSession() is None:
        return connect_udf(f, returnType=result, useArrow=True)  # Spark's default.
    return made


def _vectorised(name: str, f: Given, result: DataType | str | int | None, kind: int | None) -> Any:  # noqa: ANN401 - as above
    make = getattr(pyspark_functions, name, None)
    if make is None:
        raise lacks(f"{name}()", FUNCTIONS[name], "write a pandas_udf")
    if f is None or isinstance(f, str | DataType):
        typed = type_of_ddl(f) if isinstance(f, str) else f
        decorate = make(typed, _type_or_kind(result), kind)
        return lambda function: _of_connect(decorate(function))
    return _of_connect(make(f, _type_or_kind(result), kind))


def _of_connect(made: Any) -> Any:  # noqa: ANN401 - as above
    """The function as one whose calls are columns of Spark Connect, which need no session."""
    if type(getattr(made, "_unwrapped", made)).__module__.startswith("pyspark.sql.connect"):
        return made
    own = UserDefinedFunction(
        made.func,
        returnType=made.returnType,
        name=made.__name__,
        evalType=made.evalType,
        deterministic=made.deterministic,
    )
    return own._wrapped()  # noqa: SLF001 - as PySpark's own maker does


def _type_of(given: DataType | str | None) -> DataType:
    if given is None:
        return StringType()
    return type_of_ddl(given) if isinstance(given, str) else given


def _type_or_kind(given: DataType | str | int | None) -> DataType | int | None:
    return type_of_ddl(given) if isinstance(given, str) else given
