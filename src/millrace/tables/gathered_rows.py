"""Batches gathered into the row groups of a file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from millrace.config import Config


def row_groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, config: Config
) -> Iterator[pa.Table]:
    """Rows as row groups of about the size of the settings."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            gathered.append(batch)
            size += batch.nbytes
        if size >= config.parquet_row_group_bytes:
            yield pa.Table.from_batches(gathered).cast(schema)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered).cast(schema)
