"""A finished shuffle, to be read: by this process, with or without Spark running.

Invariant: reads follow the manifest. A map output in a folder of this host is mapped; one on
another host is fetched through that host's agent; neither is taken for empty because it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from millrace.errors import Corrupt, DataLost, MillraceError, UserError
from millrace.faults import fault
from millrace.ids import AttemptId, FolderId, QueryId, StageId
from millrace.shuffle import merged_outputs, reader
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.known_outputs import KnownOutputs
from millrace.shuffle.manifest import Choice, Manifest
from millrace.shuffle.partition_entries import (
    ENTRY,
    EntryArray,
    PartitionEntries,
    PartitionMeta,
    meta_of,
)
from millrace.shuffle.reports import PartitionSize, StageReport, VerifyReport
from millrace.shuffle.stage_entries import Columns, read_column
from millrace.storage import layout
from millrace.storage.store import Store
from millrace.text import human_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ROWS: Final = ENTRY.names.index("rows") if ENTRY.names else 0


class Remote(Protocol):
    """Map outputs in folders of other hosts."""

    def index(self, folder: FolderId, attempt: AttemptId) -> MapTaskIndex:
        """The index of an attempt."""

    def fetch_all(
        self, requests: Iterable[tuple[FolderId, AttemptId, PartitionMeta]]
    ) -> Iterator[pa.Buffer]:
        """The checked bytes of many partitions, in the order of the requests."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Shuffle:
    """Rows saved by key.

    Example:
        >>> shuffle = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4)
        >>> shuffle.read(1).to_pylist()  # all rows of customer 1, and of others in its partition
        [{'cust_id': 1, 'amount': 10}, {'cust_id': 1, 'amount': 30}]
    """

    manifest: Manifest
    stores: Mapping[FolderId | None, Store]
    remote: Remote | None = None
    report: StageReport = field(default_factory=StageReport)
    """What ran, what was reused and why."""
    registry: KnownOutputs = field(default_factory=KnownOutputs)
    columns: Columns | None = field(default=None, compare=False)
    """The entries of the stage, as far as they are at hand."""
    positions: tuple[int, ...] | None = None
    """Which outputs of the stage these are; None: all."""
    frame_of: Callable[[Shuffle], DataFrame] | None = field(default=None, compare=False)
    """Makes DataFrames; a workspace gives it, since nothing here knows Spark."""

    def to_spark(self) -> DataFrame:
        """The rows as a Spark DataFrame with the same partitions, read when Spark needs them.

        Example:
            >>> shuffle.to_spark().rdd.getNumPartitions()
            4
        """
        if self.frame_of is None:
            raise UserError(
                "to_spark() of a shuffle that was opened without a workspace\n"
                "  to fix: open it with ws.open_shuffle(run)"
            )
        return self.frame_of(self)

    @property
    def query_id(self) -> QueryId:
        """Number of the run.

        Example:
            >>> ws.open_shuffle(shuffle.query_id).rows
            3
        """
        return self.manifest.query_id

    @property
    def stage_id(self) -> StageId:
        """Number of the stage within the run.

        Example:
            >>> shuffle.stage_id  # a shuffle has one stage
            0
        """
        return self.manifest.stage_id

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows.

        Example:
            >>> shuffle.schema.names
            ['cust_id', 'amount']
        """
        return self.manifest.schema

    @property
    def partitioner(self) -> Mapping[str, Any]:
        """How rows were given to partitions.

        Example:
            >>> shuffle.partitioner
            {'kind': 'hash', 'keys': ['cust_id'], 'partitions': 4}
        """
        return self.manifest.partitioner

    @property
    def partitions(self) -> int:
        """How many partitions there are.

        Example:
            >>> shuffle.partitions
            4
        """
        return self.manifest.partitions

    @property
    def sizes(self) -> list[PartitionSize]:
        """Rows and bytes of each partition.

        Example:
            >>> [size.rows for size in shuffle.sizes]
            [1, 2, 0, 0]
        """
        rows, size = self.manifest.partition_rows, self.manifest.partition_bytes
        return [
            PartitionSize(partition=n, rows=rows[n], bytes=size[n]) for n in range(self.partitions)
        ]

    @property
    def rows(self) -> int:
        """Rows over all partitions.

        Example:
            >>> shuffle.rows
            3
        """
        return sum(self.manifest.partition_rows)

    @property
    def bytes(self) -> int:
        """Payload bytes over all partitions.

        Example:
            >>> shuffle.bytes == sum(size.bytes for size in shuffle.sizes)
            True
        """
        return sum(self.manifest.partition_bytes)

    def __repr__(self) -> str:
        return (
            f"Shuffle(run {self.query_id}, {self.partitions} partitions, {self.rows:,} rows, "
            f"{human_bytes(self.bytes)})"
        )

    def read(self, partition: int, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a partition as a table.

        Example:
            >>> shuffle.read(1, columns=["amount"]).to_pydict()
            {'amount': [10, 30]}
        """
        return self.batches(partition, columns).read_all()

    def batches(self, partition: int, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows of a partition as one stream over all map outputs, in order of map tasks.

        Example:
            >>> sum(batch.num_rows for batch in shuffle.batches(1))
            2
        """
        reader.check_partition(partition, self.partitions)
        schema = self.schema
        if columns is not None:
            numbers = reader.field_numbers(schema, columns)
            schema = pa.schema([schema.field(number) for number in numbers])
        return pa.RecordBatchReader.from_batches(schema, self._rows(partition, columns))

    def of_outputs(self, positions: Sequence[int] | None) -> Shuffle:
        """What some map tasks wrote, by their places in the manifest; None for all of it."""
        if positions is None:
            return self
        chosen = tuple(self.manifest.chosen[position] for position in positions)
        known = self.positions
        places = tuple(positions if known is None else (known[place] for place in positions))
        return replace(self, manifest=replace(self.manifest, chosen=chosen), positions=places)

    def outputs(
        self, partition: int, first: int = 0
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """The rows of a partition by map output, from the `first` one on, each with its number.

        All bytes of an output are found right before its first row is handed out.
        """
        column = self._column(partition)
        parts = [part for part in self._parts(partition, column) if part[0] >= first]
        datas = self._partition_data(column, parts)
        for (number, _, _), data in zip(parts, datas, strict=True):
            yield number, reader.decode(data, self.schema)

    def entries(self, partition: int) -> EntryArray:
        """Where the rows of a partition are, output after output."""
        column = self._column(partition)
        if column is not None:
            return self._mine(column)
        metas = [reader.partition_meta(index, partition) for index in self.indexes()]
        return PartitionEntries.of(metas).array

    def check(self, choice: Choice, partitions: Iterable[int]) -> None:
        """Raise unless these partitions of a map output are there and right."""
        index = self._index(choice)
        for _ in self._data((choice, reader.partition_meta(index, p)) for p in partitions):
            pass

    def indexes(self) -> Iterator[MapTaskIndex]:
        """The index of every map output, in order of map tasks."""
        self._read_indexes(self.manifest.chosen)
        return (self._index(choice) for choice in self.manifest.chosen)

    def verify(self) -> VerifyReport:
        """Read every byte and compare it with what was written.

        Example:
            >>> shuffle.verify().problems
            ()
        """
        problems: list[str] = []
        total = 0
        for choice in self.manifest.chosen:
            try:
                index = self._index(choice)
            except MillraceError as error:
                problems.append(str(error))
                continue
            for meta in index.partitions:
                problem, size = self._check(choice, meta)
                total += size
                if problem is not None:
                    problems.append(problem)
        return VerifyReport(
            partitions=self.partitions,
            map_outputs=len(self.manifest.chosen),
            bytes=total,
            problems=tuple(dict.fromkeys(problems)),
        )

    def _check(self, choice: Choice, meta: PartitionMeta) -> tuple[str | None, int]:
        """What is wrong with a part of a map output, if anything, and its size."""
        rows = size = 0
        try:
            for data in self._data([(choice, meta)]):
                rows = sum(batch.num_rows for batch in reader.decode(data, self.schema))
                size = data.size
        except (MillraceError, pa.ArrowException) as error:
            return str(error), 0
        if rows != meta.rows:
            where = f"{choice.attempt}: partition {meta.reduce_partition}"
            return f"{where} has {rows} rows, its index says {meta.rows}", size
        return None, size

    def _rows(self, partition: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        column = self._column(partition)
        for data in self._partition_data(column, self._parts(partition, column)):
            yield from reader.decode(data, self.schema, columns)
            fault("shuffle.read.after_output", self.stage_id)

    def _parts(
        self, partition: int, column: EntryArray | None
    ) -> list[tuple[int, Choice, PartitionMeta]]:
        """The outputs that have rows of a partition: their numbers, and where the rows are."""
        chosen = self.manifest.chosen
        if column is not None:
            return [
                (number, chosen[number], meta_of(entry, partition))
                for number, entry in enumerate(self._mine(column).tolist())
                if entry[_ROWS]
            ]
        self._read_indexes(chosen)
        metas = [reader.partition_meta(self._index(choice), partition) for choice in chosen]
        return [
            (number, choice, meta)
            for number, (choice, meta) in enumerate(zip(chosen, metas, strict=True))
            if meta.rows
        ]

    def _column(self, partition: int) -> EntryArray | None:
        """The entries of a partition, without a look at indexes; None if that is not possible."""
        column = None if self.columns is None else self.columns.column(partition)
        sums, store = self.manifest.entries, self.stores.get(None)
        # The index of a single output says the same of all its partitions at once.
        several = len(self.manifest.chosen) > 1
        if column is None and sums is not None and store is not None and several:
            column = read_column(store, self.query_id, self.stage_id, sums, partition)
        return column

    def _mine(self, column: EntryArray) -> EntryArray:
        """The entries of these outputs, of a column of all outputs of the stage."""
        if self.positions is None:
            return column[: len(self.manifest.chosen)]
        return column[list(self.positions)]

    def _partition_data(
        self, column: EntryArray | None, parts: Sequence[tuple[int, Choice, PartitionMeta]]
    ) -> Iterator[pa.Buffer]:
        """The bytes of these parts of a partition, from merged objects where there are some."""
        store, sums = self.stores.get(None), self.manifest.entries
        if store is None or sums is None or not sums.merged or column is None:
            return self._data((choice, meta) for _, choice, meta in parts)
        if len(column) == sums.entries:
            places = self.positions or range(sums.outputs)
            wanted = [(places[n], choice.attempt, meta) for n, choice, meta in parts]
            some = merged_outputs.spans(wanted, column, sums.outputs, sums.merged)
            return merged_outputs.read(store, some)
        return self._data((choice, meta) for _, choice, meta in parts)

    def _data(self, chosen: Iterable[tuple[Choice, PartitionMeta]]) -> Iterator[pa.Buffer]:
        """The bytes of parts that have rows: those here mapped, all others fetched in one read."""
        parts = [(self._remote_for(pair[0]), *pair) for pair in chosen if pair[1].rows]
        remote = next((each for each, _, _ in parts if each is not None), None)
        wanted = ((c.folder, c.attempt, meta) for each, c, meta in parts if each and c.folder)
        fetched = iter(()) if remote is None else remote.fetch_all(wanted)
        for (each, folder), group in groupby(parts, key=lambda part: (part[0], part[1].folder)):
            if each is None:
                requests = [(choice.attempt, meta) for _, choice, meta in group]
                yield from reader.map_partitions(self.stores[folder], requests)
            else:
                yield from (next(fetched) for _ in group)

    def _read_indexes(self, chosen: Sequence[Choice]) -> None:
        """Read the indexes of map outputs in a bucket, many at a time."""
        store = self.stores.get(None)
        if store is None or not store.remote:
            return
        known = self.registry.tasks
        missing = [c for c in chosen if c.attempt.attempt not in known.get(c.attempt.task, {})]
        indexes = store.each(lambda c: reader.index_or_none(store, c.attempt), missing)
        for choice, index in zip(missing, indexes, strict=True):
            # What is wrong with one is said when it is asked for.
            if index is not None and index.content_checksum() == choice.content:
                self.registry.register(index, choice.folder)

    def _index(self, choice: Choice) -> MapTaskIndex:
        known = self.registry.tasks.get(choice.attempt.task, {}).get(choice.attempt.attempt)
        if known is not None:
            return known.index
        remote = self._remote_for(choice)
        where = f"{layout.attempt_folder(choice.attempt)}/{layout.INDEX_BIN}"
        if remote is None:
            store = self.stores[choice.folder]
            where = store.path(where)
            index = reader.read_index(store, choice.attempt.task, choice.attempt.attempt)
        else:
            assert choice.folder is not None
            index = remote.index(choice.folder, choice.attempt)
        if index.content_checksum() != choice.content:
            raise Corrupt(
                f"map output {choice.attempt} is not the one this shuffle was made of: {where}\n"
                f"  expected: content {choice.content}, found: {index.content_checksum()}\n"
                "  to fix: run the shuffle again"
            )
        self.registry.register(index, choice.folder)
        return index

    def _remote_for(self, choice: Choice) -> Remote | None:
        """The client that fetches a map output; None if its folder is on this host."""
        if choice.folder in self.stores:
            return None
        if self.remote is None or choice.folder is None:
            raise DataLost(
                f"map output {choice.attempt} lies in folder {choice.folder} of another host\n"
                "  to fix: open the workspace with the token of its agents"
            )
        return self.remote
