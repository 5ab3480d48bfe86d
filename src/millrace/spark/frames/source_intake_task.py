"""What a Spark task does to save a source: write its rows to files that are adopted later.

Invariant: nothing that a task writes counts until the driver adopts it, so a task that is killed,
tried again or run twice leaves at most files that are never read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.config import Config
from millrace.execute.durable_rows import decode_file, encode_file, write_journal_files
from millrace.execute.task_runner import TaskTry
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import SegmentFile
from millrace.keys import RoundRobinPartitioner
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress

Batches = Iterator[pa.RecordBatch]
_RESULT: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("first", pa.int64()),
        ("second", pa.int64()),
    ]
)
HASHES: Final = ("h1", "h2")
"""The columns behind the source's own, from which the digest is made."""


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """Identifies rows in any order: their count, and two sums of their hashes."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def plus(self, other: RowsDigest) -> RowsDigest:
        """The digest of the rows of both."""
        return RowsDigest(
            self.rows + other.rows,
            _wrapped(self.first + other.first),
            _wrapped(self.second + other.second),
        )


@dataclass(frozen=True, slots=True)
class IntakeFiles:
    """What tasks wrote: files for each partition, and the digest of the rows in them."""

    files: dict[int, list[SegmentFile]]
    digest: RowsDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """Writes rows that end with two columns of hashes: journal files, and the rows' digest."""

    where: JournalAddress
    schema: pa.Schema
    partitions: int
    config: Config

    @property
    def report(self) -> pa.Schema:
        """A row for each file, and one for the digest."""
        return _RESULT

    def write(self, this: TaskTry, batches: Batches) -> pa.RecordBatch:
        """In a task: rows go to partitions in turn; the task's number says which one is first."""
        digest = [RowsDigest()]
        with contextlib.closing(join_journals(self.where, self.config)) as broker:
            files = write_journal_files(
                broker,
                self._without_hashes(batches, digest),
                schema=self.schema,
                partitioner=RoundRobinPartitioner(self.partitions),
                bytes_target=self.config.task_memory_bytes_max // 2,
                first_row=this.number,
            )
            fault("job.ingest.after_store")
        return _encoded(files, digest[0])

    def _without_hashes(self, batches: Batches, digest: list[RowsDigest]) -> Batches:
        width = len(self.schema)
        for batch in batches:
            digest[0] = digest[0].plus(digest_of(batch.column(width), batch.column(width + 1)))
            yield batch.select(range(width)).rename_columns(self.schema.names)


def digest_of(first: pa.Array, second: pa.Array) -> RowsDigest:
    """The digest of rows with these hashes."""
    sums = [
        np.sum(column.to_numpy().view(np.uint64), dtype=np.uint64) for column in (first, second)
    ]
    return RowsDigest(len(first), *(_wrapped(int(value)) for value in sums))


def read_results(table: pa.Table, schema: pa.Schema) -> IntakeFiles:
    """What all tasks wrote, in the driver."""
    files: dict[int, list[SegmentFile]] = {}
    digest = RowsDigest()
    for row in table.to_pylist():
        if row["file"] is None:
            digest = digest.plus(RowsDigest(row["rows"], row["first"], row["second"]))
        else:
            files.setdefault(row["partition"], []).append(decode_file(row["file"], schema))
    return IntakeFiles(files, digest)


def read_journals(
    where: JournalAddress, names: Sequence[str], schema: pa.Schema, config: Config
) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over numbers: task n gives the rows of journal n."""

    def run(numbers: Batches) -> Batches:
        broker = join_journals(where, config)
        try:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from rows_of(broker, names[number], schema)
        finally:
            broker.close()

    return run


def rows_of(broker: Broker, name: str, schema: pa.Schema) -> Batches:
    """All rows of a journal, as these columns."""
    offset = int(broker.start_offset(name))
    while True:
        rows_read = broker.read(name, offset)
        for batch in rows_read.rows().to_batches():
            yield batch.rename_columns(schema.names).cast(schema)
        if rows_read.next_offset == offset:
            return
        offset = rows_read.next_offset


def _encoded(files: Sequence[tuple[int, SegmentFile]], digest: RowsDigest) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"partition": partition, "file": encode_file(file), "rows": 0, "first": 0, "second": 0}
        for partition, file in files
    ]
    rows.append(
        {
            "partition": None,
            "file": None,
            "rows": digest.rows,
            "first": digest.first,
            "second": digest.second,
        }
    )
    return pa.RecordBatch.from_pylist(rows, schema=_RESULT)


def _wrapped(value: int) -> int:
    """A sum as Spark's long would hold it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
