"""Group commits of a broker whose cluster can be lost and reached again.

Invariant: after a transaction of unknown outcome nothing is decided before that outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.errors import BrokerStopped, MillraceError
from millrace.journal.core.book import Book
from millrace.journal.group_commit import GroupCommit, _refuse, _Request


class RecoveringGroupCommit(GroupCommit):
    """Takes requests up again once `recover` has brought the book up to date."""

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

    def lose(self) -> None:
        """Decide nothing more on the book as it is."""
        self._is_lost = True

    def _settle(self, requests: list[_Request[Any]]) -> None:
        if self._is_lost:
            try:
                self.check()
                self._recover()
                self._is_lost = False
                self.ring()
            except MillraceError as error:
                if isinstance(error, BrokerStopped):
                    self.stop(str(error))
                _refuse(requests, error)
                for request in requests:
                    request.is_done = True
                return
        super()._settle(requests)
