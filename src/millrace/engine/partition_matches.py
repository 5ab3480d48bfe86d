"""Evaluates a filter over what is known of files before they are read, while a query is planned.

That is the values in the names of folders, and what a table's metadata says of its files.
"""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pyarrow as pa

from millrace.engine.function_install import install_functions
from millrace.engine.run_values import RunMoment, values_for
from millrace.plan.planner.bounded_conditions import possible_files
from millrace.scan.file_bounds import PATH
from millrace.scan.source import FileSource
from millrace.sql.engine_functions import versions_in
from millrace.sql.expressions import Expression


def matching_files(
    zone: str, moment: RunMoment, source: FileSource, condition: Expression
) -> FileSource:
    """The source without files of which no row can meet a condition, as far as that is known."""
    if condition.columns <= frozenset(source.partitions):
        return _of_folders(zone, moment, source, condition)
    return source if source.bounds is None else _of_table(zone, source, source.bounds, condition)


def _of_table(zone: str, source: FileSource, bounds: pa.Table, condition: Expression) -> FileSource:
    where = possible_files(condition, source.schema, bounds.schema)
    if where is None:
        return source
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = ?", [zone])
        install_functions(connection, versions_in(where))
        connection.register("files", bounds)
        left_out = f"SELECT {PATH} FROM files WHERE NOT ({where})"
        gone = {path for (path,) in connection.sql(left_out).fetchall()}
    return replace(
        source, shapes=tuple(shape for shape in source.shapes if shape.file.path not in gone)
    )


def _of_folders(
    zone: str, moment: RunMoment, source: FileSource, condition: Expression
) -> FileSource:
    """The source without files for which a condition on the columns of folders is not true."""
    values = list(dict.fromkeys(shape.partition for shape in source.shapes))
    fields = [source.schema.field(name) for name in source.partitions]
    columns = [
        pa.array([row[number] for row in values], field.type) for number, field in enumerate(fields)
    ]
    rows = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = ?", [zone])
        install_functions(connection, versions_in(condition.sql))
        values_for(condition.sql, moment, zone).give(connection)
        connection.register("folders", rows)
        answer = connection.sql(f"SELECT {condition.sql} FROM folders").fetchall()
    kept = {row for row, (is_true,) in zip(values, answer, strict=True) if is_true}
    return replace(
        source, shapes=tuple(shape for shape in source.shapes if shape.partition in kept)
    )
