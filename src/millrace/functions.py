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
    _MAKERS = frozenset({"udf", "pandas_udf", "arrow_udf"})

    def __getattr__(name: str) -> object:
        """A function of Spark's, loaded at its first use."""
        if name.startswith("__"):
            raise AttributeError(f"module 'millrace.functions' has no attribute {name!r}")
        own = "millrace.spark.udfs.function_makers"
        module = own if name in _MAKERS else "pyspark.sql.connect.functions"
        return getattr(import_module(module), name)

    def __dir__() -> list[str]:
        return dir(import_module("pyspark.sql.connect.functions"))
