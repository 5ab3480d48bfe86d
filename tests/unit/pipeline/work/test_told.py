"""What workers are told of their run: each event is read once, and none of earlier runs."""

from __future__ import annotations

from typing import Any

from tests.unit.pipeline.work.worker_kit import JOB, QUICK

from millrace.journal.memory import MemoryBroker
from millrace.journal.values import Fetched
from millrace.pipeline.core import events, hops
from millrace.pipeline.core.events import Event, Happened
from millrace.pipeline.work.told import Told

RUNS = hops.runs_journal(JOB)


class Watched(MemoryBroker):
    """Knows from where it was read, and how many rows it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, int]] = []

    def read(self, name: str, offset: int, **how: Any) -> Fetched:  # noqa: ANN401 - as it comes
        found = super().read(name, offset, **how)
        self.given.append((offset, found.rows().num_rows))
        return found

    def tell(self, run: int, *what: Happened) -> None:
        rows = [Event(at_us=1, run=run, happened=each, step="s") for each in what]
        self.append(RUNS, events.to_rows(rows))


def test_a_run_hears_of_its_own_events_and_reads_each_once() -> None:
    broker = Watched()
    broker.create(RUNS, events.SCHEMA)
    for run in range(1, 50):
        broker.tell(run, Happened.STARTED, Happened.FAILED, Happened.ENDED)
    broker.tell(50, Happened.STARTED)
    told = Told(broker, QUICK, JOB, run=50, offset=int(broker.end_offset(RUNS)))

    assert told.look() == []
    broker.tell(50, Happened.HELD)
    broker.tell(51, Happened.FAILED)
    broker.tell(50, Happened.SPENT, Happened.ENDED)
    assert [event.happened for event in told.look()] == [Happened.HELD, Happened.SPENT]
    assert [event.happened for event in told.look()] == [Happened.HELD, Happened.SPENT]

    assert min(offset for offset, _ in broker.given) == 148
    assert sum(rows for _, rows in broker.given) == 4
