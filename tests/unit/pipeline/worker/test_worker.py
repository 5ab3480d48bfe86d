"""Workers over a broker in this process: every row comes out once, whatever the steps."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.worker.worker_kit import (
    LONG_MS,
    NUMBERS,
    QUICK,
    Bench,
    fill,
    filter_step,
    hop,
    map_step,
    output,
    source,
    totals,
)

from millrace.pipeline.core import hops
from millrace.pipeline.worker.turn import LeasedUnit


def plus_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + 1}


def test_a_cheap_step_gives_every_row_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [hop(map_step("plus", plus_one))])
    fill(bench.broker, range(10_000))

    bench.run()

    assert output(bench.broker, "plus") == [value + 1 for value in range(10_000)]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_turn_that_ends_within_rows_that_were_read_leaves_none_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)  # noqa: S311 - a seed replays it
    monkeypatch.setattr(LeasedUnit, "goes_on", lambda _: chance.random() < 0.7)
    small_reads = QUICK.with_options(job_read_ahead_bytes=400)
    step = map_step("same", same, rows="batch", batch_rows=2)
    bench = Bench(tmp_path, [hop(step)], small_reads)
    fill(bench.broker, range(300))

    bench.run()

    assert output(bench.broker, "same") == list(range(300))


def test_an_expensive_step_is_called_once_for_each_row(tmp_path: Path) -> None:
    called: list[int] = []

    def pay(row: dict[str, Any]) -> dict[str, Any]:
        called.append(row["x"])
        return {"x": -row["x"]}

    bench = Bench(tmp_path, [hop(map_step("pay", pay, expensive=True))])
    fill(bench.broker, range(100))

    bench.run()
    bench.again().run()

    assert called == list(range(100))
    assert output(bench.broker, "pay") == [-value for value in range(100)]
    assert totals(bench.broker, "pay").calls == 100


def test_filters_cheap_and_expensive_steps_flow_into_each_other(tmp_path: Path) -> None:
    called: list[int] = []

    def pay(row: dict[str, Any]) -> list[dict[str, Any]]:
        called.append(row["x"])
        return [row, row]

    first = hop(filter_step("x % 2 = 0"), map_step("plus", plus_one), partitions=2, feeds=["pay"])
    second = hop(
        filter_step("x > 100"),
        map_step("pay", pay, expensive=True, batch_rows=7),
        inputs=[hops.output_prefix("j", "plus")],
        partitions=2,
        depth=2,
    )
    bench = Bench(tmp_path, [first, second])
    fill(bench.broker, range(1000), partitions=3)

    bench.run(workers=2)

    paid = [value + 1 for value in range(1000) if value % 2 == 0 and value + 1 > 100]
    assert sorted(called) == paid
    assert sorted(output(bench.broker, "pay")) == sorted(paid * 2)
    assert source() == "jobs/j/src/out"


@pytest.mark.parametrize("is_expensive", [True, False])
def test_a_journal_that_comes_while_a_worker_runs_is_worked_on(
    tmp_path: Path, *, is_expensive: bool
) -> None:
    config = QUICK.with_options(job_turn_ms=5, job_worker_time=LONG_MS / 1000)
    step = map_step("plus", plus_one, expensive=is_expensive)
    bench = Bench(tmp_path, [hop(step)], config)
    fill(bench.broker, [1, 2])
    worker = bench.start().worker()
    thread = threading.Thread(target=worker.run)
    thread.start()

    def wait_for(*values: int) -> None:
        until = time.monotonic() + 60
        while output(bench.broker, "plus") != list(values):
            assert time.monotonic() < until, output(bench.broker, "plus")
            time.sleep(0.005)

    try:
        wait_for(2, 3)
        later = f"{source()}/1"
        bench.broker.create(later, NUMBERS)
        bench.broker.append(later, pa.table({"x": [3, 4]}, NUMBERS))
        wait_for(2, 3, 4, 5)
    finally:
        worker.stop()
        thread.join(60)
