"""Hints that are not met yet."""

from __future__ import annotations

import numpy as np

from millrace.reads.model.unmet_hints import UnmetHints

NEVER = np.uint64(2**64 - 1)


def waiting() -> UnmetHints:
    """Of cohort 0: source 0 waits for 1 and 2 at clock 20; of cohort 1: source 3 for 4 at 7."""
    found = UnmetHints()
    found.add(
        cohort=np.array([0, 0]),
        clock=np.array([20, 20], np.uint64),
        source=np.array([0, 0]),
        target=np.array([1, 2]),
        now_ms=5,
    )
    found.add(
        cohort=np.array([1]),
        clock=np.array([7], np.uint64),
        source=np.array([3]),
        target=np.array([4]),
        now_ms=4,
    )
    return found


def clocks(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


def test_bounds_are_the_lowest_clocks_that_wait() -> None:
    assert waiting().bounds(3, NEVER).tolist() == [20, 7, int(NEVER)]
    assert waiting().rows() == [(3, 4, 7, 4), (0, 1, 20, 5), (0, 2, 20, 5)]


def test_what_is_met_or_moot_is_let_go() -> None:
    met = waiting()
    met.settle(clocks(0, 20, 19, 0, 7), clocks(0, 0, 0, 0, 0))
    assert met.rows() == [(0, 2, 20, 5)]

    moot = waiting()
    moot.settle(clocks(0, 0, 0, 0, 0), clocks(20, 0, 0, 6, 9))
    assert moot.rows() == [(3, 4, 7, 4)]


def test_sources_and_targets_can_be_dropped() -> None:
    targets, sources = waiting(), waiting()
    targets.drop_targets(np.array([2, 4]))
    sources.drop_sources(np.array([0]))

    assert targets.rows() == [(0, 1, 20, 5)]
    assert sources.rows() == [(3, 4, 7, 4)]
    assert len(sources) == 1
