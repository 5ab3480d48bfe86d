"""Takes chosen rows out of the files of a Delta table, by other files in their place.

Each file is looked at once, however often a commit is tried: files that another writer adds
meanwhile are looked at then, and those that it removes need no look. Invariant: a file that is not
replaced has no chosen row, and one that is replaced has all other rows in the file in its place.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.faults import fault
from millrace.scan.source import FileSource
from millrace.scan.splits import MapInput
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.delta_files import DeltaFileWriter
from millrace.tables.delta.delta_log import (
    Action,
    FileList,
    TableMetadata,
    TableState,
    file_key,
    removal,
)
from millrace.tables.delta.delta_source import TableColumns, file_bounds, snapshot_file
from millrace.tables.delta.log_folder import TableFolder
from millrace.tables.delta.table_features import check_replaceable
from millrace.tables.gathered_rows import row_groups
from millrace.tables.row_choice import RowChoice
from millrace.tables.table_port import TableFile


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a file is without the chosen rows."""

    taken: int
    """So many rows were chosen."""
    rest: TableFile | None = None
    """What comes in its place, if some were chosen and some were not."""


class FileReading:
    """Reads files of a table in its columns at one state."""

    def __init__(
        self, state: TableState, folder: TableFolder, options: StorageOptions, config: Config
    ) -> None:
        """Reads nothing yet."""
        self._folder, self._options, self._config = folder, options, config
        self._columns = TableColumns(state, folder.uri)
        self.schema = pa.schema([(field.name, field.type) for field in self._columns.fields])

    def bounds(self, adds: Sequence[Action]) -> tuple[list[str], pa.Table]:
        """The paths of files, and what the log says of their values."""
        files = [
            snapshot_file(add, self._folder, self._columns, self._folder.uri, self._options)
            for add in adds
        ]
        bounds = file_bounds(adds, files, self._columns, with_partitions=True)
        assert bounds is not None, "partitions are asked for"
        return [file.path for file in files], bounds

    def source(self, add: Action) -> FileSource:
        """The rows of one file."""
        uri = self._folder.uri
        file = snapshot_file(add, self._folder, self._columns, uri, self._options)
        return self._columns.source([file], self._options)

    def rows(self, source: FileSource, columns: Sequence[str]) -> pa.RecordBatchReader:
        """Some columns of the rows of a file, in its order."""
        reader = source.reader(columns)
        (shape,) = source.shapes
        whole = MapInput((shape.split(None, shape.bytes),))
        batches = reader.batches(whole, self._config.task_memory_bytes_max // 8)
        return pa.RecordBatchReader.from_batches(reader.schema, batches)

    def all_rows(self, add: Action) -> pa.RecordBatchReader:
        """All columns of the rows of a file."""
        return self.rows(self.source(add), self.schema.names)


class FileRewrites:
    """The files of a table without rows of a choice, for one commit."""

    def __init__(
        self,
        folder: TableFolder,
        options: StorageOptions,
        config: Config,
        choice: RowChoice,
        *,
        who: str,
        files: FileList | None = None,
    ) -> None:
        """Looks at no file yet. `files` are those that an earlier commit read the list of."""
        self._folder, self._options, self._config = folder, options, config
        self._choice, self._who = choice, who
        self._files = FileList(folder) if files is None else files
        self._metadata: TableMetadata | None = None
        self._looked: dict[tuple[str, str], _Looked] = {}
        self._used: set[str] = set()
        self._given: list[str] = []
        self.taken = 0
        """The rows that the last `actions` take out of the table."""

    def actions(self, state: TableState) -> list[Action]:
        """What takes the chosen rows out of the table at this state."""
        self._check(state)
        adds = self._files.at(state.version)
        self._look_at([add for add in adds if file_key(add) not in self._looked], state)
        now_ms = time.time_ns() // 1_000_000
        changes: list[Action] = []
        self._used, self.taken = set(), 0
        for add in adds:
            looked = self._looked[file_key(add)]
            if not looked.taken:
                continue
            self.taken += looked.taken
            changes.append({"remove": removal(add, now_ms)})
            if looked.rest is not None:
                self._used.add(looked.rest.path)
                changes.append({"add": json.loads(looked.rest.about)["add"]})
        return changes

    def finish(self, *, committed: bool) -> None:
        """Remove files that were written for nothing. It must be known how the commit ended."""
        rests = [looked.rest.path for looked in self._looked.values() if looked.rest is not None]
        if committed:
            self._folder.remove([path for path in rests if path not in self._used])
        else:
            self._folder.remove([*rests, *self._given])

    def without(
        self, add: Action, positions: npt.NDArray[np.int64], state: TableState
    ) -> TableFile | None:
        """A file without some of its rows, to be committed; None if it has no others."""
        reading = FileReading(state, self._folder, self._options, self._config)
        rest = self._without(add, positions, state, reading, reading.source(add))
        self._given += [rest.path] if rest is not None else []
        return rest

    def _check(self, state: TableState) -> None:
        check_replaceable(state, who=self._who, where=self._folder.uri)
        if self._metadata is not None and self._metadata != state.metadata:
            self._looked.clear()  # Their columns may be others; VACUUM removes what was written.
        self._metadata = state.metadata

    def _look_at(self, adds: Sequence[Action], state: TableState) -> None:
        if not adds:
            return
        reading = FileReading(state, self._folder, self._options, self._config)
        paths, bounds = reading.bounds(adds)
        possible = frozenset(self._choice.possible(bounds))
        for add, path in zip(adds, paths, strict=True):
            looked = self._look(add, state, reading) if path in possible else _Looked(0)
            self._looked[file_key(add)] = looked

    def _look(self, add: Action, state: TableState, reading: FileReading) -> _Looked:
        source = reading.source(add)
        positions = self._choice.positions(reading.rows(source, self._choice.columns))
        if not len(positions):
            return _Looked(0)
        return _Looked(len(positions), self._without(add, positions, state, reading, source))

    def _without(
        self,
        add: Action,
        positions: npt.NDArray[np.int64],
        state: TableState,
        reading: FileReading,
        source: FileSource,
    ) -> TableFile | None:
        rows = reading.rows(source, reading.schema.names)
        groups = row_groups(_kept(rows, positions), reading.schema, self._config)
        first = next(groups, None)
        if first is None:
            return None

        def every() -> Iterator[pa.Table]:
            yield first
            yield from groups

        writer = DeltaFileWriter(self._folder, state.metadata, reading.schema, who=self._who)
        partition: dict[str, Any] = add.get("partitionValues") or {}
        fault("delta.merge.before_rest")
        rest = writer.write_as(every(), f"part-rest-{secrets.token_hex(8)}", partition)
        fault("delta.merge.after_rest")
        return rest


def _kept(rows: pa.RecordBatchReader, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Rows but for those at these positions."""
    first = 0
    for batch in rows:
        begin, first = first, first + batch.num_rows
        gone = positions[slice(*np.searchsorted(positions, (begin, first)))] - begin
        mask = np.ones(batch.num_rows, np.bool_)
        mask[gone] = False
        yield batch.filter(pa.array(mask)) if len(gone) else batch
