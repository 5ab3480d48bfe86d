"""What workers are told of their run: each event is read once, and none of earlier runs."""

from __future__ import annotations

from typing import Any

from tests.unit.pipeline.worker.worker_kit import JOB, QUICK

from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops, job_events
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.worker.run_events import RunEvents

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

    def tell(self, run: int, *what: JobEventKind) -> None:
        rows = [JobEvent(at_us=1, run=run, happened=each, step="s") for each in what]
        self.append(RUNS, job_events.to_rows(rows))


def test_a_run_hears_of_its_own_events_and_reads_each_once() -> None:
    broker = Watched()
    broker.create(RUNS, job_events.SCHEMA)
    for run in range(1, 50):
        broker.tell(run, JobEventKind.STARTED, JobEventKind.FAILED, JobEventKind.ENDED)
    broker.tell(50, JobEventKind.STARTED)
    told = RunEvents(broker, QUICK, JOB, run=50, offset=int(broker.end_offset(RUNS)))

    assert told.look() == []
    broker.tell(50, JobEventKind.HELD)
    broker.tell(51, JobEventKind.FAILED)
    broker.tell(50, JobEventKind.SPENT, JobEventKind.ENDED)
    assert [event.happened for event in told.look()] == [JobEventKind.HELD, JobEventKind.SPENT]
    assert [event.happened for event in told.look()] == [JobEventKind.HELD, JobEventKind.SPENT]

    assert min(offset for offset, _ in broker.given) == 148
    assert sum(rows for _, rows in broker.given) == 4
