"""Workers whose journals are far away: calls go on while results and intents are published."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.worker.worker_kit import (
    QUICK,
    Bench,
    fill,
    hop,
    map_step,
    output,
    totals,
)

from millrace.errors import LeaseHeld
from millrace.journal.core.values import Append, Lease, Publish, Published
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.worker.lease_keeper import Keeper
from millrace.pipeline.worker.unit_leases import JOB_TURN_MS_MAX, UnitLeases

FAR = QUICK.with_options(job_turn_ms=60_000, job_linger_ms=1)
ROWS = 6
LIMIT_S = 30
"""Reached only by a worker that waits for what it must not wait for."""


class FarBroker(MemoryBroker):
    """Notes which calls had begun when the results of a row were published."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[int] = set()
        self.published = 0
        self.calls_begun_at: dict[int, int] = {}
        self.changed = threading.Condition()

    def publish(self, request: Publish) -> Published:
        time.sleep(0.002)
        for part in request.parts:
            if isinstance(part, Append) and part.journal.startswith(hops.output_prefix("j", "pay")):
                assert isinstance(part.rows, pa.Table)
                for value in part.rows["x"].to_pylist():
                    self.calls_begun_at[-value] = max(self.begun)
        done = super().publish(request)
        with self.changed:
            self.published += 1
            self.changed.notify_all()
        return done

    def pay(self, row: dict[str, Any]) -> dict[str, Any]:
        """A call that lasts until something was published meanwhile."""
        value = row["x"]
        self.begun.add(value)
        with self.changed:
            # The results of all calls before this one.
            assert self.changed.wait_for(lambda: len(self.calls_begun_at) >= value, LIMIT_S)
        return {"x": -value}


def test_results_are_published_and_intents_recorded_while_the_next_call_is_under_way(
    tmp_path: Path,
) -> None:
    broker = FarBroker()
    fill(broker, range(ROWS))
    bench = Bench(
        tmp_path, [hop(map_step("pay", broker.pay, expensive=True, batch_rows=1))], FAR, broker
    ).start()
    broker.published = 0

    bench.run()

    assert output(broker, "pay") == [-value for value in range(ROWS)]
    # Call n + 1 was under way when the results of call n were published; the last has none behind.
    assert all(begun >= min(n + 1, ROWS - 1) for n, begun in broker.calls_begun_at.items())
    assert set(broker.calls_begun_at) == set(range(ROWS))
    assert (totals(broker, "pay").calls, totals(broker, "pay").in_doubt) == (ROWS, 0)


@pytest.mark.parametrize(("lease_s", "least_ms"), [(0.05, 10_000), (0.2, JOB_TURN_MS_MAX)])
def test_units_change_rarely_where_leases_are_far_away(lease_s: float, least_ms: int) -> None:
    class SlowLeases(MemoryBroker):
        def acquire(
            self, name: str, holder: str, *, lease_ms: int | None = None, after: int | None = None
        ) -> Lease:
            time.sleep(lease_s)
            return super().acquire(name, holder, lease_ms=lease_ms, after=after)

    broker = SlowLeases()
    leases = UnitLeases(broker, QUICK, "worker")
    keeper = Keeper(broker, QUICK, "run", 1)
    assert leases.turn_ms_min == 0

    with leases.leased("unit", [], keeper) as lease:
        assert lease is not None
        assert keeper.leases() == [lease]
        with pytest.raises(LeaseHeld):
            broker.acquire("unit", "another")
    leases.close()
    keeper.close()

    assert least_ms <= leases.turn_ms_min <= JOB_TURN_MS_MAX
    assert broker.leases() == (), "given back"
    assert broker.acquire("unit", "another").holder == "another"


def test_a_unit_without_a_free_slot_is_not_leased() -> None:
    broker = MemoryBroker()
    broker.acquire("slot/0", "another")
    leases, keeper = UnitLeases(broker, QUICK, "worker"), Keeper(broker, QUICK, "run", 1)

    with leases.leased("unit", ["slot/0"], keeper) as lease:
        assert lease is None
    with leases.leased("unit", ["slot/0", "slot/1"], keeper) as lease:
        assert lease is not None
        assert {kept.name for kept in keeper.leases()} == {"slot/1", "unit"}
    leases.close()
    keeper.close()
    assert [lease.name for lease in broker.leases()] == ["slot/0"]
