"""Workers over a broker in this process: every row comes out once, whatever the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.pipeline.work.worker_kit import (
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


def plus_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + 1}


def test_a_cheap_step_gives_every_row_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [hop(map_step("plus", plus_one))])
    fill(bench.broker, range(10_000))

    bench.run()

    assert output(bench.broker, "plus") == [value + 1 for value in range(10_000)]


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
