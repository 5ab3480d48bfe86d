"""Reads the dead letters of a step that were not retried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millrace.errors import JournalUnknown
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.core import dead_letters, hops


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLetter:
    """A dead letter that was not retried."""

    offset: int
    """Its place in the journal of dead letters."""
    kind: str
    """The class of the error."""
    stored: dict[str, Any]
    """Its row in that journal."""


def open_letters(broker: Broker, job: str, step: str) -> Iterator[OpenLetter]:
    """The dead letters of a step that were not retried, oldest first."""
    gone = retried_letters(broker, job, step)
    for row in _rows(broker, hops.dead_letters(job, step)):
        offset = row.pop(OFFSET)
        if offset not in gone:
            kind = dead_letters.kind_of(row["error"])
            yield OpenLetter(offset=offset, kind=kind, stored=row)


def retried_letters(broker: Broker, job: str, step: str) -> set[int]:
    """The offsets of the dead letters of a step that were retried."""
    return {row["letter"] for row in _rows(broker, hops.retries_journal(job, step))}


def _rows(broker: Broker, journal: str) -> Iterator[dict[str, Any]]:
    """The rows of a journal with their offsets; none if there is no such journal."""
    try:
        offset = int(broker.start_offset(journal))
    except JournalUnknown:
        return
    while True:
        fetched = broker.read(journal, offset)
        if fetched.num_rows:
            rows = fetched.stored()
            yield from rows.to_pylist()
        if fetched.next_offset == offset:
            return
        offset = int(fetched.next_offset)
