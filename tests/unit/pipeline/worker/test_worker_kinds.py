"""Workers of several kinds: each keeps to its steps, and leaves its slot when it has none to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.pipeline.worker.worker_kit import JOB, Bench, fill, hop, map_step, output

from millrace.pipeline.core import hops
from millrace.pipeline.worker.worker import Worker, WorkerOutcome


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def two_steps(folder: Path) -> Bench:
    first = hop(map_step("gpu", same, expensive=True), feeds=["cpu"])
    second = hop(
        map_step("cpu", same, expensive=True), inputs=(hops.output_prefix(JOB, "gpu"),), depth=2
    )
    bench = Bench(folder, [first, second])
    fill(bench.broker, range(20))
    return bench.start()


def work(bench: Bench, *only: str) -> WorkerOutcome:
    settings = replace(bench.settings(), only=frozenset(only), idle_ms_max=1)
    return Worker(bench.broker, bench.hops, settings).run()


def test_a_worker_keeps_to_its_steps_and_leaves_when_they_are_done(tmp_path: Path) -> None:
    bench = two_steps(tmp_path)

    nothing = work(bench, "cpu")
    first = work(bench, "gpu")

    assert (nothing.ended, nothing.turns) == ("idle", {})
    assert (first.ended, set(first.turns)) == ("idle", {"gpu"})
    assert output(bench.broker, "gpu") == list(range(20))
    assert output(bench.broker, "cpu") == []
    second = work(bench, "cpu")
    assert (second.ended, set(second.turns)) == ("idle", {"cpu"})
    assert sorted(output(bench.broker, "cpu")) == list(range(20))
