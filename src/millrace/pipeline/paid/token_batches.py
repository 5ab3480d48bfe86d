"""Cuts rows into batches by their tokens. Pure.

Law: every row is in one batch, in order; a batch of several rows has no more than the most tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Tokens = npt.NDArray[np.int64]
LETTERS_OF_TOKEN: Final = 4
"""Letters of a token, where nothing else says how many a row has."""


def tokens_of_rows(batch: pa.RecordBatch, column: str | None) -> Tokens:
    """The tokens of each row: those of a column, else estimated from the bytes of its text."""
    if column is not None:
        counted = pc.fill_null(pc.cast(batch.column(column), pa.int64()), 0)
        given: Tokens = np.maximum(counted.to_numpy(zero_copy_only=False), 0)
        return given
    letters = np.zeros(batch.num_rows, np.int64)
    for values in batch.columns:
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            lengths = pc.cast(pc.fill_null(pc.binary_length(values), 0), pa.int64())
            letters += lengths.to_numpy(zero_copy_only=False)
    estimated: Tokens = -(-letters // LETTERS_OF_TOKEN)
    return estimated


def cut_by_tokens(tokens: Tokens, rows_max: int, tokens_max: int) -> Iterator[tuple[int, int]]:
    """Rows in batches, by the tokens of each row: from one index up to another."""
    ends = np.cumsum(tokens)
    begin = 0
    while begin < len(tokens):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + tokens_max, side="right"))
        end = max(begin + 1, min(end, begin + rows_max))
        yield begin, end
        begin = end
