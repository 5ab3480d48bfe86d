"""Rows put into the order of their partitions, so that each partition is a slice.

Invariant: a split has every row of its input exactly once (broadcast: once in each partition), and
the rows of a partition in input order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import GIB, MIB
from millrace.errors import UnsupportedType, UserError
from millrace.keys.key_columns import Rows, take_rows
from millrace.keys.partitioner import BroadcastPartitioner, Partitioner
from millrace.keys.spark_hash import kernels

ROWS_MAX: Final = 2**31 - 1
PLACING_BYTES: Final = 6
"""What a row costs while it is placed: 2 bytes for its partition, 4 for its place."""
GATHER_BYTES_MAX: Final = 1 * GIB
"""Gathered rows stay below what string columns with 32-bit offsets can hold."""
UNMOVED_BYTES_MIN: Final = 4 * MIB
"""Rows of one partition are gathered up to this size."""


@dataclass(frozen=True, slots=True)
class PartitionedBatch:
    """A batch ordered by partition.

    Partition p has the rows from `offsets[p]` to `offsets[p + 1]`; in a broadcast each has all.

    Example:
        >>> parts = mr.split(rows, mr.HashPartitioner("cust_id", 4), first_row=0)
        >>> parts.partitions, parts.rows(1), parts.part(1).num_rows
        (4, 2, 2)
    """

    batch: pa.RecordBatch
    offsets: npt.NDArray[np.int64]
    broadcast: bool = False

    @property
    def partitions(self) -> int:
        """The number of partitions, empty ones included.

        Example:
            >>> mr.split(rows, mr.HashPartitioner("cust_id", 4), first_row=0).partitions
            4
        """
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        return int(self.batch.nbytes)

    def rows(self, partition: int) -> int:
        """The number of rows of a partition.

        Example:
            >>> mr.split(rows, mr.HashPartitioner("cust_id", 4), first_row=0).rows(1)
            2
        """
        return int(self.offsets[partition + 1] - self.offsets[partition])

    def part(self, partition: int) -> pa.RecordBatch:
        """The rows of a partition, in input order, without copying them.

        Example:
            >>> mr.split(rows, mr.HashPartitioner("cust_id", 4), first_row=0).part(1).num_rows
            2
        """
        if self.broadcast:
            return self.batch
        return self.batch.slice(int(self.offsets[partition]), self.rows(partition))


def split(rows: Rows, partitioner: Partitioner, first_row: int) -> PartitionedBatch:
    """Split a batch or table; `first_row` rows of the map task came before it.

    Example:
        >>> from millrace.keys import HashPartitioner, split
        >>> parts = split(rows, HashPartitioner("cust_id", 4), first_row=0)
        >>> [parts.rows(partition) for partition in range(parts.partitions)]
        [1, 2, 0, 0]
    """
    batch = _one_batch(rows)
    if isinstance(partitioner, BroadcastPartitioner):
        offsets = np.arange(partitioner.partitions + 1, dtype=np.int64) * batch.num_rows
        return PartitionedBatch(batch, offsets, broadcast=True)
    ids = partitioner.ids(batch, first_row)
    if partitioner.partitions == 1:
        return PartitionedBatch(batch, np.array([0, batch.num_rows], np.int64))
    order, offsets = kernels().group_rows(ids, partitioner.partitions)
    indices = pa.array(order)
    columns = [_placed(field, batch.column(i), indices) for i, field in enumerate(batch.schema)]
    return PartitionedBatch(pa.RecordBatch.from_arrays(columns, schema=batch.schema), offsets)


def split_stream(
    batches: Iterable[pa.RecordBatch],
    partitioner: Partitioner,
    gather_bytes: int,
    *,
    first_row: int = 0,
) -> Iterator[PartitionedBatch]:
    """Split batches; small ones are gathered, large ones cut, to about `gather_bytes`.

    So slices are not tiny, and memory is bounded. It does not change the partition of a row.
    """
    limit = min(gather_bytes, GATHER_BYTES_MAX)
    # Rows of one partition are not moved, so batches of some size are not worth a copy.
    enough = min(limit, UNMOVED_BYTES_MIN) if partitioner.partitions == 1 else limit
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for whole in batches:
        for batch in _cut(whole, limit):
            size = _size(batch)
            if gathered and (gathered_bytes + size > limit or gathered_bytes >= enough):
                yield split(_joined(gathered), partitioner, first_row)
                first_row += sum(batch.num_rows for batch in gathered)
                gathered, gathered_bytes = [], 0
            gathered.append(batch)
            gathered_bytes += size
    if gathered:
        yield split(_joined(gathered), partitioner, first_row)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _placed(field: pa.Field, column: pa.Array, indices: pa.Array) -> pa.Array:
    try:
        return take_rows(column, indices)
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedType(
            f"column {field.name!r} cannot be split into partitions\n  its type is {field.type}"
            "\n  to fix: cast it to a type without views or run-end encoding"
        ) from error


def _cut(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    pieces = -(-_size(batch) // limit)
    step = max(batch.num_rows // max(pieces, 1), 1)
    for begin in range(0, batch.num_rows, step):
        yield batch.slice(begin, step)


def _size(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + PLACING_BYTES * int(batch.num_rows)


def _one_batch(rows: Rows) -> pa.RecordBatch:
    if rows.num_rows > ROWS_MAX:
        raise UserError(
            f"cannot split {rows.num_rows} rows at once\n  to fix: use split_stream, or pieces "
            f"of at most {ROWS_MAX} rows"
        )
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise UserError(
            "cannot split a table at once whose columns do not fit one batch"
            "\n  found: a column with 32-bit offsets and over 2 GiB of values"
            "\n  to fix: use split_stream, or cast the column to large_string or large_binary"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)
