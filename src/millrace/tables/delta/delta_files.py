"""Writes the data files of a Delta table, in workers.

A file has its final name from the beginning: no reader looks at it before the log names it. What is
left of a worker that died is removed by `VACUUM`, as what is left of any other writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import UserError
from millrace.names import shown
from millrace.storage.local import sync_file, sync_folder
from millrace.storage.store import storage_errors
from millrace.tables.delta.delta_log import TableMetadata
from millrace.tables.delta.delta_types import arrow_type, delta_fields, shown_type
from millrace.tables.delta.file_statistics import columns_with_nan, indexed_columns, statistics
from millrace.tables.delta.log_folder import TableFolder
from millrace.tables.partition_rows import by_values
from millrace.tables.table_port import TableFile

_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_FOLDER_BYTES_MAX: Final = 255
_OPEN_MAX: Final = 100
"""So many partitions are written at once; with more, the first ones get their files early."""


class DeltaFileWriter:
    """See `TableFileWriter`."""

    def __init__(
        self, folder: TableFolder, metadata: TableMetadata, schema: pa.Schema, *, who: str
    ) -> None:
        """The rows' schema was found to fit the table."""
        self._folder, self._who = folder, who
        self.partitions = metadata.partition_columns
        self._indexed = indexed_columns(metadata.names, metadata.configuration)
        types = {field["name"]: field for field in metadata.fields}
        self._needed = [n for n in schema.names if not types[n].get("nullable", True)]
        self._schema = pa.schema(
            [
                pa.field(name, arrow_type(types[name]["type"], name=name, who=who))
                for name in schema.names
            ]
        )
        self._data = pa.schema([f for f in self._schema if f.name not in self.partitions])
        own = delta_fields(schema, who=who)
        self._columns = {field["name"]: shown_type(field["type"]) for field in own}

    def write(self, groups: Iterable[pa.Table], name: str) -> list[TableFile]:
        """See `TableFileWriter.write`."""
        opened: dict[tuple[Any, ...], _DataFile] = {}
        files: list[TableFile] = []
        try:
            for group in groups:
                rows = group.cast(self._schema)
                where = f"the table {self._folder.uri} allows none"
                refuse_nulls(rows, self._needed, who=self._who, why=where)
                for values, part in self._parts(rows):
                    if values not in opened and len(opened) >= _OPEN_MAX:
                        files.append(opened.pop(next(iter(opened))).close())
                    if values not in opened:
                        opened[values] = self._open(values, f"{name}-{len(files) + len(opened)}")
                    opened[values].write(part)
            while opened:
                files.append(opened.pop(next(iter(opened))).close())
        except BaseException:
            for file in opened.values():
                file.abandon()
            self.remove(files)
            raise
        return files

    def remove(self, files: Sequence[TableFile]) -> None:
        """See `TableFileWriter.remove`."""
        self._folder.remove([file.path for file in files])

    def write_as(
        self, groups: Iterable[pa.Table], name: str, partition: Mapping[str, str | None]
    ) -> TableFile:
        """Write rows of one partition, whose values are given as the log has them."""
        file = self._file({column: partition.get(column) for column in self.partitions}, name)
        try:
            for group in groups:
                file.write(group.cast(self._schema))
            return file.close()
        except BaseException:
            file.abandon()
            raise

    def _parts(self, rows: pa.Table) -> Iterable[tuple[tuple[Any, ...], pa.Table]]:
        if not self.partitions:
            return [((), rows)]
        return by_values(rows, self.partitions)

    def _open(self, values: tuple[Any, ...], name: str) -> _DataFile:
        texts = {
            column: partition_text(value)
            for column, value in zip(self.partitions, values, strict=True)
        }
        return self._file(texts, name)

    def _file(self, texts: dict[str, str | None], name: str) -> _DataFile:
        folders = {column: partition_folder(column, text) for column, text in texts.items()}
        for column, folder in folders.items():
            if len(folder) > _FOLDER_BYTES_MAX:
                raise UserError(
                    f"{self._who}: partition column {column!r} has a value too long for a folder\n"
                    f"  found: {shown(texts[column])}\n  to fix: partition by something shorter"
                )
        place = "".join(f"{folder}/" for folder in folders.values())
        return _DataFile(
            self._folder, f"{place}{name}.parquet", texts, self._data, self._indexed, self._columns
        )


