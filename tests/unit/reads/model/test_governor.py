"""The order in which rows go, and who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.reads.model.governor import Governor

A, B, C = 11, 12, 13
FOREVER = 2**63


def add(governor: Governor, chunk: int, *rows: tuple[int, int], priority: int = 0) -> None:
    """Rows as tag and key; those of a tag together."""
    tags = np.array([tag for tag, _ in rows], np.int64)
    governor.add(priority, chunk, tags, np.array([key for _, key in rows], np.uint64))


def at_end(governor: Governor, *tags: int, priority: int = 0) -> None:
    governor.set_left(priority, np.array(tags), np.zeros(len(tags)))


def to_read(governor: Governor, count: int, now: int = FOREVER) -> list[int]:
    found = governor.candidates(count, now)
    return [] if found is None else list(found.tags.tolist())


def goes(governor: Governor, now: int = FOREVER) -> list[tuple[int, int]]:
    """Chunk and place of what goes now."""
    found = governor.next_rows(now).in_order()
    return list(zip(found.chunk.tolist(), found.row.tolist(), strict=True))


def started(*tags: int, priority: int = 0, is_delayed: bool = False) -> Governor:
    governor = Governor()
    governor.start(np.array(tags, np.int64), priority, is_delayed=is_delayed)
    return governor


def test_rows_of_several_tags_go_by_their_clocks() -> None:
    governor = started(A, B)
    add(governor, 1, (A, 10), (A, 30), (B, 20), (B, 40))
    at_end(governor, A, B)

    assert goes(governor) == [(1, 0), (1, 2), (1, 1), (1, 3)]
    assert goes(governor) == []
    assert governor.chunks() == set()


def test_a_tag_keeps_its_own_order_whatever_its_clocks_say() -> None:
    governor = started(A, B)
    add(governor, 1, (A, 30), (A, 10), (B, 20), (B, 25))
    at_end(governor, A, B)

    assert goes(governor) == [(1, 2), (1, 3), (1, 0), (1, 1)]


def test_nothing_goes_before_each_tag_was_read_once() -> None:
    governor = started(A, B)
    add(governor, 1, (A, 10))
    at_end(governor, A)
    assert goes(governor) == []

    at_end(governor, B)

    assert goes(governor) == [(1, 0)]


def test_a_tag_that_has_more_to_read_holds_later_rows_back_and_is_wanted_first() -> None:
    governor = started(A, B, C)
    add(governor, 1, (A, 10), (B, 5), (B, 30), (C, 12))
    at_end(governor, B)

    assert goes(governor) == [(1, 1), (1, 0)]
    assert to_read(governor, 5) == [A, C]
    assert to_read(governor, 1) == [A]
    add(governor, 2, (A, 11))
    at_end(governor, A)
    assert goes(governor) == [(2, 0), (1, 3)]
    at_end(governor, C)
    assert goes(governor) == [(1, 2)]


def test_of_equal_clocks_the_tag_that_was_started_first_goes_first_however_they_arrive() -> None:
    governor = started(A, B)
    add(governor, 1, (A, 10), (B, 10))
    assert goes(governor) == [(1, 0)]

    add(governor, 2, (A, 10))
    at_end(governor, A, B)

    assert goes(governor) == [(2, 0), (1, 1)]


def test_lower_priorities_wait_while_a_higher_one_has_more_to_read() -> None:
    governor = started(A)
    governor.start(B, 7, is_delayed=False)
    add(governor, 1, (A, 1))
    at_end(governor, A)
    add(governor, 2, (B, 50), priority=7)

    assert goes(governor) == [(2, 0)]
    assert goes(governor) == []
    assert to_read(governor, 5) == [B]
    at_end(governor, B, priority=7)
    assert goes(governor) == [(1, 0)]


def test_a_row_under_its_delay_waits_for_the_time() -> None:
    governor = started(A, is_delayed=True)
    add(governor, 1, (A, 100), (A, 200))
    at_end(governor, A)

    assert goes(governor, now=99) == []
    assert governor.next_due() == 100
    assert goes(governor, now=100) == [(1, 0)]
    assert governor.next_due() == 200
    assert goes(governor, now=500) == [(1, 1)]
    assert governor.next_due() is None


def test_a_row_under_its_delay_blocks_nobody() -> None:
    """Neither its own priority nor a lower one, even if its tag has more to read."""
    governor = started(A)
    governor.start(B, 0)
    governor.start(C, -1, is_delayed=False)
    add(governor, 1, (A, 10))
    add(governor, 2, (B, 100))
    add(governor, 3, (C, 20), priority=-1)
    at_end(governor, A)
    at_end(governor, C, priority=-1)

    assert goes(governor, now=50) == [(1, 0)]
    assert goes(governor, now=50) == [(3, 0)]
    assert to_read(governor, 5, 50) == []
    assert to_read(governor, 5, 100) == [B]


def test_a_row_without_a_delay_never_waits_for_the_time() -> None:
    """Its producer's clock may run ahead, or its topic give times that are to come."""
    governor = started(A)
    governor.start(B, 0)
    add(governor, 1, (A, 1_000), (A, 1_001))
    add(governor, 2, (B, 1_000))

    assert goes(governor, now=5) == [(1, 0), (1, 1)]
    assert to_read(governor, 5, 5) == [A]
    assert governor.next_due() == 1_000
    assert goes(governor, now=1_000) == [(2, 0)]


def test_a_tag_that_is_given_up_takes_its_rows_along_and_holds_nobody_back() -> None:
    governor = started(A, B)
    add(governor, 1, (A, 10), (B, 20))
    add(governor, 2, (A, 11))
    at_end(governor, B)

    governor.stop(A, 0)

    assert governor.chunks() == {1}
    assert goes(governor) == [(1, 1)]


def test_a_tag_that_is_started_again_may_bring_anything() -> None:
    governor = started(A, B)
    add(governor, 1, (A, 10), (B, 20))
    at_end(governor, A, B)
    goes(governor)
    governor.stop(A, 0)

    governor.start(A, 0, is_delayed=False)
    add(governor, 2, (B, 30))

    assert goes(governor) == []
    add(governor, 3, (A, 5))
    at_end(governor, A)
    assert goes(governor) == [(3, 0), (2, 0)]


def test_rows_of_a_tag_that_was_not_started_are_refused() -> None:
    governor = started(A)
    with pytest.raises(AssertionError, match="not started"):
        add(governor, 1, (B, 1))
