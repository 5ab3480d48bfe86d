"""How measured partitions are read: laws, and what a few sizes lead to."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.plan.planner.partition_reads import (
    ReadSide,
    RowsPart,
    TaskRead,
    TaskReadLimits,
    group_neighbours,
    plan_reads,
    reads_text,
)

SIZES = st.lists(st.integers(0, 200), min_size=1, max_size=60)
LIMITS = st.builds(
    TaskReadLimits,
    together_bytes_max=st.integers(1, 300),
    skew_bytes_min=st.integers(1, 100),
    skew_factor=st.integers(1, 5),
    split_bytes_target=st.integers(1, 100),
)


@st.composite
def sides(draw: st.DrawFn) -> list[ReadSide]:
    """Sides of equal length, made of map outputs; some may be split."""
    partitions = draw(st.integers(1, 12))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        rows = st.lists(st.integers(0, 80), min_size=partitions, max_size=partitions)
        outputs = draw(st.lists(rows, min_size=1, max_size=6))
        totals = [sum(output[p] for output in outputs) for p in range(partitions)]
        split = (lambda p, o=tuple(outputs): [one[p] for one in o]) if draw(st.booleans()) else None
        found.append(ReadSide(totals, split))
    return found


def test_sizes_10_20_30_40_with_a_limit_of_50() -> None:
    assert group_neighbours([10, 20, 30, 40], 50) == [(0, 1), (2,), (3,)]
    assert group_neighbours([40, 10, 20, 30], 50) == [(0, 1), (2, 3)]
    assert group_neighbours([0, 0, 0], 50) == [(0, 1, 2)]
    assert group_neighbours([60, 0, 60], 50) == [(0,), (1,), (2,)]


@given(SIZES, st.randoms(use_true_random=False))
def test_the_groups_are_the_same_in_any_order_of_arrival(sizes: list[int], random: Random) -> None:
    arrived = list(enumerate(sizes))
    random.shuffle(arrived)
    measured = [0] * len(sizes)
    for number, size in arrived:
        measured[number] += size

    assert group_neighbours(measured, 50) == group_neighbours(sizes, 50)


@given(SIZES, st.integers(1, 300))
def test_every_partition_is_in_one_group_none_too_large_and_no_two_neighbours_would_fit(
    sizes: list[int], limit: int
) -> None:
    groups = group_neighbours(sizes, limit)

    assert [number for group in groups for number in group] == list(range(len(sizes)))
    held = [sum(sizes[number] for number in group) for group in groups]
    assert all(size <= limit or len(group) == 1 for size, group in zip(held, groups, strict=True))
    firsts = [sizes[group[0]] for group in groups]
    assert all(one + first > limit for one, first in zip(held, firsts[1:], strict=False))


def _is_first(piece: TaskRead) -> bool:
    return piece.rows is None or piece.rows.number == 0


@given(SIZES, st.integers(1, 300), st.integers(1, 80))
def test_there_are_never_fewer_tasks_than_the_least_or_one_for_each_partition(
    sizes: list[int], together: int, least: int
) -> None:
    limits = TaskReadLimits(
        together_bytes_max=together,
        skew_bytes_min=1_000_000,
        skew_factor=5,
        split_bytes_target=1,
        tasks_min=least,
    )
    pieces = plan_reads([ReadSide(sizes)], limits)

    assert [number for piece in pieces for number in piece.partitions] == list(range(len(sizes)))
    assert len(pieces) >= min(least, len(sizes))


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.integers(1, 9),
)
def test_parts_of_rows_follow_one_another_and_are_of_one_size(sizes: list[int], parts: int) -> None:
    rows = sum(sizes)
    values = iter(range(rows))
    batches = [pa.record_batch({"n": [next(values) for _ in range(size)]}) for size in sizes]

    pieces = [
        [n for batch in RowsPart(part, parts).of(batches, rows) for n in batch["n"].to_pylist()]
        for part in range(parts)
    ]

    assert [n for piece in pieces for n in piece] == list(range(rows))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@given(sides(), LIMITS)
def test_every_partition_of_every_side_is_read_whole(
    given_sides: list[ReadSide], limits: TaskReadLimits
) -> None:
    pieces = plan_reads(given_sides, limits)

    assert pieces == plan_reads(given_sides, limits)
    numbers = list(range(len(given_sides[0].partition_bytes)))
    assert sorted({n for piece in pieces for n in piece.partitions}) == numbers
    for number in numbers:
        reading = [piece for piece in pieces if number in piece.partitions]
        if reading[0].split_side is None:
            assert len(reading) == 1
            continue
        (place,) = {piece.split_side for piece in reading}
        assert place is not None
        side = given_sides[place]
        assert side.split is not None, "only a side that may be split is"
        sizes = side.split(number)
        outputs = [n for piece in reading if _is_first(piece) for n in piece.outputs]
        assert outputs == list(range(len(sizes)))
        assert len(reading) > 1
        for piece in reading:
            share = sum(sizes[n] for n in piece.outputs) / (piece.rows.parts if piece.rows else 1)
            assert share <= limits.split_bytes_target
            if piece.rows is not None:
                of_output = [other.rows for other in reading if other.outputs == piece.outputs]
                parts = piece.rows.parts
                assert of_output == [RowsPart(part, parts) for part in range(parts)]
        assert all(piece.partitions == (number,) for piece in reading)


LIMITED = TaskReadLimits(
    together_bytes_max=10, skew_bytes_min=50, skew_factor=3, split_bytes_target=40
)


def by_output(*outputs: list[int]) -> ReadSide:
    totals = [sum(column) for column in zip(*outputs, strict=True)]
    return ReadSide(totals, lambda number: [output[number] for output in outputs])


def test_a_skewed_partition_is_read_in_parts_and_the_others_as_they_are() -> None:
    large = by_output([10, 40, 10], [10, 40, 10], [10, 40, 10])
    small = ReadSide([1, 1, 1])

    pieces = plan_reads([small, large], LIMITED)

    assert pieces == [
        TaskRead((0,)),
        TaskRead((1,), 1, (0,)),
        TaskRead((1,), 1, (1,)),
        TaskRead((1,), 1, (2,)),
        TaskRead((2,)),
    ]
    assert reads_text(pieces, 3) == ["partition 1 is skewed and read in 3 parts"]
    assert plan_reads([small, ReadSide(large.partition_bytes)], LIMITED) == [
        TaskRead((number,)) for number in range(3)
    ]


def test_a_partition_of_one_large_map_output_is_read_in_parts_of_its_rows() -> None:
    pieces = plan_reads([by_output([0, 90, 0], [0, 10, 0])], LIMITED)

    assert pieces[1:-1] == [
        *(TaskRead((1,), 0, (0,), RowsPart(part, 3)) for part in range(3)),
        TaskRead((1,), 0, (1,)),
    ]


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ([[49], [0], [0]], "it is not large"),
        ([[90, 80, 70]], "all are as large"),
    ],
)
def test_a_partition_that_is_not_skewed_stays_whole(sizes: list[list[int]], why: str) -> None:
    pieces = plan_reads([by_output(*sizes)], LIMITED)

    assert all(piece.split_side is None for piece in pieces), why


def test_small_partitions_are_told() -> None:
    pieces = plan_reads([ReadSide([3, 3, 3, 30, 2, 2])], LIMITED)

    assert [piece.partitions for piece in pieces] == [(0, 1, 2), (3,), (4, 5)]
    assert reads_text(pieces, 6) == ["5 of 6 partitions are small and read by 2 tasks"]
    assert reads_text([TaskRead((0,)), TaskRead((1,))], 2) == []
