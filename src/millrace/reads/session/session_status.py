"""The status of a session, for people and for monitoring. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from millrace.reads.model.tags import binding_of
from millrace.reads.session.members_port import MemberUsage
from millrace.reads.session.session_state import SessionState

_STREAMS_MAX: Final = 256
"""Of more, the file of the status would cost time each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatus:
    """How far a journal is read for a binding.

    Example:
        >>> journal = session.status().journals[0]
        >>> journal.journal, journal.binding, journal.member
        ('shop/orders', 'orders', 0)
    """

    journal: str
    binding: str
    member: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStatus:
    """A transaction that waits for its part in a journal.

    Example:
        >>> [(wait.source, wait.target) for wait in session.status().waiting]
        []
    """

    producer: str
    clock: int
    source: str
    target: str
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStatus:
    """A transaction that is not ended, or not shown yet.

    Example:
        >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
        >>> with ws.journals.producer("shop") as shop:
        ...     done = shop.append("orders", rows)  # and not committed yet
        ...     with ws.reads(read) as session:
        ...         checkpoint = session.next_checkpoint(timeout=60)
        ...         transactions = session.status().open
        >>> [(transaction.journal, transaction.begin) for transaction in transactions]
        [('orders (orders)', 3)]
    """

    producer: str
    journal: str
    begin: int
    age_ms: int
    """Since the session saw it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """What a member has sent to another, or to its own queue: rows go to the member of their key.

    Example:
        >>> stream = session.status().streams[0]
        >>> stream.sender, stream.receiver, stream.unanswered_bytes
        (0, 0, 0)
    """

    sender: int
    receiver: int
    rows: int
    bytes: int
    unanswered_bytes: int
    """Sent, and not accepted by the receiver yet."""
    is_blocked: bool
    """Whether more rows wait until it accepts some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """A session at a moment.

    Example:
        >>> status = session.status()
        >>> status.name, status.checkpoint, status.waiting
        ('shop', 1, ())
    """

    name: str
    """Of the coordinated read."""
    checkpoint: int
    is_recovering: bool
    journals: tuple[JournalStatus, ...]
    waiting: tuple[WaitingStatus, ...]
    open: tuple[OpenStatus, ...]
    long_open: tuple[OpenStatus, ...]
    """Those of them that have been open for longer than the limit."""
    disk_bytes: tuple[int, ...]
    """Of each member."""
    streams: tuple[StreamStatus, ...]
    """Between members; of very many those with most bytes that are not accepted yet."""


class OpenSince:
    """Remembers since when transactions have been open."""

    def __init__(self) -> None:
        self._since_ms: dict[tuple[int, ...], int] = {}

    def ages_ms(self, opened: Sequence[tuple[int, ...]], now_ms: int) -> list[int]:
        """How long each of these has been open; all others are forgotten."""
        self._since_ms = {
            transaction: self._since_ms.get(transaction, now_ms) for transaction in opened
        }
        return [now_ms - self._since_ms[transaction] for transaction in opened]


def status_of(
    state: SessionState,
    since: OpenSince,
    usage: Sequence[MemberUsage],
    *,
    now_ms: int,
    open_ms_max: int,
    with_journals: bool = True,
) -> SessionStatus:
    """The status of a session; slow with very many journals."""
    journals = _journals(state) if with_journals else []
    waiting = [
        WaitingStatus(
            producer=f"{hint.producer:012x}",
            clock=hint.clock,
            source=state.journals.name_of(hint.source),
            target=state.journals.name_of(hint.target),
            age_ms=now_ms - hint.since_ms,
        )
        for hint in state.unmet()
    ]
    rows = state.frontier.opened().rows()
    opened = [
        OpenStatus(
            producer=f"{producer:012x}",
            journal=state.journals.name_of(tag),
            begin=begin,
            age_ms=age_ms,
        )
        for (tag, producer, begin), age_ms in zip(rows, since.ages_ms(rows, now_ms), strict=True)
    ]
    return SessionStatus(
        name=state.coordinated_read.name,
        checkpoint=state.whole.number,
        is_recovering=state.is_recovering,
        journals=tuple(sorted(journals, key=lambda status: (status.binding, status.journal))),
        waiting=tuple(waiting),
        open=tuple(opened),
        long_open=tuple(status for status in opened if status.age_ms > open_ms_max),
        disk_bytes=tuple(member.disk_bytes for member in usage),
        streams=_streams(usage),
    )


def _streams(usage: Sequence[MemberUsage]) -> tuple[StreamStatus, ...]:
    """The streams that had rows, by their ends."""
    used = [
        (number, queue, sent)
        for number, member in enumerate(usage)
        for queue, sent in enumerate(member.sent)
        if sent.rows
    ]
    fullest = nlargest(_STREAMS_MAX, used, lambda one: (one[2].unanswered_bytes, one[2].bytes))
    return tuple(
        StreamStatus(
            sender=number,
            receiver=queue,
            rows=sent.rows,
            bytes=sent.bytes,
            unanswered_bytes=sent.unanswered_bytes,
            is_blocked=sent.is_blocked,
        )
        for number, queue, sent in sorted(fullest, key=lambda one: one[:2])
    )


def _journals(state: SessionState) -> list[JournalStatus]:
    readers, names = state.journals.readers, state.journals.names
    read = state.frontier.read_offsets()
    offsets = dict(zip(read.tag.tolist(), read.offset.tolist(), strict=True))
    bindings = state.coordinated_read.bindings
    return [
        JournalStatus(
            journal=name,
            binding=bindings[binding_of(tag)].name,
            member=readers[tag],
            offset=offsets.get(tag, 0),
        )
        for tag, name in names.items()
    ]
