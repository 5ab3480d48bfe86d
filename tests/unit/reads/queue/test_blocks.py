"""Blocks as bytes, and what is known of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.reads.queue.queue_kit import TEXT, WIDE, Row, batch_of, stretch, tags

from millrace.errors import Corrupt
from millrace.reads.queue.blocks import Encoder, Lsn, decode, is_ordered, stamps_of, summarise
from millrace.reads.queue.queue_limits import PAIRS_MAX

TAG, OTHER = tags(0, 2)


def test_a_block_holds_its_rows_and_its_number() -> None:
    encoder = Encoder()
    for lsn, schema in ((1, TEXT), (2, WIDE)):
        batch = batch_of(stretch(TAG, 1, range(1, 50)), schema)
        content = bytes(encoder.encode(batch, Lsn(lsn)))
        assert len(content) % 64 == 0
        assert decode(pa.py_buffer(content)).equals(batch)
        with pa.ipc.open_stream(content) as reader:
            _, metadata = reader.read_next_batch_with_custom_metadata()
        assert metadata[b"lsn"] == str(lsn).encode()


def test_dictionaries_fit_into_a_block() -> None:
    encoder = Encoder()
    batch = batch_of(stretch(TAG, 1, range(1, 10)))
    words = pa.array(["word " * 500 + str(n) for n in range(9)]).dictionary_encode()
    batch = batch.append_column("word", words)
    content = bytes(encoder.encode(batch, Lsn(1)))
    assert len(content) % 64 == 0
    assert decode(pa.py_buffer(content)).equals(batch)


def test_part_of_a_larger_batch_is_written_alone() -> None:
    batch = batch_of(stretch(TAG, 1, range(1, 10_000)))
    content = Encoder().encode(batch.slice(5000, 3), Lsn(1))
    assert len(content) < 2000
    assert decode(pa.py_buffer(bytes(content))).equals(batch.slice(5000, 3))


def test_bytes_that_are_no_block_are_an_error() -> None:
    content = bytearray(Encoder().encode(batch_of(stretch(TAG, 1, [1])), Lsn(1)))
    for damaged in (bytes(len(content)), bytes(content[:100]), b""):
        with pytest.raises(Corrupt, match="start the reads again"):
            decode(pa.py_buffer(damaged))


def test_the_pairs_of_few_are_known_exactly() -> None:
    rows = [Row(TAG, 0, 1, 5), Row(OTHER, 0, 2, 3), Row(TAG, 1, 1, 9), Row(TAG, 2, 7, 4)]
    summary = summarise(stamps_of(batch_of(rows)))
    assert summary.is_exact
    assert (summary.rows, summary.lowest, summary.highest) == (4, 3, 9)
    assert sorted(summary.entries.rows()) == [
        (TAG, 1, 5, 9, 2),
        (TAG, 7, 4, 4, 1),
        (OTHER, 2, 3, 3, 1),
    ]


def test_one_pair_is_known_exactly() -> None:
    summary = summarise(stamps_of(batch_of(stretch(TAG, 3, [4, 9, 7]))))
    assert summary.is_exact
    assert summary.entries.rows() == [(TAG, 3, 4, 9, 3)]


@pytest.mark.parametrize("pairs", [2, 20, PAIRS_MAX - 1, PAIRS_MAX])
def test_pairs_are_exact_up_to_a_number(pairs: int) -> None:
    rows = [Row(tag, n, n % 2, 100 * n + tag) for n in range(4) for tag in tags(0, pairs // 2)]
    summary = summarise(stamps_of(batch_of(rows)))
    assert summary.is_exact
    expected: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in rows:
        low, high, count = expected.get(row.pair, (row.clock, row.clock, 0))
        expected[row.pair] = (min(low, row.clock), max(high, row.clock), count + 1)
    assert sorted(summary.entries.rows()) == sorted((*k, *v) for k, v in expected.items())


def test_of_many_pairs_there_is_a_sample_with_the_first_and_the_last_row() -> None:
    rows = [Row(tag, 0, 1, 10 + n) for n, tag in enumerate(tags(0, 500))]
    summary = summarise(stamps_of(batch_of(rows)))
    assert not summary.is_exact
    assert (summary.rows, summary.lowest, summary.highest) == (500, 10, 509)
    entries = summary.entries.rows()
    assert len(entries) == PAIRS_MAX
    assert entries[0] == (rows[0].tag, 1, 10, 10, 1)
    assert entries[-1] == (rows[-1].tag, 1, 509, 509, 1)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Row(TAG, 0, 1, 1), Row(OTHER, 0, 1, 2), Row(TAG, 1, 1, 3)], True),
        ([Row(TAG, 0, 1, 2), Row(TAG, 1, 1, 1)], False),
        ([Row(TAG, 0, 1, 2), Row(OTHER, 0, 1, 2)], True),
        ([Row(OTHER, 0, 1, 2), Row(TAG, 0, 1, 2)], False),
        ([Row(TAG, 0, 1, 2), Row(TAG, 1, 2, 2)], True),
        ([Row(TAG, 1, 1, 2), Row(TAG, 0, 2, 2)], False),
        ([Row(TAG, 0, 1, 2)], True),
    ],
)
def test_rows_are_in_order_by_clock_then_tag_then_offset(rows: list[Row], expected: bool) -> None:  # noqa: FBT001
    assert is_ordered(stamps_of(batch_of(rows))) is expected
