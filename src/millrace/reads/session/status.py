"""How a session stands, for people and for monitoring. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.reads.session.state import SessionState
from millrace.reads.tags import binding_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatus:
    """How far a journal is read for a binding."""

    journal: str
    binding: str
    member: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStatus:
    """A transaction that waits for its part in a journal."""

    producer: str
    clock: int
    source: str
    target: str
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStatus:
    """A transaction that is not ended, or not shown yet."""

    producer: str
    journal: str
    begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A session at a moment."""

    task: str
    checkpoint: int
    is_recovering: bool
    journals: tuple[JournalStatus, ...]
    waiting: tuple[WaitingStatus, ...]
    open: tuple[OpenStatus, ...]
    disk_bytes: tuple[int, ...]
    """Of each member."""


def status_of(state: SessionState, disk_bytes: Sequence[int], now_ms: int) -> Status:
    """What can be said of a session."""
    readers, names = state.readers(), state.names()
    read = state.frontier.read_offsets()
    offsets = dict(zip(read.tag.tolist(), read.offset.tolist(), strict=True))
    bindings = state.task.bindings
    journals = [
        JournalStatus(
            journal=name,
            binding=bindings[binding_of(tag)].name,
            member=readers[tag],
            offset=offsets.get(tag, 0),
        )
        for tag, name in names.items()
    ]
    waiting = [
        WaitingStatus(
            producer=f"{each.producer:012x}",
            clock=each.clock,
            source=state.name_of(each.source),
            target=state.name_of(each.target),
            age_ms=now_ms - each.since_ms,
        )
        for each in state.unmet()
    ]
    opened = [
        OpenStatus(producer=f"{producer:012x}", journal=state.name_of(tag), begin=begin)
        for tag, producer, begin in state.frontier.opened().rows()
    ]
    return Status(
        task=state.task.name,
        checkpoint=state.whole.number,
        is_recovering=state.is_recovering,
        journals=tuple(sorted(journals, key=lambda each: (each.binding, each.journal))),
        waiting=tuple(waiting),
        open=tuple(opened),
        disk_bytes=tuple(disk_bytes),
    )
