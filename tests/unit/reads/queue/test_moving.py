"""Which remainders of blocks become one."""

from __future__ import annotations

import pytest
from tests.unit.reads.queue.queue_kit import TEXT, WIDE, batch_of, limits, stretch, tags

from millrace.reads.queue.block_compaction import Remainder, groups, is_small, is_worth_moving
from millrace.reads.queue.block_directory import Directory
from millrace.reads.queue.blocks import Block, Lsn, SegmentNumber, stamps_of, summarise

TAG = tags(0, 1)[0]


def block(lsn: int, length: int = 1000, *, binding: int = 0, wide: bool = False) -> Block:
    return Block(
        lsn=Lsn(lsn),
        segment=SegmentNumber(1),
        position=10_000 * lsn,
        length=length,
        binding=binding,
        schema=WIDE if wide else TEXT,
        rows=100,
        is_ordered=True,
        summary=summarise(stamps_of(batch_of(stretch(TAG, 1, range(1, 101))))),
    )


def grouped(
    blocks: list[Block], live_rows: dict[int, int], *, bytes_target: int = 10_000
) -> list[list[int]]:
    directory = Directory()
    for each in blocks:
        directory.add(each)
    left = [Remainder(each, live_rows[each.lsn]) for each in blocks if each.lsn in live_rows]
    return [[each.lsn for each in group] for group in groups(left, directory, bytes_target)]


def test_neighbours_become_one() -> None:
    assert grouped([block(n) for n in range(1, 5)], {1: 10, 2: 10, 3: 10, 4: 10}) == [[1, 2, 3, 4]]


def test_a_group_ends_at_the_size_of_a_block_and_no_block_is_in_two() -> None:
    blocks = [block(n) for n in range(1, 4)]
    assert grouped(blocks, {1: 100, 2: 100, 3: 100}, bytes_target=2000) == [[1, 2], [3]]


@pytest.mark.parametrize("other", [block(2, binding=1), block(2, wide=True)])
def test_blocks_of_another_binding_or_schema_stay_apart(other: Block) -> None:
    assert grouped([block(1), other], {1: 10, 2: 10}) == [[1], [2]]


def test_blocks_of_other_bindings_between_do_not_matter() -> None:
    blocks = [block(1), block(2, 9000, binding=1), block(3)]
    assert grouped(blocks, {1: 10, 3: 10}) == [[1, 3]]


def test_a_live_block_between_keeps_remainders_apart() -> None:
    assert grouped([block(1), block(2, 9000), block(3)], {1: 10, 3: 10}) == [[1], [3]]


def test_a_remainder_takes_small_blocks_before_it_along() -> None:
    small = [block(1, 3000), block(2, 200), block(3, 100)]
    # 100 bytes are left of block 4: 100 and 200 are small beside what has come together so far.
    assert grouped([*small, block(4)], {4: 10}) == [[2, 3, 4]]
    assert grouped([*small, block(4)], {4: 10}, bytes_target=300) == [[3, 4]]


def test_what_is_worth_moving_is_half_dead_and_what_is_small_is_far_below_a_block() -> None:
    assert is_worth_moving(block(1), 50)
    assert not is_worth_moving(block(1), 51)
    assert is_small(block(1, 1000), limits(block_bytes_target=4000))
    assert not is_small(block(1, 1001), limits(block_bytes_target=4000))
