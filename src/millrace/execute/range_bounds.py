"""Finds the bounds of a range exchange in rows that an earlier stage wrote.

Invariant: the same rows give the same bounds, so a resumed run places every row as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.keys import sample_bounds
from millrace.shuffle.handle import Shuffle

SAMPLE_OUTPUTS_MAX: Final = 16
"""How many map outputs are read to choose the bounds of a sort."""


def bounds_in(shuffle: Shuffle, keys: Sequence[str], partitions: int, config: Config) -> pa.Table:
    """Bounds that cut the rows of a shuffle into about even partitions."""
    schema = pa.schema([shuffle.schema.field(name) for name in keys])
    outputs = shuffle.manifest.chosen
    positions = _evenly(len(outputs), SAMPLE_OUTPUTS_MAX)
    rows_each = max(1, config.sample_rows_max // max(1, len(positions)))
    pieces = [schema.empty_table()]
    for position in positions:
        step = max(1, -(-outputs[position].rows // rows_each))
        pieces += _every(shuffle.of_outputs([position]), keys, schema, step)
    return sample_bounds(pa.concat_tables(pieces), list(keys), partitions)


def _every(shuffle: Shuffle, keys: Sequence[str], schema: pa.Schema, step: int) -> list[pa.Table]:
    """Every `step`-th row."""
    tables, seen = [], 0
    for batch in shuffle.batches(0, keys):
        first = -seen % step
        rows = pa.array(range(first, batch.num_rows, step), pa.int64())
        tables.append(pa.Table.from_batches([batch.take(rows)], schema))
        seen += batch.num_rows
    return tables


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [position * count // most for position in range(most)]
