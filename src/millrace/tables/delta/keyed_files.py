"""Writes rows that are merged by key: those that stay as data files, those that go as their keys.

A file of keys lies in the table's folder under a name that `VACUUM` removes in time; no version
ever names it. Invariant: a row without a whole key is refused before any file is recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from millrace.errors import SchemaMismatch, UserError
from millrace.storage.local import sync_file, sync_folder
from millrace.storage.store import storage_errors
from millrace.tables.delta.delta_files import DeltaFileWriter, refuse_nulls
from millrace.tables.delta.log_folder import TableFolder
from millrace.tables.table_port import TableFile

DELETED: Final = "deleted"
"""What a file of keys has in `TableFile.about` in place of an add action: its name."""


class KeyedFileWriter:
    """See `TableFileWriter`."""

    def __init__(
        self,
        files: DeltaFileWriter,
        folder: TableFolder,
        keys: Sequence[str],
        marker: str | None,
        *,
        who: str,
    ) -> None:
        """`marker` is the column that is true for rows that go."""
        self._files, self._folder = files, folder
        self._keys, self._marker, self._who = list(keys), marker, who

    def write(self, groups: Iterable[pa.Table], name: str) -> list[TableFile]:
        """See `TableFileWriter.write`."""
        gone: list[pa.Table] = []
        files = self._files.write(self._staying(groups, gone), name)
        if not gone:
            return files
        try:
            return [*files, self._write_keys(pa.concat_tables(gone), f"{name}-deleted.parquet")]
        except BaseException:
            self.remove(files)
            raise

    def remove(self, files: Sequence[TableFile]) -> None:
        """See `TableFileWriter.remove`."""
        self._files.remove(files)

    def _staying(self, groups: Iterable[pa.Table], gone: list[pa.Table]) -> Iterator[pa.Table]:
        for group in groups:
            refuse_nulls(group, self._keys, who=self._who, why="rows are found by it")
            self._refuse_empty(group)
            staying = group
            if self._marker is not None:
                is_gone = pc.fill_null(group[self._marker], fill_value=False)
                keys = group.filter(is_gone).select(self._keys)
                gone += [keys] if keys.num_rows else []
                staying = group.filter(pc.invert(is_gone)).drop_columns([self._marker])
            if staying.num_rows:
                yield staying

    def _refuse_empty(self, rows: pa.Table) -> None:
        """An empty text is a null as the value of a partition, so no row would be found by it."""
        for name in self._keys:
            column = rows[name]
            if name not in self._files.partitions or not _is_text(column.type):
                continue
            if pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
                raise UserError(
                    f"{self._who}: column {name!r} is a key and a partition, and is empty\n"
                    "  found: an empty text, which is a null as the value of a partition\n"
                    f"  to fix: filter it out, as in filter(\"{name} <> ''\")"
                )

    def _write_keys(self, keys: pa.Table, name: str) -> TableFile:
        path, remote = self._folder.path(name), self._folder.remote
        with storage_errors(f"writing {path}"):
            if remote is None:
                pq.write_table(keys, path, compression="snappy")
                sync_file(path)
                sync_folder(os.path.dirname(path))
                size = os.path.getsize(path)
            else:
                buffer = pa.BufferOutputStream()
                pq.write_table(keys, buffer, compression="snappy")
                data = buffer.getvalue()
                remote.below(name).put(data)
                size = data.size
        # The rows of a commit are those that it adds.
        return TableFile(path=path, rows=0, bytes=size, about=json.dumps({DELETED: name}))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def check_keys(
    schema: pa.Schema, table: Sequence[str], keys: Sequence[str], marker: str | None, *, who: str
) -> None:
    """Refuse keys that rows cannot be found by, and rows that are not whole rows of the table."""
    for name in (*keys, *([marker] if marker is not None else [])):
        if schema.get_field_index(name) < 0:
            raise UserError(
                f"{who}: there is no column {name!r}\n  found: {', '.join(schema.names)}\n"
                "  to fix: name columns of the rows, in the same letters"
            )
    if len(set(keys)) < len(keys) or marker in keys:
        raise UserError(
            f"{who}: a column is named twice\n  found: keys {', '.join(keys)}, "
            f"delete_column {marker!r}\n  to fix: name each column once"
        )
    for name in keys:
        kind = schema.field(name).type
        if pt.is_nested(kind) or pt.is_floating(kind):
            raise UserError(
                f"{who}: rows cannot be merged by {name!r}\n  found: {kind}\n"
                "  to fix: merge by whole numbers, texts, dates, times, decimals, booleans, bytes"
            )
    if marker is not None and not pt.is_boolean(schema.field(marker).type):
        raise UserError(
            f"{who}: delete_column {marker!r} does not say which rows go\n"
            f"  found: {schema.field(marker).type}\n  to fix: give a column of booleans"
        )
    missing = [name for name in table if name not in schema.names]
    if missing:
        raise SchemaMismatch(
            f"{who}: a row by key replaces a whole row of the table\n"
            f"  found: column {missing[0]!r} of the table is not in the rows\n"
            "  to fix: add it to the rows; a join with the table has its old values"
        )
    if marker in table:
        raise UserError(
            f"{who}: delete_column {marker!r} is a column of the table\n"
            "  found: it says which rows go, and is not written\n  to fix: give it another name"
        )
