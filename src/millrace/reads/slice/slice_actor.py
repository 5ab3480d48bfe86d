"""Runs a slice: takes its messages, reads its journals, sends what its state decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from millrace.journal.broker import Broker
from millrace.journal.core.clocks import Clock, clock_at, unix_ns_of
from millrace.reads.model.session_messages import Pressure, Reported, ToSession, ToSlice
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.reads.slice.journal_fetching import fetch
from millrace.reads.slice.slice_state import SliceAction, SliceState, ToQueue


class Links(Protocol):
    """The receivers of a slice's messages. Calls must not wait for the slice itself."""

    def to_queue(self, queue: int, message: QueueRows | Flush) -> None:
        """Send to the queue of a member."""

    def to_session(self, message: ToSession) -> None:
        """Send to the session."""


@dataclass(frozen=True, slots=True)
class Replied:
    """A queue answered."""

    queue: int
    reply: RowsAccepted | Flushed


@dataclass(frozen=True, slots=True)
class JournalsMoved:
    """Journals may have more to read; None: any of them."""

    journals: tuple[int, ...] | None


Event = ToSlice | Replied | JournalsMoved


class SliceActor:
    """A slice with its inbox. One thread turns it; any thread may `tell` it something."""

    def __init__(
        self, state: SliceState, broker: Broker, links: Links, wake: Callable[[], None]
    ) -> None:
        self._state = state
        self._broker = broker
        self._links = links
        self._inbox: deque[Event] = deque()
        self._wake = wake

    def tell(self, event: Event) -> None:
        """Something happened."""
        self._inbox.append(event)
        self._wake()

    def turn(self, now_ns: int) -> bool:
        """Do all work that is ready; returns whether there may be more at once."""
        now = clock_at(now_ns)
        while self._inbox:
            self._take(self._inbox.popleft())
        self._do(self._state.step(now))
        if self._inbox:
            return True
        request = self._state.next_fetch(now)
        if request is None:
            return False
        self._state.on_fetched(fetch(self._broker, request))
        return True

    def due_ns(self) -> int | None:
        """When a row is due that waits for its delay, in nanoseconds since 1970."""
        due = self._state.next_due()
        return None if due is None else unix_ns_of(Clock(due)) + 100

    def _take(self, event: Event) -> None:
        match event:
            case Replied(queue, reply):
                self._do(self._state.on_reply(queue, reply))
            case JournalsMoved(journals):
                self._state.on_moved(journals)
            case _:
                self._state.on_message(event)

    def _do(self, actions: Iterable[SliceAction]) -> None:
        for action in actions:
            match action:
                case ToQueue(queue, message):
                    self._links.to_queue(queue, message)
                case Reported() | Pressure():
                    self._links.to_session(action)
