"""What a writer and the owner tell each other about a transaction that the writer makes. Pure.

The writer announces its rows. The owner decides, and grants the transaction: offsets and stamps of
the rows, and the records that belong to it. The writer makes it, and says what became of it.

Invariant: a grant has a number that rises with each request of its writer. It is one of the records
of the transaction, so what was saved says whether the transaction was committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from millrace.journal.core.call_numbers import CallNumber
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.number_ranges import Int64, Span
from millrace.journal.core.row_format import Flag, ProducerId, Stamp
from millrace.journal.core.values import Appended, Commit, Lease, Published, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRows:
    """Rows for a journal that their writer will store."""

    part: Span
    """Which of the writer's parts they are, from 0 on."""
    journal: str
    id: JournalId
    """Which journal of this name is meant."""
    rows: Span
    bytes: Span
    expected: Int64 | None = None
    """The journal's end offset; anything else found is a `Conflict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedRun:
    """What a producer has written on its rows: clocks rise by one from the first."""

    producer: ProducerId
    first_clock: Clock
    flag: Flag
    """Not ACK."""

    def stamp(self, first_offset: Offset, first_clock: Clock) -> Stamp:
        """The stamp of rows of this run."""
        return Stamp(
            first_offset=first_offset,
            producer=self.producer,
            first_clock=first_clock,
            flag=self.flag,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRequest:
    """A transaction that a writer wants to make: a `Publish` with counts in place of rows."""

    parts: tuple[AnnouncedRows, ...]
    number: Span = 0
    """Above that of every earlier request of its writer."""
    commits: tuple[Commit, ...] = ()
    lease: Lease | None = None
    producer: ProducerId | None = None
    sequence: Int64 | None = None
    stamped: StampedRun | None = None
    """Of rows that bring their own stamps: one part, and no commits."""
    call: CallNumber | None = None
    """Of such rows: see `Broker.append_stamped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedBlock:
    """Messages for a topic: rows of the writer's, or rows that the owner made."""

    topic: str
    rows_before: Int64
    part: Span | None = None
    stamp: Stamp | None = None
    rows: Rows | None = None
    """An ACK, in its stored form; otherwise the rows of a part, with a stamp."""
    is_framed: bool = False
    """Whether many rows are one message."""


class WriteGrant(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A transaction as it is to be made, and the answer once it is committed."""

    blocks: tuple[GrantedBlock, ...]
    records: tuple[tuple[bytes, bytes | None], ...]
    """Key and value, for the topic of decisions."""
    groups: Mapping[str, Mapping[str, Int64]]
    """Kafka offsets of groups, by topic."""
    published: Published | None = None
    appended: Appended | None = None
    is_done: bool = False
    """Whether there is nothing left to do: it was published before."""


class GrantRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No transaction of the writer's: the rows are to be sent, or the writer is to enlist anew."""

    reason: Literal["busy", "not enlisted"]


GrantAnswer = WriteGrant | GrantRefused
