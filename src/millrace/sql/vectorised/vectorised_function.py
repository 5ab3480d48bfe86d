"""Functions of our own that the SQL of an expression calls: Arrow arrays in, an Arrow array out.

Invariant: the name in SQL ends with a version (`mr_reverse_1`), which goes up when an answer of the
function changes, so that rows computed before are not taken for its rows. A function keeps nothing
between calls. It is called with some two thousand rows at a time.

    >>> from millrace.sql.vectorised.letter_case import UPPER
    >>> UPPER.sql('"name"')
    'mr_upper_1("name")'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

NAME: Final = re.compile(r"\bmr_[a-z0-9_]+_[0-9]+\b")
"""A name of one of these functions within SQL."""


class ValueRefused(Exception):
    """A value has no answer; the text is what Spark says of it, and the task fails with it."""


@dataclass(frozen=True, slots=True)
class VectorisedFunction:
    """A function with the DuckDB types of its parameters and of its answer."""

    name: str
    parameters: tuple[str, ...]
    returns: str
    run: Callable[..., pa.Array | pa.ChunkedArray]

    def sql(self, *arguments: str) -> str:
        """The call of it in SQL."""
        assert len(arguments) == len(self.parameters)
        return f"{self.name}({', '.join(arguments)})"


VECTORISED: Final[dict[str, VectorisedFunction]] = {}


def vectorised(
    name: str, parameters: Sequence[str], returns: str, run: Callable[..., Any]
) -> VectorisedFunction:
    """Enter a function in the table, under its name and version."""
    assert NAME.fullmatch(name)
    assert name not in VECTORISED
    VECTORISED[name] = VectorisedFunction(name, tuple(parameters), returns, run)
    return VECTORISED[name]


def per_value(
    *columns: pa.Array | pa.ChunkedArray, call: Callable[..., Any], kind: pa.DataType
) -> pa.Array:
    """Calls Python once for each distinct row of the columns; null if one of them is null.

    For functions that few queries use, or whose argument is rarely not plain. The rows of a call
    are few, so the values in memory are bounded too.
    """
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
    taken = [_whole(column).take(pa.array(first)).to_pylist() for column in columns]
    rows = zip(*taken, strict=True)
    answers = [None if None in row else call(*row) for row in rows]
    return pa.array(answers, kind).take(pa.array(inverse))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _encoded(column: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    """The distinct values of a column. Zeros of both signs are distinct, so doubles go as bits."""
    array = _whole(column)
    if pa.types.is_floating(array.type):
        array = array.view(pa.int64() if pa.types.is_float64(array.type) else pa.int32())
    return array.dictionary_encode()


def _values(encoded: pa.DictionaryArray, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    values = encoded.dictionary
    if pa.types.is_floating(column.type):
        values = values.view(column.type)
    return list(values.to_pylist())
