"""The one way from a task's rows to durable files: for DataFrames, job sources and Spark's writer.

Each try of a task writes files of its own and reports them. Nothing that it wrote counts until the
driver commits one try of each task: a manifest names map outputs, a transaction adopts journal
files. Invariant: a try that failed, and a second copy of a task, leave at most files that are never
read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from millrace.execute import map_task
from millrace.execute.map_task import MapStage
from millrace.execute.task_runner import TaskTry
from millrace.execute.tasks.task_results import RESULT_SCHEMA
from millrace.journal.broker import Broker
from millrace.journal.core.values import FileRange, SegmentFile
from millrace.keys import Partitioner, split

_AT_ONCE: Final = 8
"""How many files are written at the same time; in front of a bucket each one is a round trip."""

JournalFile = tuple[int, SegmentFile]
"""A file, and the number of the journal that it is for."""


class RowDestination(Protocol):
    """Where the tasks of a DataFrame write. It is sent to them."""

    @property
    def report(self) -> pa.Schema:
        """The columns of what a task reports."""

    def write(self, this: TaskTry, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """In a task: write all rows, and say which files hold them."""


@dataclass(frozen=True, slots=True)
class MapOutputs:
    """Each task writes a map output of a shuffle; `publish` of its stage commits them."""

    stage: MapStage

    @property
    def report(self) -> pa.Schema:
        """The columns of a map task's result."""
        return RESULT_SCHEMA

    def write(self, this: TaskTry, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """In a task: columns are matched by position; times become UTC, as the schema says."""
        schema = self.stage.schema
        rows = (batch.rename_columns(schema.names).cast(schema) for batch in batches)
        return map_task.write_rows(self.stage, this, rows)


def write_journal_files(
    broker: Broker,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema,
    partitioner: Partitioner,
    bytes_target: int,
    first_row: int = 0,
) -> list[JournalFile]:
    """Write rows to files that journals may adopt; none is left if that fails.

    `partitioner` says which of several journals a row is for. A file holds at most about
    `bytes_target` of rows. `first_row` counts the rows before, for a partitioner that
    takes turns.
    """
    files = _JournalFileWriter(broker, schema, partitioner, bytes_target, first_row)
    try:
        for batch in batches:
            files.add(batch)
        files.flush()
    except BaseException:
        remove_files(broker, [file for _, file in files.written])
        raise
    return files.written


def remove_files(broker: Broker, files: Sequence[SegmentFile]) -> None:
    """Remove files that will not be adopted; those of another host are left to its owner."""
    if not files:
        return
    folder = broker.adoption_folder() + os.sep
    for file in files:
        if os.path.abspath(file.path).startswith(folder):
            with contextlib.suppress(OSError):
                os.unlink(file.path)


def encode_file(file: SegmentFile) -> str:
    """A file as text, without its columns, which the driver knows."""
    ranges = [[part.position, part.bytes, part.rows, part.checksum] for part in file.ranges]
    return json.dumps(
        {"path": file.path, "bytes": file.bytes, "ranges": ranges, "put_at_ms": file.put_at_ms}
    )


def decode_file(text: str, schema: pa.Schema) -> SegmentFile:
    """Undo `encode_file`."""
    document = json.loads(text)
    ranges = tuple(
        FileRange(position=position, bytes=size, rows=rows, checksum=checksum)
        for position, size, rows, checksum in document["ranges"]
    )
    return SegmentFile(
        path=document["path"],
        schema=schema,
        bytes=document["bytes"],
        ranges=ranges,
        put_at_ms=document["put_at_ms"],
    )


@dataclass(slots=True)
class _JournalFileWriter:
    """Gathers rows by journal, and writes them in files of bounded size."""

    broker: Broker
    schema: pa.Schema
    partitioner: Partitioner
    bytes_target: int
    rows_before: int
    written: list[JournalFile] = field(default_factory=list)
    _gathered: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    _gathered_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        # The schema's own nulls are checked when they are written, with a better message.
        loose = pa.schema([pa.field(column.name, column.type) for column in self.schema])
        rows = batch.cast(loose)
        parts = split(rows, self.partitioner, self.rows_before)
        for number in range(parts.partitions):
            if parts.rows(number):
                self._gathered.setdefault(number, []).append(parts.part(number))
        self.rows_before += rows.num_rows
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= self.bytes_target:
            self.flush()

    def flush(self) -> None:
        before = len(self.written)

        def store(gathered: tuple[int, list[pa.RecordBatch]]) -> None:
            number, batches = gathered
            self.written.append((number, self.broker.store_file(self.schema, batches)))

        # All are stored or have failed at the end, so that an error leaves no file unknown.
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="millrace-store") as pool:
            list(pool.map(store, sorted(self._gathered.items())))
        self.written[before:] = sorted(self.written[before:], key=lambda file: file[0])
        self._gathered.clear()
        self._gathered_bytes = 0
