"""Spark's types of columns: `from millrace import types as T`. They are PySpark's own.

Example:
    >>> from millrace import types as T
    >>> T.StructType([T.StructField("amount", T.LongType())]).simpleString()
    'struct<amount:bigint>'
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import *  # noqa: F403 - the same names
else:

    def _types() -> ModuleType:
        extras = import_module("millrace.extras")
        return extras.import_for("pyspark.sql.types", "spark", "millrace.types")

    def __getattr__(name: str) -> object:
        """A type of Spark's, loaded at its first use."""
        if name.startswith("__"):
            raise AttributeError(f"module 'millrace.types' has no attribute {name!r}")
        types = _types()
        if not hasattr(types, name):
            raise import_module("millrace.spark.versions.missing_names").no_type(name)
        return getattr(types, name)

    def __dir__() -> list[str]:
        return dir(_types())
