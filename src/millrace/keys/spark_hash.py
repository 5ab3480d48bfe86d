"""Spark's hash of key columns, computed from Arrow data.

Invariant: `partition_ids(t, keys, n)` equals `pmod(hash(keys...), n)` in Spark, row by row, for
every atomic type, on every machine and in every process. The hash is Murmur3 x86 32-bit with seed
42; columns fold from left to right, and a null leaves the running hash as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import UserError
from millrace.keys import compiled_kernels, numpy_kernels
from millrace.keys.key_columns import CHUNK_ROWS, Column, Rows, Wide, chunks, key_names, physical

PARTITIONS_MAX: Final = 65_536
"""Partition numbers are held as 16 bits."""


def hash32(rows: Rows, keys: str | Sequence[str]) -> pa.Int32Array:
    """Spark's `hash(keys...)` of every row of a table or batch.

    Example:
        >>> from millrace.keys import hash32
        >>> hash32(pa.table({"customer": [7, 8, 7]}), "customer").to_pylist()
        [1293116811, -1131184084, 1293116811]
    """
    return _array(hash_rows(rows, keys))


def partition_ids(rows: Rows, keys: str | Sequence[str], partitions: int) -> pa.Int32Array:
    """Spark's `pmod(hash(keys...), partitions)` of every row of a table or batch.

    Example:
        >>> from millrace.keys import partition_ids
        >>> partition_ids(pa.table({"customer": [7, 8, 7]}), "customer", 4).to_pylist()
        [3, 0, 3]
    """
    check_partitions(partitions)
    return _array(kernels().pmod(hash_rows(rows, keys), partitions, np.int32))


def partition_ids16(rows: Rows, keys: Sequence[str], partitions: int) -> npt.NDArray[np.uint16]:
    """The same as 16-bit numbers, for splitting."""
    ids: npt.NDArray[np.uint16] = kernels().pmod(hash_rows(rows, keys), partitions, np.uint16)
    return ids


def hash_rows(rows: Rows, keys: str | Sequence[str]) -> npt.NDArray[np.int32]:
    """Spark's `hash(keys...)` as a numpy array."""
    names = key_names(rows.schema, keys)
    running = np.empty(rows.num_rows, np.int32)
    for position, name in enumerate(names):
        at = 0
        for array in chunks(rows.column(name)):
            _fold(physical(name, array), running[at : at + len(array)], first=position == 0)
            at += len(array)
    return running


def fold_hash(values: pa.Array, running: npt.NDArray[np.int32]) -> None:
    """Fold a column into the hashes of the columns before it; a null leaves a hash as it is."""
    at = 0
    for array in chunks(pa.chunked_array([values])):
        _fold(physical("a value", array), running[at : at + len(array)], first=False)
        at += len(array)


def kernels() -> ModuleType:
    """The compiled kernels if they are available, else those in numpy."""
    return compiled_kernels if compiled_kernels.available() else numpy_kernels


def check_partitions(partitions: object) -> None:
    """Refuse a number of partitions that is not possible."""
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise UserError(f"partitions is {partitions!r}\n  to fix: give a whole number")
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise UserError(
            f"partitions is {partitions}\n  to fix: give a number from 1 to {PARTITIONS_MAX}"
        )


def _fold(column: Column, running: npt.NDArray[np.int32], *, first: bool) -> None:
    if len(column) == 0:
        return
    fold = kernels().fold
    if not isinstance(column, Wide):
        fold(column, running, first=first)
        return
    for begin in range(0, len(column), CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, len(column))
        fold(column.shortest_bytes(begin, end), running[begin:end], first=first)


def _array(values: npt.NDArray[Any]) -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])
