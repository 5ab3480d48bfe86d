"""Workers that come back from the dead, answers that are lost, and runs that are over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    QUICK,
    Bench,
    fill,
    hop,
    map_step,
    output,
    totals,
)

from millrace.errors import AgentUnreachable
from millrace.journal.broker import Broker
from millrace.journal.core.values import Publish, Published
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop

Row = dict[str, Any]


@dataclass(slots=True)
class Door:
    """A function that stands still in its first call for a row until it is let through."""

    value: int
    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)
    called: list[int] = field(default_factory=list)

    def __call__(self, row: Row) -> Row:
        self.called.append(row["x"])
        if row["x"] == self.value and not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(60)
        return {"x": -row["x"]}


def paying(door: Door, **options: Any) -> list[Hop]:  # noqa: ANN401 - of any option
    return [hop(map_step("f", door, expensive=True, batch_rows=4, **options))]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def unit_lease(broker: Broker) -> str:
    return hops.unit_lease(JOB, "f", broker.get("jobs/j/src/out/0").id)


def test_a_zombie_that_wakes_after_its_lease_was_taken_changes_nothing(tmp_path: Path) -> None:
    door = Door(6)
    bench = Bench(tmp_path, paying(door))
    fill(bench.broker, range(20))
    bench.start()
    zombie = bench.worker("zombie")
    thread, found = in_thread(zombie.run)
    assert door.reached.wait(60)

    bench.broker.fence(unit_lease(bench.broker))
    bench.run()
    assert output(bench.broker, "f") == [-value for value in range(20)]
    door.open.set()
    zombie.stop()
    thread.join(60)

    assert output(bench.broker, "f") == [-value for value in range(20)]
    assert found[0].ended == "stopped"
    again = {value for value in set(door.called) if door.called.count(value) > 1}
    assert {6} <= again <= {3, 4, 5, 6}, "what was under way or not published"
    assert len(again) <= totals(bench.broker, "f").in_doubt <= 4


def test_a_second_copy_of_a_worker_fences_the_first(tmp_path: Path) -> None:
    door = Door(6)
    bench = Bench(tmp_path, paying(door))
    fill(bench.broker, range(20))
    bench.start()
    first = bench.worker("same")
    thread, _ = in_thread(first.run)
    assert door.reached.wait(60)

    bench.broker.acquire(unit_lease(bench.broker), "same")
    door.open.set()
    first.stop()
    thread.join(60)
    before = output(bench.broker, "f")
    assert before == [-value for value in range(len(before))]
    assert len(before) <= 6
    bench.broker.fence(unit_lease(bench.broker))
    bench.run()

    assert output(bench.broker, "f") == [-value for value in range(20)]


def test_a_worker_ends_when_another_run_of_the_job_begins(tmp_path: Path) -> None:
    door = Door(6)
    config = QUICK.with_options(job_run_lease=0.05)
    bench = Bench(tmp_path, paying(door), config)
    fill(bench.broker, range(20))
    worker = bench.start().worker()
    thread, found = in_thread(worker.run)
    assert door.reached.wait(60)

    bench.broker.fence(hops.run_lease(JOB))
    while not thread.is_alive() or not _has_seen(worker):
        threading.Event().wait(0.001)
    door.open.set()
    thread.join(60)

    assert found[0].ended == "run over"
    assert output(bench.broker, "f") == [-value for value in range(7)]
    assert door.called == list(range(7))
    assert totals(bench.broker, "f").calls == 7
    bench.again().run()
    assert output(bench.broker, "f") == [-value for value in range(20)]
    assert totals(bench.broker, "f").in_doubt == 0


def _has_seen(worker: Any) -> bool:  # noqa: ANN401 - a worker, from inside
    return bool(worker.keeper is not None and worker.keeper.run_is_over.is_set())


def test_a_worker_that_is_stopped_publishes_what_it_has_and_leaves_nothing_in_doubt(
    tmp_path: Path,
) -> None:
    door = Door(6)
    bench = Bench(tmp_path, paying(door))
    fill(bench.broker, range(20))
    worker = bench.start().worker()
    thread, found = in_thread(worker.run)
    assert door.reached.wait(60)

    worker.stop()
    door.open.set()
    thread.join(60)

    assert found[0].ended == "stopped"
    assert output(bench.broker, "f") == [-value for value in range(7)]
    assert bench.broker.committed("jobs/j/f", "jobs/j/src/out/0") == 7
    assert bench.broker.leases("jobs/j/f") == ()
    bench.run()
    assert door.called == list(range(20))
    assert (totals(bench.broker, "f").calls, totals(bench.broker, "f").in_doubt) == (20, 0)


class Unreliable:
    """A broker that loses every so many answers, before or after it has done what was asked."""

    def __init__(self, broker: Broker, every: int, *, after: bool) -> None:
        self.broker, self.every, self.after = broker, every, after
        self.asked, self.lost = 0, 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the broker
        return getattr(self.broker, name)

    def transaction(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as it is
        made = self.broker.transaction(*args, **more)
        made._broker = self
        return made

    def publish(self, request: Publish) -> Published:
        self.asked += 1
        loses = self.asked % self.every == 0
        if loses and not self.after:
            self.lost += 1
            raise AgentUnreachable("lost on the way there")
        done = self.broker.publish(request)
        if loses:
            self.lost += 1
            raise AgentUnreachable("lost on the way back")
        return done


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("every", [2, 3, 5])
def test_lost_answers_neither_lose_nor_double_anything(
    tmp_path: Path, every: int, *, after: bool
) -> None:
    called: list[int] = []

    def pay(row: Row) -> Row:
        called.append(row["x"])
        if row["x"] % 10 == 3 and called.count(row["x"]) == 1:
            raise ValueError("again")
        return {"x": -row["x"]}

    line = [
        hop(map_step("plus", lambda row: {"x": row["x"] + 1}), feeds=["f"]),
        hop(
            map_step("f", pay, expensive=True, batch_rows=3, max_calls=1000),
            inputs=[hops.output_prefix(JOB, "plus")],
            depth=2,
        ),
    ]
    bench = Bench(tmp_path, line)
    fill(bench.broker, range(30))
    bench.start()
    whole = bench.broker
    bench.broker = broker = Unreliable(whole, every, after=after)

    bench.run()

    assert output(whole, "f") == [-value for value in range(1, 31)]
    assert sorted(called) == sorted([*range(1, 31), 3, 13, 23])
    found = totals(whole, "f")
    assert (found.calls, found.errors, found.in_doubt) == (33, 3, 0)
    assert broker.lost > 2


def test_an_owner_that_cannot_be_reached_any_more_ends_the_worker(tmp_path: Path) -> None:
    bench = Bench(tmp_path, paying(Door(-1)), QUICK.with_options(job_lease=0.1))
    fill(bench.broker, range(4))
    bench.start()
    bench.broker = Unreliable(bench.broker, 1, after=False)

    with pytest.raises(AgentUnreachable):
        bench.worker().run()
