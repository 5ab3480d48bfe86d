"""Asks several hosts at once, each in a thread of its own, and no more than a few.

Invariant: answers are in the order of the hosts, and every host is asked once. When the caller is
interrupted, no further host is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from millrace.wakeup import WorkerThread

HOSTS_AT_ONCE: Final = 16
"""Silent hosts are waited for side by side, so many at a time."""
_LOOK_S: Final = 5.0

Host = TypeVar("Host")
Answer = TypeVar("Answer")


def ask_hosts(ask: Callable[[Host], Answer], hosts: Iterable[Host]) -> list[Answer]:
    """What `ask` returns for each host; the first error is raised when no call is under way."""
    listed = list(hosts)
    if len(listed) <= 1:
        return [ask(host) for host in listed]
    calls = _Calls(ask, listed)
    threads = [
        WorkerThread(calls.run, "millrace-ask") for _ in range(min(HOSTS_AT_ONCE, len(listed)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while not thread.ended.wait(_LOOK_S):
                pass
    finally:
        calls.end()
    return calls.answers()


class _Calls(Generic[Host, Answer]):
    """The calls that were begun and their outcomes."""

    def __init__(self, ask: Callable[[Host], Answer], hosts: list[Host]) -> None:
        self._ask = ask
        self._hosts = hosts
        self._lock = threading.Lock()
        self._left = iter(range(len(hosts)))
        self._answers: dict[int, Answer] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self) -> None:
        """In a thread: ask one host after the other, as long as there are any."""
        while True:
            with self._lock:
                number = next(self._left, None)
            if number is None:
                return
            try:
                self._answers[number] = self._ask(self._hosts[number])
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                self._errors[number] = error
                self.end()

    def end(self) -> None:
        """Ask no further host."""
        with self._lock:
            self._left = iter(())

    def answers(self) -> list[Answer]:
        """The answers in order, or the first error."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._answers[number] for number in range(len(self._hosts))]
