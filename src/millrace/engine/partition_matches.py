"""Evaluates a filter over what is known of files before they are read, while a query is planned.

That is the values in the names of folders, and what a table's metadata says of its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.engine.function_install import install_functions
from millrace.engine.run_values import RunMoment, values_for
from millrace.plan.planner.bounded_conditions import possible_files
from millrace.scan.file_bounds import PATH
from millrace.scan.group_bounds import GROUP, GroupCondition, bounds_schema, group_bounds
from millrace.scan.source import FileSource
from millrace.sql.engine_functions import versions_in
from millrace.sql.expressions import Expression


def matching_files(
    zone: str, moment: RunMoment, source: FileSource, condition: Expression
) -> FileSource:
    """The source without files of which no row can meet a condition, as far as that is known."""
    if condition.columns <= frozenset(source.partitions):
        return _of_folders(zone, moment, source, condition)
    if source.bounds is not None:
        return _of_table(zone, source, source.bounds, condition)
    return _of_groups(zone, source, condition) if source.is_read_by_groups else source


def groups_to_read(
    conditions: Sequence[GroupCondition], file: pq.ParquetFile, numbers: Sequence[int]
) -> Sequence[int]:
    """The row groups of a file that can have rows that are kept, by the bounds in its footer."""
    kept = list(numbers)
    for condition in conditions:
        if kept:
            left_out = _left_out(condition, group_bounds(file, kept, condition.bounds))
            kept = [number for number in kept if number not in left_out]
    return kept


def _left_out(condition: GroupCondition, bounds: pa.Table) -> set[int]:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = ?", [condition.zone])
        install_functions(connection, versions_in(condition.where))
        connection.register("groups", bounds)
        query = f'SELECT "{GROUP}" FROM groups WHERE NOT ({condition.where})'
        return {number for (number,) in connection.sql(query).fetchall()}


def _of_groups(zone: str, source: FileSource, condition: Expression) -> FileSource:
    """The source with what its row groups have to meet; tasks read the footers."""
    bounds = bounds_schema(source.schema, condition.columns)
    where = possible_files(condition, source.schema, bounds)
    if where is None:
        return source
    added = GroupCondition(where=where, zone=zone, bounds=bounds)
    return replace(source, possible=(*source.possible, added))


def _of_table(zone: str, source: FileSource, bounds: pa.Table, condition: Expression) -> FileSource:
    gone = left_out(zone, source.schema, bounds, condition)
    if not gone:
        return source
    return replace(
        source, shapes=tuple(shape for shape in source.shapes if shape.file.path not in gone)
    )


def left_out(
    zone: str, schema: pa.Schema, bounds: pa.Table, condition: Expression
) -> frozenset[str]:
    """The paths of files of which no row can meet a condition, by what is known of them."""
    where = possible_files(condition, schema, bounds.schema)
    if where is None:
        return frozenset()
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = ?", [zone])
        install_functions(connection, versions_in(where))
        connection.register("files", bounds)
        gone = connection.sql(f"SELECT {PATH} FROM files WHERE NOT ({where})")
        return frozenset(path for (path,) in gone.fetchall())


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
