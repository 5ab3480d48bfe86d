"""Cuts the rows of a file into row groups. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millrace.pipeline.large import large_values as large


def row_groups(batches: Sequence[pa.RecordBatch], size: int) -> Iterator[list[pa.RecordBatch]]:
    """Groups of batches of about `size` bytes; larger batches are cut.

    Large values count with their size in the file.
    """
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for batch in batches:
        for piece in large.pieces(batch, size):
            gathered.append(piece)
            gathered_bytes += large.loaded_bytes(piece)
            if gathered_bytes >= size:
                yield gathered
                gathered, gathered_bytes = [], 0
    if gathered:
        yield gathered


def group_rows(group: Sequence[pa.RecordBatch]) -> int:
    """How many rows a group has."""
    return sum(batch.num_rows for batch in group)
