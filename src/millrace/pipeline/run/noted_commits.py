"""What workers noted of their commits to databases and topics: for the report, and not for ever."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final

import pyarrow.compute as pc

from millrace.errors import StillNeeded
from millrace.journal.broker import Broker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.sinks import noted_journal, table_record
from millrace.pipeline.sinks.table_committer import COMMITS_SHOWN_MAX

NOTES_KEPT: Final = 100_000
"""Offsets of a journal of notes that stay, at least."""
_OFFSETS_A_NOTE: Final = 3
"""A note has an offset, and its transaction may have more."""


class NotedCommits:
    """The notes of the sinks of one run."""

    def __init__(self, hops: Sequence[Hop], broker: Broker, run: int) -> None:
        """Look where the notes of this run begin."""
        self._broker, self._run = broker, run
        journals = {hop.name: noted_journal(hop) for hop in hops}
        self._begins = {
            (sink, journal): int(broker.end_offset(journal))
            for sink, journal in journals.items()
            if journal is not None
        }

    def made(self) -> list[SinkCommit]:
        """The last commits of this run, of each sink."""
        made: list[SinkCommit] = []
        for (sink, journal), begin in self._begins.items():
            made += self._of(sink, journal, begin)
        return made

    def _of(self, sink: str, journal: str, begin: int) -> Sequence[SinkCommit]:
        end = int(self._broker.end_offset(journal))
        at = max(begin, end - COMMITS_SHOWN_MAX * _OFFSETS_A_NOTE)
        last: deque[SinkCommit] = deque(maxlen=COMMITS_SHOWN_MAX)
        while at < end:
            fetched = self._broker.read(journal, at)
            rows = fetched.rows()
            own = rows.filter(pc.equal(rows["run"], self._run))
            last += table_record.commits_of(own.select(table_record.COMMITS_SCHEMA.names), sink)
            if fetched.next_offset == at:
                break
            at = int(fetched.next_offset)
        return last


def remove_old_notes(hops: Sequence[Hop], broker: Broker) -> None:
    """Remove notes that no report shows any more: a worker makes some ten a second."""
    for journal in filter(None, map(noted_journal, hops)):
        keep_from = int(broker.end_offset(journal)) - NOTES_KEPT
        if keep_from - int(broker.start_offset(journal)) >= NOTES_KEPT:
            with contextlib.suppress(StillNeeded):
                broker.truncate_before(journal, keep_from)
