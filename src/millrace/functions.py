"""Spark's functions over columns: `from millrace import functions as F`.

They are PySpark's own, of `pyspark.sql.connect.functions`: they need no session, and no Spark is
started. What a name does, Spark's documentation says.

Example:
    >>> from millrace import functions as F
    >>> F.upper("name").alias("n")
    Column<'upper(name) AS n'>
"""

from __future__ import annotations

from importlib import import_module
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
        return import_module("pyspark.sql.connect.functions").broadcast(df)

    def __getattr__(name: str) -> object:
        """A function of Spark's, loaded at its first use."""
        if name.startswith("__"):
            raise AttributeError(f"module 'millrace.functions' has no attribute {name!r}")
        if name in _MAKERS:
            return getattr(import_module(f"millrace.spark.udfs.{_MAKERS[name]}"), name)
        of_connect = import_module("pyspark.sql.connect.functions")
        if hasattr(of_connect, name):
            return getattr(of_connect, name)
        return getattr(import_module("pyspark.sql.functions"), name)  # Classes of both.

    def __dir__() -> list[str]:
        return dir(import_module("pyspark.sql.connect.functions"))
