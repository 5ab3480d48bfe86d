"""Bytes as Flight carries them: the values of one column. They are not copied."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa

BYTES: Final = pa.schema([("bytes", pa.large_binary())])
"""The schema of every stream of bytes. A Flight stream has one schema, and rows have many."""


def byte_batch(data: pa.Buffer, sizes: Sequence[int] | None = None) -> pa.RecordBatch:
    """A batch with a row for each of these sizes; by default one row for all the bytes."""
    sizes = (data.size,) if sizes is None else sizes
    offsets = pa.py_buffer(array("q", accumulate(sizes, initial=0)))
    column = pa.Array.from_buffers(pa.large_binary(), len(sizes), [None, offsets, data])
    return pa.RecordBatch.from_arrays([column], schema=BYTES)


def byte_values(batch: pa.RecordBatch) -> Iterator[pa.Buffer]:
    """The bytes of each row, as views of the batch."""
    for value in batch.column(0):
        yield value.as_buffer()


def byte_batches(data: pa.Buffer, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The bytes in batches of at most this size."""
    for begin in range(0, data.size, bytes_max):
        yield byte_batch(data.slice(begin, min(bytes_max, data.size - begin)))
