"""The entries of all map outputs of a stage, side by side for each partition.

    entries.bin    header: magic, version, entries of a column, partitions
                   for each partition a column: an entry for each output, in the manifest's order,
                   and one for each merged object

So a reader of one partition needs one small read, however many map outputs there are. The file only
saves reads: whatever is wrong with it, the indexes of the outputs say the same.

Invariant: a column is used only if its checksum is the one that the stage's manifest names.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from millrace.errors import StorageError
from millrace.ids import QueryId, StageId
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.partition_entries import ENTRY, EntryArray
from millrace.storage import layout
from millrace.storage.store import Store

VERSION: Final = 1
MAGIC: Final = b"FFQE"
_HEADER: Final = struct.Struct("<4sIQQ")
_CHECKSUM: Final = np.dtype("<u8")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MergedRange:
    """Outputs that follow one another and are in one object, too, which is named by a digest."""

    first: int
    count: int
    digest: str


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """What a manifest says of `entries.bin`: how many outputs, and each column's checksum."""

    outputs: int
    checksums: bytes
    """XXH3-64 of each column, 8 bytes each, little-endian."""
    merged: tuple[MergedRange, ...] = ()
    """In order. Each has an entry in each column, behind those of the outputs."""

    @property
    def entries(self) -> int:
        """How many entries a column has."""
        return self.outputs + len(self.merged)

    def of(self, partition: int) -> int:
        """The checksum of a partition's column."""
        return int(np.frombuffer(self.checksums, _CHECKSUM, 1, partition * 8)[0])


class Columns(Protocol):
    """The entries of some partitions in all outputs of a stage."""

    def column(self, partition: int) -> EntryArray | None:
        """Those of one partition; None if they are not known here."""


@dataclass(frozen=True, slots=True, eq=False)
class StageTable:
    """All entries of a stage, in the driver that decided it."""

    table: EntryArray
    """By partition, then by output; behind them, the ranges of merged objects."""
    merged: tuple[MergedRange, ...] = ()

    @classmethod
    def of(cls, indexes: Sequence[MapTaskIndex], partitions: int) -> StageTable:
        """The entries of these outputs."""
        table = np.zeros((partitions, len(indexes)), ENTRY)
        for number, index in enumerate(indexes):
            table[:, number] = index.entries
        return cls(table)

    @property
    def outputs(self) -> int:
        """How many outputs there are."""
        return int(self.table.shape[1]) - len(self.merged)

    def with_merged(self, merged: Sequence[MergedRange]) -> StageTable:
        """The same, with where the ranges of outputs are in merged objects."""
        more = np.zeros((self.table.shape[0], len(merged)), ENTRY)
        for number, each in enumerate(merged):
            some = self.table[:, each.first : each.first + each.count]
            for name in ("bytes", "rows"):
                more[name][:, number] = some[name].sum(axis=1)
            ends = np.cumsum(more["bytes"][:, number])
            more["offset"][:, number] = ends - more["bytes"][:, number]
        return StageTable(np.concatenate((self.table, more), axis=1), tuple(merged))

    def column(self, partition: int) -> EntryArray | None:
        """The entries of a partition."""
        column: EntryArray = self.table[partition]
        return column

    def rows(self) -> tuple[int, ...]:
        """Of each partition."""
        return tuple(self.table["rows"][:, : self.outputs].sum(axis=1).tolist())

    def bytes(self) -> tuple[int, ...]:
        """Of each partition."""
        return tuple(self.table["bytes"][:, : self.outputs].sum(axis=1).tolist())

    def sums(self) -> ColumnSums:
        """What the manifest says of the file."""
        digests = [xxhash.xxh3_64_intdigest(column.data) for column in self._raw()]
        checksums = np.array(digests, _CHECKSUM).tobytes()
        return ColumnSums(self.outputs, checksums, self.merged)

    def write(self, store: Store, query_id: QueryId, stage_id: StageId, *, sync: bool) -> bool:
        """Write the file, before the manifest that names it. Returns whether this call did."""
        partitions, entries = self.table.shape
        header = _HEADER.pack(MAGIC, VERSION, entries, partitions)
        store.make_folder(layout.stage_folder(query_id, stage_id))
        data = b"".join((header, self.table.data.cast("B")))
        return store.create(layout.entries_path(query_id, stage_id), data, sync=sync)

    def _raw(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return self.table.view(np.uint8)


@dataclass(frozen=True, slots=True)
class SentColumns:
    """Columns that came along with a task, whose host does not see the workspace's folder."""

    columns: Mapping[int, bytes]

    def column(self, partition: int) -> EntryArray | None:
        """The entries of a partition."""
        data = self.columns.get(partition)
        return None if data is None else np.frombuffer(data, ENTRY)


def read_column(
    store: Store, query_id: QueryId, stage_id: StageId, sums: ColumnSums, partition: int
) -> EntryArray | None:
    """The entries of a partition, by one read; None if the file has them not as they were."""
    path = layout.entries_path(query_id, stage_id)
    size = sums.entries * ENTRY.itemsize
    data = pa.py_buffer(b"")
    try:
        _, data = store.load(path, _HEADER.size + partition * size, size)
    except (OSError, StorageError) as error:
        _LOG.info("%s is not read, but the indexes of the outputs: %s", store.path(path), error)
        return None
    if data.size != size or xxhash.xxh3_64_intdigest(memoryview(data)) != sums.of(partition):
        _LOG.warning("%s is damaged; the indexes of the outputs are read", store.path(path))
        return None
    return np.frombuffer(data, ENTRY)
