"""Whatever dies between two brokers, and whenever: every row is appended once, in its order."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.property.pipeline.mortal_kit import Killed, Mortal
from tests.unit.pipeline.worker.worker_kit import (
    NUMBERS,
    QUICK,
    Bench,
    column,
    dead,
    fill,
    hop,
    map_step,
)

from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import JournalSink
from millrace.pipeline.sinks import OtherJournals

TARGET, PROGRESS = "target", "jobs/an-id/j/out/progress-0"


@dataclass(frozen=True)
class Life:
    """A process: at which publish to each broker it dies, before or after that is done."""

    at_home: int
    elsewhere: int
    after: bool
    loses: int


@dataclass(frozen=True)
class Plan:
    """A job and what happens to it."""

    rows: int
    partitions: int
    batch_rows: int
    refused: int
    lives: tuple[Life, ...]
    workers: int


NEVER = 1_000
LIVES = st.builds(
    Life,
    at_home=st.sampled_from([2, 3, 4, 5, 8, NEVER]),
    elsewhere=st.sampled_from([1, 2, 3, 5, NEVER]),
    after=st.booleans(),
    loses=st.sampled_from([0, 0, 2, 3]),
)
PLANS = st.builds(
    Plan,
    rows=st.integers(4, 40),
    partitions=st.integers(1, 3),
    batch_rows=st.integers(1, 7),
    refused=st.sampled_from([0, 2, 3, 5]),
    lives=st.lists(LIVES, min_size=1, max_size=4).map(tuple),
    workers=st.integers(1, 2),
)


def is_refused(plan: Plan, value: int) -> bool:
    return plan.refused > 0 and value % plan.refused == 1


def job(plan: Plan) -> list[Hop]:
    def refuse_some(row: dict[str, Any]) -> dict[str, Any]:
        if is_refused(plan, row["x"]):
            raise ValueError("refused")
        return row

    step = map_step("f", refuse_some, retries=0, on_error="dead_letter", batch_rows=plan.batch_rows)
    return [hop(step, sink=JournalSink(name="out", schema=NUMBERS, journal=TARGET))]


@given(PLANS)
@settings(max_examples=examples(20), deadline=None)
def test_every_row_is_appended_once_whatever_dies_between_two_brokers(plan: Plan) -> None:
    home, other = MemoryBroker(), MemoryBroker()
    fill(home, range(plan.rows), partitions=plan.partitions)
    other.create(TARGET, NUMBERS)
    config = QUICK.with_options(job_turn_ms=5, job_idle_ms=1, job_publish_bytes=1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), job(plan), config, home, judge=home)
        for life in plan.lives:
            bench = bench.again().start()
            bench.broker = Mortal(home, life.at_home, after=life.after, loses=life.loses)
            there = Mortal(other, life.elsewhere, after=life.after, loses=life.loses)
            bench.others = {"out": OtherJournals(there, PROGRESS)}
            with contextlib.suppress(Killed):
                bench.run(workers=plan.workers)
            bench.broker = home
            for lease in home.leases(hops.ROOT):
                home.fence(lease.name)
        bench.others = {"out": OtherJournals(other, PROGRESS)}
        bench.again().run(workers=plan.workers)
    wanted = [value for value in range(plan.rows) if not is_refused(plan, value)]
    appended, letters = column(other, TARGET), dead(home, "f")

    assert sorted(appended) == wanted
    for partition in range(plan.partitions):
        own = [value for value in appended if value % plan.partitions == partition]
        assert own == sorted(own), "rows of a partition keep their order"
    assert sorted(letter["row"]["x"] for letter in letters) == [
        value for value in range(plan.rows) if is_refused(plan, value)
    ]
