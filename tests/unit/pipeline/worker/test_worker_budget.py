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
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.define.context import Context
from millrace.pipeline.paid.call_budget import BudgetShare, Wallet
from millrace.pipeline.paid.call_records import Held, Totals
from millrace.pipeline.paid.limits_and_budget import Budget

Row = dict[str, Any]


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
    assert rows[-1]["total_calls"] == 5
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
    rows = bench.broker.read(hops.pace_journal("j", "f"), 0).rows().to_pylist()
    assert sum(row["calls"] for row in rows) >= 60
    for before, row in pairwise(rows):
        assert row["slot_us"] >= before["slot_us"] + row["calls"] * 1_000_000 // 200


class Busy(Exception):
    """As HTTP clients raise it."""

    status_code = 429


def test_a_busy_provider_costs_no_call_of_the_budget(tmp_path: Path) -> None:
    called: list[int] = []

    def pay(row: Row) -> Row:
        called.append(row["x"])
        if called.count(row["x"]) < 3:
            raise Busy
        return row

    step = map_step("f", pay, expensive=True, batch_rows=4, max_calls=8, retries=0)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(8))

    bench.run()

    assert output(bench.broker, "f") == list(range(8))
    found = totals(bench.broker, "f")
    assert (found.calls, found.refused, found.errors) == (8, 16, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_dollars_end_a_job_as_spent_and_no_further_than_what_is_under_way(
    tmp_path: Path, workers: int
) -> None:
    def pay(row: Row, context: Context) -> Row:
        context.spend(tokens_in=10, usd=0.01, model="m")
        return row

    step = map_step("f", pay, context=True, expensive=True, concurrency=4, budget=Budget(usd=0.5))
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(300), partitions=3)

    bench.run(workers=workers)

    found = totals(bench.broker, "f")
    most = 50 + workers * 4
    assert 44 <= found.calls <= most
    assert found.spend.usd == pytest.approx(0.01 * found.calls)
    assert len(output(bench.broker, "f")) == found.calls, "all that was paid for is published"
    assert {event.happened for event in happened(bench.broker)} == {JobEventKind.SPENT}
    charges = bench.broker.read(hops.charges_journal("j", "f"), 0).rows().to_pylist()
    assert sum(row["nano_usd"] for row in charges) == found.nano_usd
    assert {row["model"] for row in charges} == {"m"}


# The arithmetic.
def wallet(budget: Budget, held: Held | None = None, total: Held | None = None) -> Wallet:
    last = None if total is None else BudgetShare(at_us=0, change=Held(), total=total)
    return Wallet(budget, held or Held(), last)


def test_a_budget_of_calls_allows_what_others_have_left() -> None:
    own = wallet(Budget(calls=10), held=Held(calls=3), total=Held(calls=7))

    assert own.allows(Totals(calls=3), 0) == 3
    share = own.share(Totals(calls=5), 2, 0)
    assert share is not None
    assert (share.change.calls, share.total.calls) == (2, 9)
    own.on_published(share, share)
    assert own.allows(Totals(calls=5), 2) == 1


def test_dollars_are_reserved_as_calls_before_cost_on_average_and_settled_by_what_they_cost() -> (
    None
):
    cent = 10_000_000
    own = wallet(Budget(usd=1.0))

    spent = Totals(calls=4, nano_usd=2 * cent)
    assert own.allows(spent, 2) == 96, "a cent each: 2 cents spent, 2 calls under way"
    share = own.share(spent, 2, 0)
    assert share is not None
    assert share.change == Held(calls=4, nano_usd=4 * cent)
    own.on_published(share, share)

    done = Totals(calls=4, nano_usd=5 * cent)
    share = own.share(done, 0, 0)
    assert share is not None
    assert share.change == Held(nano_usd=cent), "they cost one cent more than was reserved"


def test_a_budget_that_is_passed_allows_nothing() -> None:
    own = wallet(Budget(tokens=100), total=Held(calls=1, tokens=120))
    assert own.allows(Totals(), 0) == 0
