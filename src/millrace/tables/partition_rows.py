"""Rows by the values of partition columns, in Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def by_values(
    table: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each combination of values, in their order, and these values."""
    codes = np.zeros(table.num_rows, np.int64)
    for name in columns:
        encoded = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # Few combinations there are, so that codes stay small however many columns.
        _, codes = np.unique(codes * len(encoded.dictionary) + indices, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = [*starts[1:], len(order)]
    for start, end in zip(starts, ends, strict=True):
        rows = table.take(pa.array(order[start:end]))
        values = tuple(rows[name][0].as_py() for name in columns)
        yield values, rows
