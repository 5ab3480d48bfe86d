"""Spark's functions over columns: `from millrace import functions as F`.

They are PySpark's own, of `pyspark.sql.connect.functions`: they need no session, and no Spark is
started. What a name does, Spark's documentation says. Where columns take DataFrames, these take
datasets: `F.col("k").isin(dataset)`.

Example:
    >>> from millrace import functions as F
    >>> F.upper("name").alias("n")
    Column<'upper(name) AS n'>
"""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403 - the same names
else:
    _MAKERS = {
        **dict.fromkeys(("udf", "pandas_udf", "arrow_udf"), "function_makers"),
        **dict.fromkeys(("udtf", "arrow_udtf"), "table_functions"),
    }

    def broadcast(df: object) -> object:
        """The same rows, of a dataset or a DataFrame, as PySpark marks them for a broadcast."""
        if hasattr(df, "hint"):
            return df.hint("broadcast")
        return _of_connect().broadcast(df)

    def _of_connect() -> ModuleType:
        """The module that has columns without a session."""
        extras = import_module("millrace.extras")
        return extras.import_for("pyspark.sql.connect.functions", "connect", "millrace.functions")

    def __getattr__(name: str) -> object:
        """A function of Spark's, loaded at its first use."""
        if name.startswith("__"):
            raise AttributeError(f"module 'millrace.functions' has no attribute {name!r}")
        of_connect = _of_connect()
        if name in _MAKERS:
            return getattr(import_module(f"millrace.spark.udfs.{_MAKERS[name]}"), name)
        if hasattr(of_connect, name):
            function = getattr(of_connect, name)
            if isfunction(function):
                columns = import_module("millrace.spark.frames.dataset_columns")
                function = globals()[name] = columns.making_dataset_columns(function)
            return function
        classic = import_module("pyspark.sql.functions")
        if not hasattr(classic, name):
            raise import_module("millrace.spark.versions.missing_names").no_function(name)
        return getattr(classic, name)  # Classes of both.

    def __dir__() -> list[str]:
        return dir(_of_connect())
