"""Ends calls to an owner that is silent for its lease, as one whose host hangs.

Invariant: a call is given up after the lease of its owner, not after its own, longer time limit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from millrace.config import Config
from millrace.errors import MillraceError
from millrace.storage.store import Store
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner.owner_life import (
    SIGNS_PER_LEASE,
    LifeWatch,
    OwnerSign,
    lease_s,
    read_sign,
)
from millrace.wakeup import WorkerThread

_UNWATCHED_S: Final = 1.0
"""How long an answer may take before the owner's signs of life are looked at."""
Answer = TypeVar("Answer")


class SilentOwner:
    """Watches the owner of a workspace while calls wait for it."""

    def __init__(self, store: Store, watch: LifeWatch, config: Config) -> None:
        self._store = store
        self._watch = watch
        self._look_s = lease_s(config) / SIGNS_PER_LEASE

    def is_watchable(self) -> bool:
        """Whether the owner gives signs of life."""
        return self._sign() is not None

    def during(self, ask: Callable[[], Answer], instance: str) -> Answer:
        """Ask the owner of this instance; `CallCut` once it is silent for its lease, or replaced.

        The call goes on in its own thread until it ends by itself.
        """
        future: Future[Answer] = Future()

        def run() -> None:
            try:
                future.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
                future.set_exception(error)

        WorkerThread(run, "millrace-call").start()
        wait_s = _UNWATCHED_S
        while True:
            try:
                return future.result(timeout=wait_s)
            except TimeoutError:
                if future.done():
                    raise
            wait_s = self._look_s
            sign = self._sign()
            if sign is None or sign.is_ended:
                continue  # It is ending, and its calls with it.
            if sign.instance != instance or self._watch.is_over(sign):
                raise CallCut("the owner gives no sign of life", may_be_done=True)

    def _sign(self) -> OwnerSign | None:
        try:
            return read_sign(self._store)
        except MillraceError:
            return None  # The store is away, for this process at least.
