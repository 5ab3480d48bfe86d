"""The last work of a query whose answer is only written: its rows go to Parquet files at once.

The rows of this work name the files. They are saved as those of any other task, so a task whose
files are written is finished, and a run that was cut off and is made again goes on behind it.

Invariant: every try of a task writes to names of its own, and a file counts only where the rows of
the try that was chosen name it.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.engine.task_inputs import TaskInput
from millrace.errors import StorageError
from millrace.execute.map_task import TaskRows
from millrace.execute.results.partition_files import TaskFile, by_folders, one_file
from millrace.faults import fault
from millrace.identity.schemas import conform_in_pieces, plain_schema
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.storage_options import StorageOptions
from millrace.storage.store import storage_errors

FILES_WRITTEN: Final = pa.schema(
    [
        ("folder", pa.string()),
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTarget:
    """Where tasks write files, and how. Files of two writes never have the same target."""

    into: str
    access: StorageOptions
    compression: str
    partition_by: tuple[str, ...]
    schema: pa.Schema

    def write(self, batches: Iterator[pa.RecordBatch], config: Config) -> list[TaskFile]:
        """Write rows to files that no other try writes to; none if there are no rows."""
        plain, size = plain_schema(self.schema), config.parquet_row_group_bytes
        pieces = (
            piece
            for number, batch in enumerate(batches)
            for piece in conform_in_pieces(batch, plain, where=f"batch {number}", bytes_target=size)
        )
        groups = _row_groups(pieces, size)
        first = next(groups, None)
        return [] if first is None else self._write(chain([first], groups), config)

    def write_no_rows(self, config: Config) -> list[TaskFile]:
        """Write a file that has the columns alone."""
        return self._write(iter(()), config)

    def describe(self) -> dict[str, Any]:
        """All that its files depend on, for the fingerprint."""
        return {
            "into": self.into,
            "compression": self.compression,
            "partition_by": list(self.partition_by),
        }

    def _write(self, groups: Iterator[pa.Table], config: Config) -> list[TaskFile]:
        begin = f"part-{secrets.token_hex(8)}"
        if not is_remote(self.into):
            return self._write_files(groups, config, begin, self.into)
        into = remote_path(self.into, self.access, config)
        with scratch_folder(own_folder(), "results-") as folder:
            files = self._write_files(groups, config, begin, folder)
            for written in files:
                with pa.memory_map(os.path.join(folder, written.file)) as file:
                    into.below(written.file).put(file.read_buffer())
        return files

    def _write_files(
        self, groups: Iterator[pa.Table], config: Config, begin: str, into: str
    ) -> list[TaskFile]:
        host = socket.gethostname()
        if not os.path.isdir(into):
            raise StorageError(
                f"folder {into} is not there on host {host}\n"
                "  to fix: write to a disk that all hosts share; or the write was ended meanwhile"
            )
        with storage_errors(f"writing into {into} on host {host}"):
            if not self.partition_by:
                return [one_file(groups, self.schema, into, begin, self.compression)]
            most, by = config.partition_folders_max, self.partition_by
            return by_folders(groups, self.schema, by, into, begin, self.compression, most)


@dataclass(frozen=True, slots=True)
class ParquetWork:
    """Work whose rows are written; its own rows name the files."""

    below: TaskRows
    target: ParquetTarget

    @property
    def calls_users(self) -> bool:
        """Whether it calls functions of users."""
        return self.below.calls_users

    def rows(
        self, inputs: Sequence[TaskInput], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """Write all rows, then name the files."""
        files = self.target.write(self.below.rows(inputs, config, spill_folder), config)
        fault("results.task.after_write")
        yield pa.RecordBatch.from_pylist([asdict(file) for file in files], FILES_WRITTEN)


def _row_groups(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Batches put together up to about so many bytes, and larger ones cut."""
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for batch in batches:
        rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            gathered.append(batch.slice(begin, rows))
            gathered_bytes += gathered[-1].nbytes
            if gathered_bytes >= size:
                yield pa.Table.from_batches(gathered)
                gathered, gathered_bytes = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)
