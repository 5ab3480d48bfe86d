"""What a Spark task does to take a source in: write its rows to files that are adopted later.

Invariant: nothing that a task writes counts until the driver adopts it, so a task that is killed,
tried again or run twice leaves at most files that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from millrace.config import Config
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import FileRange, SegmentFile
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress

Batches = Iterator[pa.RecordBatch]
RESULT_SCHEMA: Final = "partition int, file string, rows long, first long, second long"
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
"""The columns behind the source's own that tell its rows."""


@dataclass(frozen=True, slots=True)
class Print:
    """Tells rows from others, whatever their order: how many, and two sums of their hashes."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def plus(self, other: Print) -> Print:
        """Of the rows of both."""
        return Print(
            self.rows + other.rows,
            _wrapped(self.first + other.first),
            _wrapped(self.second + other.second),
        )


@dataclass(frozen=True, slots=True)
class IntakeFiles:
    """What tasks wrote: files for each partition, and what tells the rows in them."""

    files: dict[int, list[SegmentFile]]
    told: Print


@dataclass(slots=True)
class Dealer:
    """Deals rows to partitions one by one, and stores them in files of bounded size."""

    broker: Broker
    schema: pa.Schema
    partitions: int
    bytes_max: int
    dealt: int
    """How many rows were dealt before; where it begins decides who gets the odd ones."""
    made: list[tuple[int, SegmentFile]] = field(default_factory=list)
    _held: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    _held_bytes: int = 0

    def deal(self, rows: pa.RecordBatch) -> None:
        """Take rows in."""
        for partition in range(self.partitions):
            begin = (partition - self.dealt) % self.partitions
            mine = rows.take(pa.array(np.arange(begin, rows.num_rows, self.partitions)))
            if mine.num_rows:
                self._held.setdefault(partition, []).append(mine)
        self.dealt += rows.num_rows
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self.bytes_max:
            self.store()

    def store(self) -> None:
        """Write what is held."""
        for partition, batches in sorted(self._held.items()):
            self.made.append((partition, self.broker.store_file(self.schema, batches)))
            fault("job.ingest.after_store")
        self._held.clear()
        self._held_bytes = 0


def write_rows(
    where: JournalAddress, schema: pa.Schema, partitions: int, config: Config
) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over rows that end with two columns of hashes."""

    def run(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None, "only Spark runs this"
        broker = join_journals(where, config)
        try:
            half = config.task_memory_bytes_max // 2
            dealer = Dealer(broker, schema, partitions, half, context.partitionId())
            told = Print()
            width = len(schema.names)
            for batch in batches:
                told = told.plus(print_of(batch.column(width), batch.column(width + 1)))
                rows = batch.select(range(width)).rename_columns(schema.names)
                dealer.deal(rows.cast(schema))
            dealer.store()
        finally:
            broker.close()
        yield _encoded(dealer.made, told)

    return run


def print_of(first: pa.Array, second: pa.Array) -> Print:
    """What tells rows with these hashes from others."""
    sums = [
        np.sum(column.to_numpy().view(np.uint64), dtype=np.uint64) for column in (first, second)
    ]
    return Print(len(first), *(_wrapped(int(value)) for value in sums))


def read_results(table: pa.Table) -> IntakeFiles:
    """What all tasks wrote, in the driver."""
    files: dict[int, list[SegmentFile]] = {}
    told = Print()
    for row in table.to_pylist():
        if row["file"] is None:
            told = told.plus(Print(row["rows"], row["first"], row["second"]))
        else:
            files.setdefault(row["partition"], []).append(decode_file(row["file"]))
    return IntakeFiles(files, told)


def encode_file(file: SegmentFile) -> str:
    """A file as text, without its columns, which the driver knows."""
    ranges = [[each.position, each.bytes, each.rows, each.checksum] for each in file.ranges]
    return json.dumps({"path": file.path, "bytes": file.bytes, "ranges": ranges})


def decode_file(text: str, schema: pa.Schema | None = None) -> SegmentFile:
    """The other way round."""
    document = json.loads(text)
    ranges = tuple(
        FileRange(position=position, bytes=size, rows=rows, checksum=checksum)
        for position, size, rows, checksum in document["ranges"]
    )
    return SegmentFile(
        path=document["path"],
        schema=pa.schema([]) if schema is None else schema,
        bytes=document["bytes"],
        ranges=ranges,
    )


def read_journals(
    where: JournalAddress, names: Sequence[str], wanted: pa.Schema, config: Config
) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow` over numbers: task n gives the rows of journal n."""

    def run(numbers: Batches) -> Batches:
        broker = join_journals(where, config)
        try:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from rows_of(broker, names[number], wanted)
        finally:
            broker.close()

    return run


def rows_of(broker: Broker, name: str, wanted: pa.Schema) -> Batches:
    """All rows of a journal, as these columns."""
    offset = int(broker.start_offset(name))
    while True:
        found = broker.read(name, offset)
        for batch in found.rows().to_batches():
            yield batch.rename_columns(wanted.names).cast(wanted)
        if found.next_offset == offset:
            return
        offset = found.next_offset


def _encoded(made: Sequence[tuple[int, SegmentFile]], told: Print) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"partition": partition, "file": encode_file(file), "rows": 0, "first": 0, "second": 0}
        for partition, file in made
    ]
    rows.append(
        {
            "partition": None,
            "file": None,
            "rows": told.rows,
            "first": told.first,
            "second": told.second,
        }
    )
    return pa.RecordBatch.from_pylist(rows, schema=_RESULT)


def _wrapped(value: int) -> int:
    """A sum as Spark's long would hold it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
