"""Batches by tokens."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.paid.token_batches import cut_by_tokens, tokens_of_rows


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9), st.integers(1, 60))
def test_every_row_is_in_one_batch_that_is_as_full_as_its_limits_allow(
    tokens: list[int], rows_max: int, tokens_max: int
) -> None:
    cuts = list(cut_by_tokens(np.array(tokens, np.int64), rows_max, tokens_max))

    assert [row for begin, end in cuts for row in range(begin, end)] == list(range(len(tokens)))
    for begin, end in cuts:
        assert end - begin <= rows_max
        assert end - begin == 1 or sum(tokens[begin:end]) <= tokens_max
        has_room = end - begin < rows_max and end < len(tokens)
        assert not has_room or sum(tokens[begin : end + 1]) > tokens_max


def test_tokens_are_those_of_a_column_or_a_quarter_of_the_letters_of_the_text() -> None:
    batch = pa.record_batch(
        {
            "text": ["abcdefgh", None, "a"],
            "more": pa.array(["x", "y" * 7, ""], pa.large_string()),
            "n": pa.array([7, None, -3], pa.int32()),
        }
    )
    assert tokens_of_rows(batch, "n").tolist() == [7, 0, 0]
    assert tokens_of_rows(batch, None).tolist() == [3, 2, 1]
