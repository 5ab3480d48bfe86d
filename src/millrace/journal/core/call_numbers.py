"""Calls of a producer in their order: one that comes after a later one is not carried out. Pure.

A client that gets no answer asks again, and goes on with other calls once one is answered. What it
asked first may still be on its way. Rows that come late would begin a transaction that nobody ends,
and an ACK that comes late would roll back the transaction that is open by then. So each call of a
producer has a number, and an owner carries out none below one it has seen.

The numbers live as long as an owner: a call that was sent to an earlier one can save nothing. An
owner remembers so many producers, and forgets the one that was silent for longest. A call of one
that it does not remember may be a late one, if the producer was forgotten after the call was made.
That is told by a mark: how many calls the owner had decided when the caller last asked. A call
without a mark that is young enough is refused; its caller asks for the mark, and calls again.

Invariant: of one producer no call is carried out after a call with a higher number was decided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from millrace.errors import Conflict
from millrace.journal.core.number_ranges import Int64
from millrace.journal.core.row_format import ProducerId

if TYPE_CHECKING:
    from millrace.journal.core.book import Book

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedCalls:
    """How many calls an owner had decided."""

    owner: Int64
    """A random number of this owner: marks of another one say nothing."""
    decided: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNumber:
    """The place of a call among all of one producer."""

    producer: ProducerId
    life: Int64
    """The epoch of the producer's lease; 0 if it has none, and only one life."""
    number: Int64
    """Rises with each call of a life; a repeated call keeps its own."""
    mark: DecidedCalls | None = None
    """What the owner said before this call was made."""


@dataclass(frozen=True, slots=True)
class _LastCall:
    life: int
    number: int
    decided: int
    """How many calls the owner had decided with this one."""


@dataclass(slots=True)
class LatestCalls:
    """The last calls of producers that an owner has decided. Used by one thread at a time."""

    owner: int
    producers_max: int
    _latest: OrderedDict[ProducerId, _LastCall] = field(default_factory=OrderedDict)
    _decided: int = 0
    _forgotten: int = 0
    """The last call of each forgotten producer was decided with this one or before."""

    def mark(self) -> DecidedCalls:
        """What a producer adds to calls that it makes from now on."""
        return DecidedCalls(owner=self.owner, decided=self._decided)

    def check(self, call: CallNumber | None) -> None:
        """Refuse a call if a later one of its producer came before; if not, it is the last one.

        A call of a life that is over is left to its lease, which refuses it.
        """
        if call is None:
            return
        last = self._latest.get(call.producer)
        if last is None:
            self._check_young(call)
        elif call.life < last.life:
            return
        elif call.life == last.life and call.number < last.number:
            raise Conflict(
                f"call {call.number} of producer {call.producer} came after a later one, and was "
                f"not carried out\n  found: call {last.number}\n"
                "  to fix: nothing, if it was given up; else use a producer in one process alone"
            )
        self._decided += 1
        self._latest[call.producer] = _LastCall(call.life, call.number, self._decided)
        self._latest.move_to_end(call.producer)
        while len(self._latest) > self.producers_max:
            _, oldest = self._latest.popitem(last=False)
            self._forgotten = oldest.decided

    def in_order(
        self, call: CallNumber | None, decide: Callable[[Book], Answer]
    ) -> Callable[[Book], Answer]:
        """A decision that is made unless a later call of its producer came before."""

        def unless_late(book: Book) -> Answer:
            self.check(call)
            return decide(book)

        return unless_late

    def _check_young(self, call: CallNumber) -> None:
        """Refuse a call that may have been made before its producer was forgotten.

        The last call of a forgotten producer was decided with `_forgotten` or before. A call that
        comes after it, and was made before it, has a mark below that.
        """
        mark = call.mark
        is_young = mark is not None and mark.owner == self.owner and mark.decided >= self._forgotten
        if self._forgotten and not is_young:
            raise Conflict(
                f"call {call.number} of producer {call.producer} may come after a later one, and "
                f"was not carried out\n  found: a producer that was silent while "
                f"{self.producers_max:,} others wrote (journal_call_producers_max)\n"
                "  to fix: call again with a new mark, as `Producer` does"
            )
