"""Calls of a producer in their order: one that comes after a later one is not carried out. Pure.

A client that gets no answer asks again, and goes on with other calls once one is answered. What it
asked first may still be on its way. Rows that come late would begin a transaction that nobody ends,
and an ACK that comes late would roll back the transaction that is open by then. So each call of a
producer has a number, and an owner carries out none below one it has seen.

The numbers live as long as an owner: a call that was sent to an earlier one can save nothing.

Invariant: of one producer no call is carried out after a call with a higher number was decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from millrace.errors import Conflict
from millrace.journal.core.book import Book
from millrace.journal.core.number_ranges import Int64
from millrace.journal.core.row_format import ProducerId

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNumber:
    """The place of a call among all of one producer."""

    producer: ProducerId
    life: Int64
    """The epoch of the producer's lease; 0 if it has none, and only one life."""
    number: Int64
    """Rises with each call of a life; a repeated call keeps its own."""


@dataclass(slots=True)
class LatestCalls:
    """The last call of each producer that an owner has decided. Used by one thread at a time."""

    _latest: dict[ProducerId, tuple[int, int]] = field(default_factory=dict)

    def check(self, call: CallNumber | None) -> None:
        """Refuse a call if a later one of its producer came before; if not, it is the last one.

        A call of a life that is over is left to its lease, which refuses it.
        """
        if call is None:
            return
        life, number = self._latest.get(call.producer, (call.life, call.number))
        if call.life < life:
            return
        if call.life == life and call.number < number:
            raise Conflict(
                f"call {call.number} of producer {call.producer} came after a later one, and was "
                f"not carried out\n  found: call {number}\n"
                "  to fix: nothing, if it was given up; else use a producer in one process alone"
            )
        self._latest[call.producer] = (call.life, call.number)

    def in_order(
        self, call: CallNumber | None, decide: Callable[[Book], Answer]
    ) -> Callable[[Book], Answer]:
        """A decision that is made unless a later call of its producer came before."""

        def unless_late(book: Book) -> Answer:
            self.check(call)
            return decide(book)

        return unless_late
