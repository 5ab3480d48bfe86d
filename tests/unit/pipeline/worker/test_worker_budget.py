"""Limits on calls over all workers: how many, and how fast."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.worker.worker_kit import (
    Bench,
    fill,
    happened,
    hop,
    map_step,
    output,
    totals,
)

from millrace.pipeline.core import hops
from millrace.pipeline.core.call_budget import BudgetShare, give_back, take
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.job_model import StepOptions

Row = dict[str, Any]
SECOND = 1_000_000


class Counting:
    """Counts calls, from any thread."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.lock = threading.Lock()

    def row(self, row: Row) -> Row:
        with self.lock:
            self.called.append(row["x"])
        return row

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self.lock:
            self.called.append(batch.num_rows)
        return batch


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_calls_are_made_than_the_budget_allows_over_all_runs(
    tmp_path: Path, workers: int
) -> None:
    counting = Counting()
    step = map_step("f", counting.row, expensive=True, batch_rows=4, max_calls=21)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(60), partitions=3)

    bench.run(workers=workers)
    assert {event.happened for event in happened(bench.broker)} == {JobEventKind.SPENT}
    bench.again().run(workers=workers)

    assert len(counting.called) == len(set(counting.called)) == 21
    assert sorted(output(bench.broker, "f")) == sorted(counting.called)
    assert totals(bench.broker, "f").calls == 21
    assert totals(bench.broker, "f").in_doubt == 0


def test_a_larger_budget_lets_the_job_go_on(tmp_path: Path) -> None:
    counting = Counting()

    def job(most: int) -> list[Any]:
        return [hop(map_step("f", counting.row, expensive=True, batch_rows=4, max_calls=most))]

    bench = Bench(tmp_path, job(5))
    fill(bench.broker, range(12))
    bench.run()
    assert counting.called == [0, 1, 2, 3, 4]

    bench.again(hops=job(12)).run()

    assert counting.called == list(range(12))
    assert output(bench.broker, "f") == list(range(12))


def test_a_call_of_a_batch_is_one_of_the_budget(tmp_path: Path) -> None:
    counting = Counting()
    step = map_step("f", counting.batch, rows="batch", expensive=True, batch_rows=5, max_calls=3)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(40))

    bench.run()

    assert counting.called == [5, 5, 5]
    assert output(bench.broker, "f") == list(range(15))


def test_calls_that_are_made_again_are_taken_from_the_budget_as_well(tmp_path: Path) -> None:
    called: list[int] = []

    def fail(row: Row) -> Row:
        called.append(row["x"])
        if row["x"] == 2:
            raise ValueError("never")
        return row

    step = map_step("f", fail, expensive=True, batch_rows=4, max_calls=6, retries=100)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(4))

    bench.run()

    assert called == [0, 1, 2, 2, 2]
    assert output(bench.broker, "f") == [0, 1]
    assert [event.happened for event in happened(bench.broker)] == [JobEventKind.SPENT]
    rows = bench.broker.read(hops.budget_journal("j", "f"), 0).rows().to_pylist()
    assert rows[-1]["total"] == 5
    assert totals(bench.broker, "f").calls == 5


def test_calls_that_were_not_made_are_given_back(tmp_path: Path) -> None:
    called: list[int] = []

    def fail_once(row: Row) -> Row:
        called.append(row["x"])
        if row["x"] == 1 and called.count(1) == 1:
            raise ValueError("once")
        return row

    step = map_step("f", fail_once, expensive=True, batch_rows=4, max_calls=5, retries=0)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(4))

    bench.run()
    assert [event.happened for event in happened(bench.broker)] == [JobEventKind.FAILED]
    bench.again().run()

    assert called == [0, 1, 1, 2, 3]
    assert output(bench.broker, "f") == [0, 1, 2, 3]


def test_the_places_of_a_rate_do_not_overlap_over_workers(tmp_path: Path) -> None:
    counting = Counting()
    step = map_step("f", counting.row, expensive=True, batch_rows=4, rate=200.0)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(60), partitions=3)

    bench.run(workers=3)

    assert sorted(counting.called) == list(range(60))
    rows = bench.broker.read(hops.budget_journal("j", "f"), 0).rows().to_pylist()
    assert sum(row["calls"] for row in rows) == rows[-1]["total"] == 60
    for before, row in pairwise(rows):
        begin = row["slot_us"] - row["calls"] * SECOND // 200
        assert begin >= before["slot_us"] - 1


# The arithmetic.

FAST = StepOptions(rate=10.0)


def taken(
    last: BudgetShare | None, wanted: int, now: int, options: StepOptions = FAST
) -> BudgetShare:
    found = take(last, options, wanted, now)
    assert found is not None
    return found


def test_calls_of_a_rate_follow_each_other_at_their_distance() -> None:
    first = taken(None, 3, 0)
    second = taken(first, 2, 100_000)

    assert [first.wait_us(n, 0, 10.0) for n in range(3)] == [0, 100_000, 200_000]
    assert [second.wait_us(n, 100_000, 10.0) for n in range(2)] == [200_000, 300_000]
    assert taken(second, 1, 9 * SECOND).wait_us(0, 9 * SECOND, 10.0) == 0


def test_a_clock_that_goes_back_makes_nobody_wait_for_hours() -> None:
    ahead = taken(None, 5, 3600 * SECOND)
    behind = taken(ahead, 1, 0)

    assert behind.wait_us(0, 0, 10.0) == SECOND // 2
    assert ahead.wait_us(4, 0, 10.0) == 4 * SECOND // 10


def test_a_clock_that_jumps_ahead_takes_no_place_twice() -> None:
    first = taken(None, 10, 0)
    second = taken(first, 1, 200_000)

    assert second.first_us >= first.slot_us


def test_a_budget_gives_what_is_left_and_then_nothing() -> None:
    options = StepOptions(max_calls=5)
    first = take(None, options, 3, 0)
    second = take(first, options, 3, 0)

    assert first is not None
    assert second is not None
    assert (first.calls, second.calls, second.total) == (3, 2, 5)
    assert take(second, options, 1, 0) is None
    assert taken(give_back(second, 2, 0), 3, 0, options).calls == 2
