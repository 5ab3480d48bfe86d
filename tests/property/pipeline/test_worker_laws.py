"""Whatever dies, and whenever: every row comes out once, and is paid for once but for doubts."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.property.pipeline.mortal_kit import Killed, Mortal
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    QUICK,
    Bench,
    fill,
    filter_step,
    hop,
    map_step,
    output,
    totals,
)

from millrace.journal.core.values import Publish, Published
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop


@dataclass(frozen=True)
class Plan:
    """A job and what happens to it."""

    rows: int
    partitions: int
    batch_rows: int
    modulus: int
    raising: int
    is_batch: bool
    deaths: tuple[tuple[int, bool], ...]
    loses: int
    workers: int
    is_fused: bool
    """Whether the cheap step runs in the hop of the expensive one."""
    is_far: bool
    """Whether publishing and calls take a while."""
    has_budget: bool
    concurrency: int
    is_ordered: bool


DEATHS = st.tuples(st.integers(2, 9), st.booleans())
PLANS = st.builds(
    Plan,
    rows=st.integers(8, 60),
    partitions=st.integers(1, 3),
    batch_rows=st.integers(1, 9),
    modulus=st.sampled_from([1, 1, 2, 3]),
    raising=st.sampled_from([0, 0, 5, 11]),
    is_batch=st.sampled_from([False, False, True]),
    deaths=st.lists(DEATHS, min_size=1, max_size=3).map(tuple),
    loses=st.sampled_from([0, 0, 2, 3, 5]),
    workers=st.integers(1, 2),
    is_fused=st.booleans(),
    is_far=st.sampled_from([False, False, False, True]),
    has_budget=st.booleans(),
    concurrency=st.sampled_from([1, 1, 3]),
    is_ordered=st.booleans(),
)
CALL_S, PUBLISH_S = 0.004, 0.0015


class FarBroker(MemoryBroker):
    """Publishing takes a while."""

    def publish(self, request: Publish) -> Published:
        time.sleep(PUBLISH_S)
        return super().publish(request)


class Paid:
    """The function, and a count of its calls."""

    def __init__(self, raising: int, *, is_far: bool) -> None:
        self.raising, self.is_far = raising, is_far
        self.called: Counter[int] = Counter()
        self.lock = threading.Lock()

    def pay(self, value: int) -> int:
        with self.lock:
            self.called[value] += 1
        if self.is_far:
            time.sleep(CALL_S)
        if self.raising and value % self.raising == 1 and self.called[value] == 1:
            raise ValueError("the first call raises")
        return -value

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"x": self.pay(row["x"])}

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = [self.pay(value) for value in batch["x"].to_pylist()]
        return pa.record_batch({"x": pa.array(values, pa.int64())})


def plus_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + 1}


def job(plan: Plan, paid: Paid) -> list[Hop]:
    function, kind = (paid.batch, "batch") if plan.is_batch else (paid.row, "row")
    step = map_step(
        "f",
        function,
        rows=kind,  # type: ignore[arg-type]
        expensive=True,
        batch_rows=plan.batch_rows,
        retries=plan.batch_rows + 1,
        max_calls=100_000 if plan.has_budget else None,
        concurrency=1 if plan.is_batch else plan.concurrency,
        ordered=plan.is_ordered,
    )
    plus, some = map_step("plus", plus_one, batch_rows=7), filter_step(f"x % {plan.modulus} = 0")
    if plan.is_fused:
        return [hop(plus, some, step, partitions=2)]
    return [
        hop(plus, partitions=2, feeds=["f"]),
        hop(
            some,
            step,
            inputs=[hops.output_prefix(JOB, "plus")],
            partitions=2,
            depth=2,
        ),
    ]


@given(PLANS)
@settings(max_examples=examples(80), deadline=None)
def test_every_row_comes_out_once_whatever_dies(plan: Plan) -> None:
    whole = FarBroker() if plan.is_far else MemoryBroker()
    paid = Paid(plan.raising, is_far=plan.is_far)
    fill(whole, range(plan.rows), partitions=plan.partitions)
    config = QUICK.with_options(
        job_idle_ms=1, job_linger_ms=1, job_turn_ms=60 if plan.is_far else 5
    )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), job(plan, paid), config, whole, judge=whole)
        died = 0
        for dies_at, after in plan.deaths:
            bench = bench.again().start()
            bench.broker = Mortal(whole, dies_at, after=after, loses=plan.loses)
            try:
                bench.run(workers=plan.workers)
            except Killed:
                died += 1
            bench.broker = whole
            for lease in whole.leases(hops.ROOT):
                whole.fence(lease.name)
        bench.again().run(workers=plan.workers)
    wanted = [value for value in range(1, plan.rows + 1) if value % plan.modulus == 0]
    found = totals(whole, "f")

    assert sorted(output(whole, "f")) == sorted(-value for value in wanted)
    recorded = 2 if plan.is_batch else max(plan.batch_rows, plan.concurrency + 1)
    assert found.in_doubt <= died * plan.workers * 2 * recorded
    if not plan.is_batch:
        usual = {value: 1 + (plan.raising > 0 and value % plan.raising == 1) for value in wanted}
        again = sum(count - usual[value] for value, count in paid.called.items())
        assert again <= found.in_doubt
        assert sum(paid.called.values()) <= found.calls
