"""Writes rows as data files of an Iceberg table, which no reader sees before they are committed.

pyiceberg writes the files: ids of columns, partitions, counts and bounds are its own. Invariant: if
writing fails no file is left, and a file that is returned is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import (
    _determine_partitions,
    pyarrow_to_schema,
    write_file,
)
from pyiceberg.table import WriteTask

from millrace.errors import UserError
from millrace.faults import fault
from millrace.scan.file_mapping import map_columns
from millrace.storage.local import sync_file, sync_folder
from millrace.storage.store import storage_errors
from millrace.tables.iceberg.data_file_texts import to_text
from millrace.tables.iceberg.iceberg_access import file_path
from millrace.tables.iceberg.iceberg_columns import table_fields
from millrace.tables.table_port import TableFile

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_FORMAT: Final = "write.format.default"
_VERSION_MAX: Final = 2
"""pyiceberg writes no manifests of later versions."""


def check_rows(schema: pa.Schema, table: Table, *, who: str) -> None:
    """Refuse rows that a table cannot take."""
    name = ".".join(table.name())
    problem = None
    form = table.properties.get(_FORMAT, "parquet")
    if table.metadata.format_version > _VERSION_MAX:
        problem = f"it is of format version {table.metadata.format_version}, which is only read"
    elif form != "parquet":
        problem = f"its files are {form}, by its property {_FORMAT}"
    else:
        problem = _misfit(schema, table)
    if problem is not None:
        raise UserError(
            f"{who} cannot write to the Iceberg table {name}\n  found: {problem}\n"
            "  to fix: select the table's columns, in its types"
        )


def _misfit(schema: pa.Schema, table: Table) -> str | None:
    """The first column that does not fit, in words."""
    fields = table_fields(table.schema(), None)
    known = {field.name for field in fields}
    unknown = next((name for name in schema.names if name not in known), None)
    if unknown is not None:
        return f"the table has no column {unknown!r}"
    try:
        map_columns(fields, schema, ids="never", constants={}, path="the rows")
    except UserError as error:
        what, found, *_ = str(error).splitlines()
        return f"{what.partition(' of a table')[0]}: {found.partition('found: ')[2]}"
    return None


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """See `TableFileWriter`."""

    metadata: TableMetadata
    io: FileIO

    def write(self, groups: Iterable[pa.Table], name: str) -> list[TableFile]:
        """See `TableFileWriter.write`."""
        rows = as_required(pa.concat_tables(groups), self.metadata)
        begun: list[str] = []
        try:
            with storage_errors("writing files of an Iceberg table"):
                fault("iceberg.write.before_files")
                files = list(write_file(self.io, self.metadata, self._tasks(rows, name, begun)))
                for path in (file_path(file.file_path) for file in files):
                    if os.path.exists(path):  # In a bucket a file is whole once it is there.
                        sync_file(path)
                        sync_folder(os.path.dirname(path))
                fault("iceberg.write.after_files")
        except BaseException:
            self._remove(begun)
            raise
        return [self._described(file) for file in files]

    def remove(self, files: Sequence[TableFile]) -> None:
        """See `TableFileWriter.remove`."""
        self._remove([file.path for file in files])

    def _remove(self, locations: Iterable[str]) -> None:
        for location in locations:
            with contextlib.suppress(Exception):
                self.io.delete(location)

    def _tasks(self, rows: pa.Table, name: str, begun: list[str]) -> Iterator[WriteTask]:
        """A file for each partition; its name is noted before it is written."""
        schema = pyarrow_to_schema(rows.schema, name_mapping=self.metadata.schema().name_mapping)
        whole = _NamedFile(
            write_uuid=uuid.uuid4(),
            task_id=0,
            schema=schema,
            record_batches=rows.to_batches(),
            name=name,
            begun=begun,
        )
        spec = self.metadata.spec()
        if spec.is_unpartitioned():
            yield whole
            return
        parts = _determine_partitions(spec, self.metadata.schema(), rows)
        for number, part in enumerate(parts):
            yield replace(
                whole,
                task_id=number,
                record_batches=part.arrow_table_partition.to_batches(),
                partition_key=part.partition_key,
            )

    def _described(self, file: DataFile) -> TableFile:
        return TableFile(
            path=file.file_path,
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
            about=to_text(file, self.metadata),
        )


@dataclass(frozen=True)
class _NamedFile(WriteTask):
    """A file with a name that tells which rows it has."""

    name: str = ""
    begun: list[str] | None = None

    def generate_data_file_filename(self, extension: str) -> str:
        return f"{self.name}-{self.task_id:05}.{extension}"


def _check_nulls(rows: pa.Table, schema: pa.Schema) -> None:
    for field in schema:
        count = 0 if field.nullable else rows[field.name].null_count
        if count:
            raise UserError(
                f"column {field.name!r} has nulls, and the Iceberg table requires values\n"
                f"  found: {count} of {rows.num_rows} rows\n"
                "  to fix: filter them out first, or make the column of the table optional"
            )


def as_required(rows: pa.Table, metadata: TableMetadata) -> pa.Table:
    """Rows whose columns are required where the table requires them."""
    required = {field.name for field in metadata.schema().fields if field.required}
    columns = [field.with_nullable(field.name not in required) for field in rows.schema]
    _check_nulls(rows, pa.schema(columns))
    return rows.cast(pa.schema(columns))
