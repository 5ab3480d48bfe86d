"""States read while their writer goes on, rows that are due, and rows that nobody reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pipeline.state.state_kit import (
    ORDERS,
    TOTALS,
    asked,
    bench,
    came_out,
    give,
    state_hops,
    state_rows,
    totals_step,
)
from tests.unit.pipeline.state.test_totals import SQL, orders
from tests.unit.pipeline.worker.worker_kit import JOB

from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.report.job_counts import Counting
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.restore.job_state import JobState
from millrace.pipeline.run.retention import free_read_rows
from millrace.pipeline.state.state_rows import KEPT_NUMBER, changes_of, removals_of
from millrace.pipeline.state.state_table import StateTable

TIME = pa.timestamp("us")
DUE = pa.schema([("k", pa.int64()), ("at", TIME)])


class BusyBroker(MemoryBroker):
    """Lets the writer go on at one moment of a read."""

    at: str = ""
    passed: bool = False
    then: Callable[[], object] | None = None

    def _pass(self, when: str, journal: str) -> None:
        if self.then is not None and self.at == f"{when} {journal.split('/')[-2]}":
            then, self.then = self.then, None
            then()
            self.passed = True

    def read(
        self,
        name: str,
        offset: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        isolation: Literal["committed", "raw"] = "committed",
    ) -> Fetched:
        self._pass("before", name)
        fetched = super().read(
            name, offset, rows_max=rows_max, bytes_max=bytes_max, isolation=isolation
        )
        self._pass("after", name)
        return fetched


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize(
    "moment", ["before snapshots", "after snapshots", "before state", "after state"]
)
def test_a_state_is_read_whole_while_its_writer_removes_changes(
    tmp_path: Path, moment: str, *, has_snapshot: bool
) -> None:
    broker = BusyBroker()
    made = state_hops(totals_step(ORDERS, ["user"], TOTALS), ORDERS, partitions=1)
    job = bench(tmp_path, made, broker=broker)
    job.config = job.config.with_options(job_snapshot_changes=1 if has_snapshot else 1_000_000)
    first, second = orders(300, 40), orders(300, 60, seed=2)
    give(broker, first)
    job.run()
    give(broker, second)
    later = job.again(config=job.config.with_options(job_snapshot_changes=1))
    later.start()
    state = JobState(broker, str(tmp_path), JOB, "totals")
    broker.at, broker.then = moment, later.run

    rows = {tuple(row.values()) for row in state.to_arrow().to_pylist()}

    assert broker.passed, "the writer went on meanwhile"
    either = [asked(SQL, orders=part) for part in (first, pa.concat_tables([first, second]))]
    assert rows in either


def test_rows_of_a_state_that_nobody_reads_are_removed_and_stay_counted(tmp_path: Path) -> None:
    job = bench(tmp_path, state_hops(totals_step(ORDERS, ["user"], TOTALS), ORDERS))
    give(job.broker, orders(500, 50))
    job.run()
    out = came_out(job.broker, "totals").num_rows
    part = JobPart(name="totals", kind="aggregate", prefixes=job.hops[1].inputs)
    record = JobRecord(JOB, (part,))
    history = RunHistory.open(job.broker, JOB)

    free_read_rows(history, record, run=1, everything=False)

    counting = Counting(job.broker, record)
    counting.note(history.look() or history.events)
    assert came_out(job.broker, "totals").num_rows == 0
    assert counting.count().parts["totals"].rows_out == out > 50
    assert len(state_rows(job, "totals")) == 50


@given(
    batches=st.lists(st.lists(st.integers(0, 30) | st.none(), max_size=9), min_size=1, max_size=9),
    bounds=st.lists(st.integers(0, 30), min_size=9, max_size=9),
    chance=st.integers(0, 2**32),
)
def test_rows_that_are_due_are_those_of_a_scan(
    batches: list[list[int | None]], bounds: list[int], chance: int
) -> None:
    """After any changes, with those that are due taken out or not."""
    table, rows = StateTable(DUE), dict[int, int | None]()
    choose = np.random.default_rng(chance)
    for times, bound in zip(batches, bounds, strict=False):
        count = len(times)
        stamps = pa.array(times, pa.int64()).cast(TIME)
        batch = pa.record_batch([pa.array(range(count), pa.int64()), stamps], schema=DUE)
        hashes = choose.integers(0, 5, count).astype(np.int32)
        first = table.next_number
        table.change(changes_of(batch, hashes, first, pa.nulls(count, pa.int64())))
        rows |= {first + n: time for n, time in enumerate(times)}

        found = table.due("at", pa.scalar(bound, TIME)).column(KEPT_NUMBER).to_pylist()

        assert sorted(found) == [n for n, at in rows.items() if at is not None and at <= bound]
        if found and choose.random() < 0.7:
            some = {n for n in found if choose.random() < 0.8}
            known = {
                int(number): int(h)
                for _, numbers, of_rows in table.snapshot()
                for number, h in zip(numbers, of_rows, strict=True)
            }
            gone = np.array(sorted(some), np.int64)
            removed = np.array([known[n] for n in gone], np.int32)
            table.change(removals_of(DUE, gone, removed))
            for number in some:
                del rows[number]
