"""Python over the distinct values of Arrow arrays, for functions that few queries use.

Invariant: Python runs once for each distinct row of a call, never once for each row. A call has
some two thousand rows, so the values in memory are bounded too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

_TEXT: Final = pa.string()


class ValueRefused(Exception):
    """A value has no answer; the text is what Spark says of it, and the task fails with it."""


def per_value(*columns: pa.Array, call: Callable[..., Any], kind: pa.DataType = _TEXT) -> pa.Array:
    """What a call gives for each distinct row of the columns; null if one of them is null."""
    if len(columns) == 1:
        encoded = _encoded(columns[0])
        answers = [None if value is None else call(value) for value in _values(encoded, columns[0])]
        return pa.array(answers, kind).take(encoded.indices)
    parts = [_encoded(column) for column in columns]
    numbers = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        # Null has the last number of each column.
        indices = part.indices.fill_null(len(part.dictionary)).to_numpy(zero_copy_only=False)
        numbers = numbers * (len(part.dictionary) + 1) + indices
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    taken = [column.take(pa.array(first)).to_pylist() for column in columns]
    rows = zip(*taken, strict=True)
    answers = [None if None in row else call(*row) for row in rows]
    return pa.array(answers, kind).take(pa.array(inverse))


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    """The distinct values of a column. Zeros of both signs are distinct, so doubles go as bits."""
    if pa.types.is_floating(column.type):
        column = column.view(pa.int64() if pa.types.is_float64(column.type) else pa.int32())
    return column.dictionary_encode()


def _values(encoded: pa.DictionaryArray, column: pa.Array) -> list[Any]:
    values = encoded.dictionary
    if pa.types.is_floating(column.type):
        values = values.view(column.type)
    return list(values.to_pylist())
