"""What is freed of segment files, and how much of the disk they take."""

from __future__ import annotations

from tests.unit.reads.queue.queue_kit import TEXT, batch_of, stretch, tags

from millrace.reads.queue.blocks import Block, Lsn, stamps_of, summarise
from millrace.reads.queue.segments import Punch, Segments, Unlink

TAG = tags(0, 1)[0]
SUMMARY = summarise(stamps_of(batch_of(stretch(TAG, 1, [1]))))


def written(segments: Segments, *lengths: int) -> list[Block]:
    blocks = []
    for lsn, length in enumerate(lengths, 1):
        number = segments.segment_for_next()
        block = Block(
            lsn=Lsn(lsn),
            segment=number,
            position=segments._segments[number].length,
            length=length,
            binding=0,
            schema=TEXT,
            rows=1,
            is_ordered=True,
            summary=SUMMARY,
        )
        segments.on_written(block)
        blocks.append(block)
    return blocks


def test_a_segment_is_followed_by_another_when_it_has_its_size() -> None:
    segments = Segments(1000)
    blocks = written(segments, 640, 640, 640, 64)
    assert [(block.segment, block.position) for block in blocks] == [
        (1, 0),
        (1, 640),
        (2, 0),
        (2, 640),
    ]
    assert segments.used_bytes == 3 * 640 + 64


def test_a_segment_whose_blocks_are_all_dead_is_unlinked_even_if_it_was_still_written() -> None:
    segments = Segments(1000)
    first, second = written(segments, 640, 640)
    assert segments.on_dead([first, second]) == [Unlink(first.segment)]
    assert segments.used_bytes == 0
    assert segments.segment_for_next() == 2


def test_a_dead_block_is_punched_out_between_live_ones() -> None:
    segments = Segments(10**6)
    blocks = written(segments, 6400, 6400, 6400)
    # 6400 to 12800 has one whole page: 8192 to 12288.
    assert segments.on_dead([blocks[1]]) == [Punch(blocks[1].segment, 6400, 12800)]
    assert segments.used_bytes == 19200 - 4096


def test_dead_neighbours_are_punched_as_one() -> None:
    segments = Segments(10**6)
    blocks = written(segments, 6400, 6400, 6400, 6400)
    assert segments.on_dead([blocks[2], blocks[1]]) == [Punch(blocks[1].segment, 6400, 19200)]
    assert segments.used_bytes == 25600 - 8192


def test_a_punch_reaches_into_the_page_that_is_shared_with_dead_neighbours() -> None:
    segments = Segments(10**6)
    blocks = written(segments, 6400, 6400, 6400, 6400, 6400)
    number = blocks[0].segment
    segments.on_dead([blocks[1]])
    segments.on_dead([blocks[3]])
    freed_before = 32000 - segments.used_bytes
    # 12800 to 19200 joins both: the pages at its edges are whole now, and no more is asked for.
    assert segments.on_dead([blocks[2]]) == [Punch(number, 12288, 20480)]
    assert 32000 - segments.used_bytes == 16384  # 8192 to 24576
    assert freed_before == 8192


def test_small_blocks_give_back_a_page_when_all_in_it_are_dead() -> None:
    segments = Segments(10**6)
    blocks = written(segments, *[512] * 24)
    for block in blocks[8:15]:
        segments.on_dead([block])
        assert segments.used_bytes == 24 * 512
    assert segments.on_dead([blocks[15]]) == [Punch(blocks[0].segment, 4096, 8192)]
    assert segments.used_bytes == 24 * 512 - 4096


def test_where_nothing_can_be_punched_segments_count_whole_and_sparse_ones_are_named() -> None:
    segments = Segments(20_000)
    blocks = written(segments, 6400, 6400, 6400, 6400, 6400)
    segments.on_dead([blocks[0]])
    segments.can_punch = False
    assert segments.used_bytes == 5 * 6400
    assert segments.sparse() == []
    assert segments.on_dead([blocks[1]]) == []
    assert segments.sparse() == [blocks[0].segment]
    segments.on_dead([blocks[2], blocks[3]])
    assert segments.used_bytes == 6400
    assert segments.sparse() == [], "one that is still written is left alone"
