"""Reads the events of a run, from its start, each event once."""

from __future__ import annotations

from typing import Final

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.pipeline.core import hops, job_events
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.owner_retries import patiently

_KINDS_READ: Final = frozenset(
    {JobEventKind.FAILED, JobEventKind.HELD, JobEventKind.SPENT, JobEventKind.DIED}
)


class RunEvents:
    """Events of one run that change the work of its workers; for one thread."""

    def __init__(self, broker: Broker, config: Config, job: str, *, run: int, offset: int) -> None:
        """Nothing of the run lies before `offset` in the job's record."""
        self._broker, self._config = broker, config
        self._journal, self._run, self._offset = hops.runs_journal(job), run, offset
        self._events: list[JobEvent] = []

    def look(self) -> list[JobEvent]:
        """Events of failed, held and spent steps of this run, and of calls that ended workers."""
        while True:
            fetched = patiently(
                lambda: self._broker.read(self._journal, self._offset), self._config
            )
            self._events += [
                event
                for event in job_events.from_rows(fetched.rows())
                if event.run == self._run and event.happened in _KINDS_READ
            ]
            if fetched.next_offset == self._offset:
                return self._events
            self._offset = int(fetched.next_offset)
