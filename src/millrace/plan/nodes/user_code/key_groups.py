"""Cuts rows that are sorted by keys into groups of equal keys, without looking at single rows.

As in Spark null is a key as any other value, NaN equals NaN, and 0.0 equals -0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.plan.nodes.user_code.user_function import Batches


def key_groups(batches: Batches, keys: Sequence[str]) -> Iterator[list[pa.RecordBatch]]:
    """The rows of each group, as they come; groups of no row do not come."""
    group: list[pa.RecordBatch] = []
    last_key: tuple[Any, ...] = ()
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = [_comparable(batch.column(key)) for key in keys]
        begin = 0
        for end in _ends(columns, batch.num_rows):
            part = batch.slice(begin, end - begin)
            first_key = tuple(column[begin].as_py() for column in columns)
            if group and (begin or first_key != last_key):
                yield group
                group = []
            group.append(part)
            last_key = first_key
            begin = end
    if group:
        yield group


def _ends(columns: Sequence[pa.Array], rows: int) -> list[int]:
    """The ends of runs of equal rows."""
    ends = [np.flatnonzero(np.diff(_numbers(column))) + 1 for column in columns]
    return [int(end) for end in np.unique(np.concatenate([*ends, [rows]]))]


def _numbers(column: pa.Array) -> Any:  # noqa: ANN401 - of numpy
    """A number for each value, null too: bytes that lie under a null count for nothing."""
    return column.dictionary_encode(null_encoding="encode").indices.to_numpy()


def _comparable(column: pa.Array) -> pa.Array:
    """Equal values for equal keys: floats by their bits, once they have one NaN and one zero."""
    if not pt.is_floating(column.type):
        return column
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    plain = pc.if_else(pc.equal(column, zero), zero, column)
    plain = pc.if_else(pc.is_nan(plain), nan, plain)
    return plain.view(pa.int32() if pt.is_float32(column.type) else pa.int64())
