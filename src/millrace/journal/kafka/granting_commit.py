"""Group commits beside transactions that writers make themselves, on a cluster that can be lost.

A transaction that was granted to a writer is decided, and not saved yet. Until its outcome is known
nothing is decided that reads or changes what it has read or changed. Everything else goes on.

Invariant: what is decided is what would be decided if all transactions were saved one after the
other. After a transaction of unknown outcome nothing is decided before that outcome is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from millrace.errors import BrokerStopped, MillraceError
from millrace.journal.core.book import MOVED, Book, TouchedKeys
from millrace.journal.core.write_grants import GrantAnswer, GrantRefused, WriteGrant
from millrace.journal.group_commit import GroupCommit, _refuse, _Request

T = TypeVar("T")
_LOOK_S: Final = 1.0
"""How often a call that waits for a writer looks whether the broker was stopped."""
_GATHER_SHARE: Final = 0.25
"""How long a transaction waits for callers of the last one, of the time that one took."""
_GATHER_S_MAX: Final = 0.05
_GATHER_LOOK_S: Final = 0.0005
BUSY: Final = GrantRefused(reason="busy")
NOT_ENLISTED: Final = GrantRefused(reason="not enlisted")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGrant:
    """A transaction that a writer makes, or has made."""

    writer: str
    number: int
    draft: Book
    touched: TouchedKeys
    answer: WriteGrant
    until: float
    """When its writer has taken too long."""
    ended: threading.Event = field(default_factory=threading.Event)


class _BlockedByGrant(Exception):
    """A decision that depends on what a writer is about to save."""

    def __init__(self, grant: OpenGrant) -> None:
        super().__init__()
        self.grant = grant


class GrantingGroupCommit(GroupCommit):
    """Grants transactions, and takes requests up again once `recover` has updated the book."""

    def __init__(
        self,
        book: Book,
        save: Callable[[Book], None],
        bytes_max: int,
        afterwards: Callable[[], None],
        recover: Callable[[], None],
        absorbed: Callable[[Book], None] = lambda _: None,
    ) -> None:
        super().__init__(book, save, bytes_max, afterwards, absorbed)
        self._recover = recover
        self._is_lost = False
        self._deciding = threading.Lock()
        """Held while something is decided, and while a grant is ended. Taken after `_turn`."""
        self._saving: list[TouchedKeys] = []
        """Of the requests that are being saved here."""
        self._wanted: dict[object, TouchedKeys] = {}
        """Of the requests that wait for grants: no later grant may pass them by."""
        self._grants: dict[str, OpenGrant] = {}
        self._callers = 0
        """How many calls the last transaction answered, and left waiting."""
        self._took_s = 0.0
        """How long it took."""

    @property
    def is_lost(self) -> bool:
        """Whether the book has to be read again first."""
        return self._is_lost

    def lose(self) -> None:
        """Decide nothing more on the book as it is."""
        self._is_lost = True

    def run(self, decide: Callable[[Book], T], *, size: int = 0, alone: bool = False) -> T:
        """See `GroupCommit.run`. Waits for the grants that the decision depends on."""
        ticket = object()
        try:
            while True:
                try:
                    checked = self._checked(decide, ticket)
                    return super().run(checked, size=size, alone=alone)
                except _BlockedByGrant as blocked:
                    blocked.grant.ended.wait(_LOOK_S)
        finally:
            with self._deciding:
                self._wanted.pop(ticket, None)

    # Grants.
    def grant(
        self,
        writer: str,
        number: int,
        decide: Callable[[Book], WriteGrant],
        until: float,
    ) -> GrantAnswer:
        """Decide a transaction that its writer makes. Asking again with the same number is fine."""
        with self._deciding:
            self.check()
            known = self._grants.get(writer)
            if known is not None:
                # Of an older one neither side knows enough: it is left to its time limit.
                return known.answer if known.number == number else NOT_ENLISTED
            if self._is_lost:
                return BUSY
            draft = self._book.draft()
            answer, error, touched = _tried(decide, draft)
            others = (*self._saving, *self._wanted.values())
            if self._blocking(touched) is not None or any(
                touched.conflicts(other) for other in others
            ):
                return BUSY  # An error may be due to what is not saved yet.
            if error is not None:
                raise error
            assert answer is not None
            if not answer.is_done:
                self._grants[writer] = OpenGrant(
                    writer=writer,
                    number=number,
                    draft=draft,
                    touched=touched,
                    answer=answer,
                    until=until,
                )
            return answer

    def settle(self, writer: str, number: int, *, is_committed: bool) -> OpenGrant | None:
        """The outcome of a grant is known; the grant, if it was open."""
        with self._deciding:
            grant = self._grants.get(writer)
            if grant is None or grant.number != number:
                return None
            self._end(grant, is_committed=is_committed)
            return grant

    def is_granted(self, writer: str) -> bool:
        """Whether a transaction of a writer is open."""
        return writer in self._grants

    def overdue(self, now: float) -> list[OpenGrant]:
        """Grants whose writers have taken too long."""
        with self._deciding:
            return [grant for grant in self._grants.values() if grant.until <= now]

    def resolve(self, writer: str, number: int, find_out: Callable[[], bool]) -> None:
        """Find the outcome of a grant out if it is open, while nothing is saved here."""
        with self._turn:
            self.check()
            grant = self._grants.get(writer)
            if self._is_lost or grant is None or grant.number != number:
                return
            try:
                is_committed = find_out()
            except BaseException as error:
                # Its writer may be fenced or not, and what it wrote may be there or not.
                self.lose()
                if isinstance(error, BrokerStopped):
                    self.stop(str(error))
                raise
            self.settle(writer, number, is_committed=is_committed)

    def _end(self, grant: OpenGrant, *, is_committed: bool) -> None:
        """Under the lock: what was granted is saved, or never will be."""
        del self._grants[grant.writer]
        draft = grant.draft
        if is_committed and not self._is_lost:
            with self.settled:
                self._book.absorb(draft)
            self._absorbed(draft)
        grant.ended.set()
        if is_committed:
            self.ring([*draft.journals.own, *([MOVED] if draft.moved() else ())])

    def _checked(self, decide: Callable[[Book], T], ticket: object) -> Callable[[Book], T]:
        """A decision that waits if it depends on a grant."""

        def checked(book: Book) -> T:
            with self._deciding:
                answer, error, touched = _tried(decide, book)
                grant = self._blocking(touched)
                if grant is not None:
                    self._wanted[ticket] = touched
                    raise _BlockedByGrant(grant)
                self._saving.append(touched)
            if error is not None:
                raise error
            return cast("T", answer)

        return checked

    def _blocking(self, touched: TouchedKeys) -> OpenGrant | None:
        """A grant on which a decision depends."""
        grants = self._grants.values()
        return next((grant for grant in grants if grant.touched.conflicts(touched)), None)

    def _take(self) -> list[_Request[Any]]:
        """See `GroupCommit`. Callers that publish in turn share transactions, which cost a lot.

        Those that were just answered get some time to ask again: else they would find a transaction
        of the one that came first, and all of them wait for two.
        """
        until = time.monotonic() + min(_GATHER_SHARE * self._took_s, _GATHER_S_MAX)
        while 1 < self._callers > len(self._waiting) and time.monotonic() < until:
            time.sleep(_GATHER_LOOK_S)
        return super()._take()

    def _settle(self, requests: list[_Request[Any]]) -> None:
        begun = time.monotonic()
        try:
            self._settle_known(requests)
        finally:
            self._took_s = time.monotonic() - begun
            self._callers = len(requests) + len(self._waiting)

    def _settle_known(self, requests: list[_Request[Any]]) -> None:
        """Find the outcome of the last transaction out first, if it is not known."""
        if self._is_lost:
            try:
                self.check()
                with self._deciding:
                    self._recover()
                    self._forget_grants()
                    self._is_lost = False
                self.ring()
            except MillraceError as error:
                if isinstance(error, BrokerStopped):
                    self.stop(str(error))
                _refuse(requests, error)
                for request in requests:
                    request.is_done = True
                return
        try:
            super()._settle(requests)
        finally:
            with self._deciding:
                self._saving.clear()

    def _forget_grants(self) -> None:
        """Their writers are fenced, and the book says what became of them."""
        grants, self._grants = self._grants, {}
        for grant in grants.values():
            grant.ended.set()


def _tried(
    decide: Callable[[Book], T], draft: Book
) -> tuple[T | None, Exception | None, TouchedKeys]:
    """Decide on a draft: the answer or the error, and what that depends on."""
    draft.note_touched()
    try:
        return decide(draft), None, draft.touched()
    except Exception as error:  # noqa: BLE001 - goes to the caller of this request alone
        return None, error, draft.touched()
