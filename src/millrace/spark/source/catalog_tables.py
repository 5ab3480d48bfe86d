"""Tables in Spark's catalog: how a read of one learns the options that it was made with.

Spark 4.3 gives a table's options to a data source in Python when the table is made, and never
again. The columns that the data source answers are kept in the catalog with their metadata, and
come back with every read; so the first column carries the options.

Invariant: this serves reads alone. A write gets the columns of the rows that are written, which may
have come from another table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from millrace.spark.source.source_options import known

_KEY: Final = "millrace"
_OF_TABLES: Final = "provider"
"""What Spark says in the options of a table that is being made, and nowhere else."""


def is_table(options: Mapping[str, str]) -> bool:
    """Whether Spark asks for the schema of a table that is being made."""
    return _OF_TABLES in options


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The same columns, which carry the options of the table."""
    if not schema.fields:
        return schema
    first, *others = schema.fields
    kept: dict[str, Any] = {**(first.metadata or {}), _KEY: json.dumps(known(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, kept), *others])


def recall(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Options of a read: the given ones; the table's too, if these name no workspace."""
    options = known(given)
    kept = (schema.fields[0].metadata or {}).get(_KEY) if schema.fields else None
    return options if "path" in options or kept is None else {**json.loads(kept), **options}
