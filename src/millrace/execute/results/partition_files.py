"""Writes the rows of a task as one Parquet file, or as one in each partition folder.

Invariant: every row is in one file, in the order of the rows, and a file has rows of one folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.scan.partition_paths import by_folder

OPEN_MAX: Final = 100
"""Files that a task has open; a folder whose file was closed for others gets another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """A file that a try of a task wrote."""

    folder: str
    """The partition folder that it belongs to; empty without such folders."""
    file: str
    rows: int
    bytes: int


def one_file(
    groups: Iterable[pa.Table], schema: pa.Schema, into: str, begin: str, compression: str
) -> TaskFile:
    """Write a row group for each table, to one file."""
    file = _PartitionFile("", schema, into, f"{begin}.parquet", compression)
    for group in groups:
        file.add(group)
    return file.close()


def by_folders(
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    columns: Sequence[str],
    into: str,
    begin: str,
    compression: str,
    folders_max: int,
) -> list[TaskFile]:
    """Write the rows of each table to a file for each partition folder."""
    kept = pa.schema([field for field in schema if field.name not in columns])
    opened: dict[str, _PartitionFile] = {}
    done: list[TaskFile] = []
    count = 0
    for group in groups:
        for folder, rows in by_folder(group, columns, folders_max, "write_parquet()"):
            file = opened.pop(folder, None)
            if file is None:
                if len(opened) >= OPEN_MAX:
                    done.append(opened.pop(next(iter(opened))).close())
                file = _PartitionFile(
                    folder, kept, into, f"{begin}-{count:05}.parquet", compression
                )
                count += 1
            file.add(rows)
            opened[folder] = file  # The last one is the one that was written to last.
    return done + [file.close() for file in opened.values()]


class _PartitionFile:
    def __init__(
        self, folder: str, schema: pa.Schema, into: str, name: str, compression: str
    ) -> None:
        self._folder, self._name, self._path = folder, name, os.path.join(into, name)
        self._writer = pq.ParquetWriter(self._path, schema, compression=compression)
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._rows += rows.num_rows

    def close(self) -> TaskFile:
        """Finish the file."""
        self._writer.close()
        size = os.path.getsize(self._path)
        return TaskFile(folder=self._folder, file=self._name, rows=self._rows, bytes=size)
