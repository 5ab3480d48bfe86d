"""What a worker counts of its time: busy, waiting, pushed back, inside functions and calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    LONG_MS,
    QUICK,
    Bench,
    fill,
    hop,
    map_step,
    source,
)

from millrace.metrics import counts
from millrace.metrics.counts import counted
from millrace.metrics.metric import Metric
from millrace.metrics.process_metrics import (
    BACK_PRESSURED,
    BUSY,
    CALL_SECONDS,
    IN_FUNCTION,
    RETRIES,
    WAITING,
)
from millrace.pipeline.core import hops

_SLEEP_S = 0.05


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    counts._forget()
    yield
    counts._forget()


def value(metric: Metric, *labels: str) -> float:
    found = {(s.metric, s.labels): s.value for s in counted("p")}
    return found.get((metric.name, (*labels, "p")), 0.0)


def calls(metric: Metric, *labels: str) -> int:
    found = {(s.metric, s.labels): sum(s.counts) for s in counted("p")}
    return found.get((metric.name, (*labels, "p")), 0)


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(_SLEEP_S)
    return row


class FailsOnce:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.made += 1
        if self.made == 1:
            raise ValueError("busy")
        return row


def test_a_paid_step_counts_its_calls_retries_and_time(tmp_path: Path) -> None:
    step = map_step("ask", slow, expensive=True)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(3))

    bench.run()

    assert calls(CALL_SECONDS.metric, JOB, "ask") == 3
    inside, busy = value(IN_FUNCTION.metric, JOB, "ask"), value(BUSY.metric, JOB, "ask")
    assert 3 * _SLEEP_S <= inside <= busy
    assert value(RETRIES.metric, "provider") == 0


def test_a_call_that_is_made_again_is_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [hop(map_step("ask", FailsOnce(), expensive=True, retries=2))])
    fill(bench.broker, range(2))

    bench.run()

    assert value(RETRIES.metric, "provider") == 1
    assert calls(CALL_SECONDS.metric, JOB, "ask") == 3


def test_idle_time_is_that_of_a_step_that_waits_or_is_pushed_back(tmp_path: Path) -> None:
    config = QUICK.with_options(job_backlog_rows_max=1)
    first = hop(map_step("a", dict), depth=1, feeds=("b",))
    second = hop(map_step("b", dict), inputs=(source("a"),), depth=2)
    bench = Bench(tmp_path, [first, second], config).start()
    fill(bench.broker, range(4))
    fill(bench.broker, range(2), name="a")
    # Another worker has the unit of the second step, which has too many rows.
    (info,) = bench.broker.list(source("a"))
    bench.broker.acquire(hops.unit_lease(JOB, "b", info.id), "other", lease_ms=LONG_MS)
    worker = bench.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    until = time.monotonic() + 30
    while not (value(BACK_PRESSURED.metric, JOB, "a") and value(WAITING.metric, JOB, "b")):
        assert time.monotonic() < until
        time.sleep(0.01)
    worker.stop()
    thread.join(30)

    assert value(WAITING.metric, JOB, "a") == 0
    assert value(BACK_PRESSURED.metric, JOB, "b") == 0
