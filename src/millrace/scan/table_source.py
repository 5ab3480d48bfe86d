"""The files of one version of a table, as a source.

The table's own metadata says which files there are, what their columns are and which of their rows
are gone. Invariant: files that the metadata names are read as the metadata says, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millrace.identity.schemas import check_names, plain_type
from millrace.scan import formats, input_files
from millrace.scan.engine_parquet import engine_columns
from millrace.scan.file_mapping import (
    ColumnSource,
    DeletedRows,
    FieldIds,
    FileMapping,
    FromFile,
    TableField,
    map_columns,
)
from millrace.scan.formats import Footer
from millrace.scan.remote_files import NO_OPTIONS
from millrace.scan.source import FileSource, of_each
from millrace.scan.splits import FileShape
from millrace.storage.storage_options import StorageOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A data file of a table, as the table's metadata describes it.

    `partition` are the values of the source's partition columns. `constants` are values of columns
    that the file may lack, by the column's name.
    """

    path: str
    partition: tuple[Any, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    deleted: DeletedRows | None = None


def table_source(
    files: Sequence[SnapshotFile],
    fields: Sequence[TableField],
    *,
    ids: FieldIds,
    partitions: Sequence[str] = (),
    bounds: pa.Table | None = None,
    access: StorageOptions = NO_OPTIONS,
) -> FileSource:
    """The rows of Parquet files as rows of the table with these columns.

    Args:
        files: at least one.
        fields: the table's columns, in their order.
        ids: whether columns are found in files by their ids, or by their names.
        partitions: columns whose values are not read from files, in the order of `partition`.
        bounds: what the metadata says of values in files; see `scan.file_bounds`.
        access: how the files are reached, if the environment does not say.
    """
    schema = pa.schema([(one.name, plain_type(one.type)) for one in fields])
    check_names(schema)
    own = [one for one in fields if one.name not in partitions]
    shapes = of_each(files, lambda file: _shape(file, own, ids, access))
    return FileSource(
        format="parquet",
        schema=schema,
        shapes=tuple(shapes),
        partitions=tuple(partitions),
        file_schema=pa.schema([schema.field(one.name) for one in own]),
        bounds=bounds,
    )


def _shape(
    file: SnapshotFile, fields: Sequence[TableField], ids: FieldIds, access: StorageOptions
) -> FileShape:
    # A table never writes a file again, so times tell its versions apart.
    listed = input_files.describe(file.path, access)
    footer = formats.footer("parquet", listed)
    columns = map_columns(
        fields, footer.schema, ids=ids, constants=file.constants, path=listed.path
    )
    return FileShape(
        file=listed,
        row_group_bytes=footer.row_group_bytes,
        column_shares=_shares(columns, footer),
        row_group_rows=footer.row_group_rows,
        engine_columns=engine_columns(columns, footer, file.deleted),
        partition=file.partition,
        mapping=FileMapping(columns, file.deleted),
    )


def _shares(columns: Mapping[str, ColumnSource], footer: Footer) -> dict[str, float]:
    return {
        name: footer.column_shares.get(source.name, 0.0) if isinstance(source, FromFile) else 0.0
        for name, source in columns.items()
    }
