"""Callers that publish in turn share transactions, and one alone waits for nobody."""

from __future__ import annotations

import threading
import time

import pytest

from millrace.journal.core.book import Book
from millrace.journal.kafka import granting_commit
from millrace.journal.kafka.granting_commit import GrantingGroupCommit

LONG_S = 60.0


class Saved:
    """What each transaction saved."""

    def __init__(self) -> None:
        self.transactions: list[set[str]] = []
        self.commit = GrantingGroupCommit(
            Book(), self._save, 2**20, afterwards=lambda: None, recover=lambda: None
        )
        self.others = threading.Event()
        """Set while the first transaction waits for another caller."""

    def _save(self, draft: Book) -> None:
        first = not self.transactions
        self.transactions.append(set(draft.counters.own))
        if first:
            self.others.set()
            until = time.monotonic() + LONG_S
            while not self.commit._waiting:
                assert time.monotonic() < until
                time.sleep(0.001)

    def ask(self, name: str) -> None:
        self.commit.run(lambda book: book.raise_count(name))


def test_a_transaction_waits_for_those_whom_the_last_one_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(granting_commit, "_GATHER_SHARE", float("inf"))
    monkeypatch.setattr(granting_commit, "_GATHER_S_MAX", LONG_S)
    saved = Saved()

    def ask_twice() -> None:
        saved.ask("a1")
        saved.ask("a2")

    first = threading.Thread(target=ask_twice)
    first.start()
    saved.others.wait(LONG_S)
    saved.ask("b1")
    first.join()

    assert saved.transactions == [{"a1"}, {"b1", "a2"}]


def test_callers_that_do_not_come_back_hold_nobody_up_for_long() -> None:
    saved = Saved()
    first = threading.Thread(target=saved.ask, args=("a1",))
    first.start()
    saved.others.wait(LONG_S)
    saved.ask("b1")
    first.join()
    saved.ask("b2")
    saved.ask("b3")

    assert saved.transactions == [{"a1"}, {"b1"}, {"b2"}, {"b3"}]
    assert saved.commit._callers == 1
