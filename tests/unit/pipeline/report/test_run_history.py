"""The record of a job's runs costs what it holds, however often it is looked at."""

from __future__ import annotations

import pytest

from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.report.run_history import RunHistory

JOB = "captions"


def events_of(run: int) -> list[JobEvent]:
    kinds = (JobEventKind.STARTED, JobEventKind.ENDED)
    detail = {"state": "finished"}
    return [JobEvent(at_us=run, run=run, happened=kind, detail=detail) for kind in kinds]


@pytest.mark.parametrize("runs", [25, 100, 400])
def test_a_look_at_the_record_reads_what_came_since_however_many_runs_there_are(
    monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    broker, rows_read = MemoryBroker(), [0]
    read = broker.read

    def counted(name: str, offset: int) -> Fetched:
        fetched = read(name, offset)
        rows_read[-1] += fetched.rows().num_rows
        return fetched

    monkeypatch.setattr(broker, "read", counted)
    history = RunHistory.begin(broker, JOB)
    history.add(*(event for run in range(runs) for event in events_of(run)))
    history.look()
    rows_read.append(0)
    history.add(*events_of(runs))
    fresh = history.look()

    assert rows_read == [2 * runs, 2]
    assert len(fresh) == 2
    assert [entry.number for entry in history.runs()] == list(range(runs + 1))