class _DataFile:
    """One data file on its way."""

    def __init__(
        self,
        folder: TableFolder,
        relative: str,
        partition: dict[str, str | None],
        schema: pa.Schema,
        indexed: frozenset[str],
        columns: dict[str, str],
    ) -> None:
        self._folder, self._relative, self._partition = folder, relative, partition
        self._schema, self._indexed, self._columns = schema, indexed, columns
        self._path = folder.path(relative)
        self._with_nan: set[str] = set()
        self._buffer = None if folder.remote is None else pa.BufferOutputStream()
        self._metadata: list[pq.FileMetaData] = []
        with storage_errors(f"writing {self._path}"):
            if self._buffer is None:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._buffer or self._path, schema, compression="snappy"
            )

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        with storage_errors(f"writing {self._path}"):
            data = rows.select(self._schema.names)
            self._with_nan |= columns_with_nan(data)
            self._writer.write_table(data, row_group_size=max(1, data.num_rows))

    def close(self) -> TableFile:
        """Make the file durable."""
        remote = self._folder.remote
        with storage_errors(f"writing {self._path}"):
            self._writer.close()
            if self._buffer is None:
                sync_file(self._path)
                folder = os.path.dirname(self._path)
                sync_folder(folder)
                if folder != self._folder.uri:
                    sync_folder(os.path.dirname(folder))
                source: Any = self._path
                size = os.path.getsize(self._path)
            else:
                data = self._buffer.getvalue()
                assert remote is not None
                remote.below(self._relative).put(data)
                source, size = pa.BufferReader(data), data.size
        metadata = pq.read_metadata(source)
        about = {
            "add": {
                "path": quote(self._relative, safe="/="),
                "partitionValues": self._partition,
                "size": size,
                "modificationTime": time.time_ns() // 1_000_000,
                "dataChange": True,
                "stats": statistics(
                    metadata, self._schema, indexed=self._indexed, with_nan=self._with_nan
                ),
            },
            "columns": self._columns,
        }
        return TableFile(
            path=self._path, rows=metadata.num_rows, bytes=size, about=json.dumps(about)
        )

    def abandon(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(Exception):
            self._writer.close()
        if self._buffer is None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def refuse_nulls(rows: pa.Table, names: Iterable[str], *, who: str, why: str) -> None:
    """Refuse rows with a null in one of these columns."""
    for name in names:
        if rows[name].null_count:
            raise UserError(
                f"{who}: column {name!r} has a null, and {why}\n"
                f"  found: {rows[name].null_count} nulls in {rows.num_rows} rows\n"
                f'  to fix: filter them out, as in filter("{name} IS NOT NULL")'
            )


def partition_text(value: Any) -> str | None:  # noqa: ANN401 - of any column
    """The value of a partition column as the log has it. An empty text is a null there."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime() if value.tzinfo is None:
            return value.isoformat(" ", timespec="microseconds")
        case datetime():
            plain = value.astimezone(UTC).replace(tzinfo=None)
            return f"{plain.isoformat(timespec='microseconds')}Z"
        case date():
            return value.isoformat()
        case int() | str():
            return str(value)
        case _:
            raise AssertionError(f"a partition by {type(value).__name__} was refused before")


def partition_folder(column: str, text: str | None) -> str:
    """The folder of a value, as Hive names it: Polars takes the value from there."""
    value = _NULL_FOLDER if text is None else quote(text, safe="")
    return f"{quote(column, safe='')}={value}"
