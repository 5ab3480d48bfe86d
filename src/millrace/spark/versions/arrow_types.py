"""Spark's types as Arrow's and back, which PySpark's versions are asked for in other ways."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import Row, StructType

from millrace.errors import UnsupportedType
from millrace.spark.versions.spark_versions import has


def utc_schema(types: StructType) -> pa.Schema:
    """Columns of Spark as Arrow has them, with times in UTC."""
    if has((4, 2)):
        return to_arrow_schema(types, timezone="UTC")
    return to_arrow_schema(types)  # Until 4.1, times are in UTC unless told otherwise.


def spark_types(schema: pa.Schema) -> StructType:
    """The types that Spark has for these columns."""
    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise UnsupportedType(
                f"column {field.name!r} has no type in Spark\n  found: {field.type}\n"
                "  to fix: turn it into another type, or use to_arrow() or to_batches()"
            ) from error
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def rows_of_table(table: pa.Table, types: StructType) -> list[Row]:
    """Rows as this version's `collect` gives them: binary values are bytearrays until 4.0."""
    if has((4, 1)):
        return ArrowTableToRowsConversion.convert(table, types, binary_as_bytes=True)
    return ArrowTableToRowsConversion.convert(table, types)
