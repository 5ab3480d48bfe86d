"""How many journals are read in one call, and how much of each."""

from __future__ import annotations

import numpy as np

from millrace.reads.model.fetch_plan import Candidates, FetchSize, fetch_size


def candidates(
    keys: list[int], *, per_key: float = 1.0, left: list[float] | None = None
) -> Candidates:
    count = len(keys)
    return Candidates(
        tags=np.arange(count),
        keys=np.array(keys, np.uint64),
        rows_per_key=np.full(count, per_key),
        rows_left=np.array(left or [np.inf] * count, np.float64),
        holding=count,
    )


def size(found: Candidates, *, is_full: bool = False) -> FetchSize:
    return fetch_size(found, rows=1_600, rows_least=10, is_full=is_full)


def test_journals_that_were_never_read_are_all_read() -> None:
    assert size(candidates([0, 0, 0, 7])) == FetchSize(4, 400)
    assert size(candidates([0] * 1_000)) == FetchSize(1_000, 10)
    assert size(candidates([0] * 1_000), is_full=True) == FetchSize(160, 10)


def test_journals_written_at_the_same_time_are_read_together() -> None:
    assert size(candidates([5 + n % 3 for n in range(100)])) == FetchSize(100, 16)


def test_journals_written_one_after_the_other_are_read_so_a_lot_of_each() -> None:
    backfill = candidates([1 + 100 * n for n in range(1_000)], left=[90.0] * 1_000)
    assert size(backfill) == FetchSize(16, 100), "sixteen whole ones"
    unknown_end = candidates([1 + 100 * n for n in range(1_000)])
    chosen = size(unknown_end)
    assert 2 <= chosen.tags <= 8
    assert chosen.rows_each * chosen.tags == 1_600


def test_a_full_buffer_is_given_what_lets_its_rows_go_and_no_more() -> None:
    assert size(candidates([100, 150, 10_000]), is_full=True) == FetchSize(2, 800)
    assert size(candidates([100, 150]), is_full=True).rows_each <= 1_600
    assert size(candidates([100, 120], per_key=0.5), is_full=True).tags >= 1
    near = candidates([100, 101, 102, 103], left=[1e9] * 4)
    assert size(near, is_full=True) == FetchSize(4, 400)
