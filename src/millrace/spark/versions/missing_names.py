"""Errors for names of functions and types that this PySpark does not have.

They are `AttributeError`s, so that `hasattr` and imports work as with any module.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.spark.versions.added_names import FUNCTIONS, TYPES
from millrace.spark.versions.spark_versions import SparkVersion, lacks, spark_version


def no_function(name: str) -> AttributeError:
    """The error for a function of `millrace.functions`."""
    return _missing("functions", name, FUNCTIONS)


def no_type(name: str) -> AttributeError:
    """The error for a type of `millrace.types`."""
    return _missing("types", name, TYPES)


def _missing(module: str, name: str, added: Mapping[str, SparkVersion]) -> AttributeError:
    since = added.get(name)
    if since is not None and since > spark_version():
        return AttributeError(str(lacks(f"{module}.{name}", since)))
    return AttributeError(f"module 'millrace.{module}' has no attribute {name!r}")
