"""Group commit: concurrent requests share one commit. The thread with the lock saves for all.

Invariant: a request is answered after it was saved, or refused with the reason. A change that could
not be saved is not in the book.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from millrace.errors import BrokerStopped, MillraceError, Retriable
from millrace.journal.core.book import MOVED, Book
from millrace.metrics.process_metrics import COMMIT_REQUESTS, COMMIT_SECONDS
from millrace.wakeup import WakeUp

T = TypeVar("T")
_FAR_S: Final = 0.02
"""A save that takes as long as this is worth waiting for others to join it."""
_GATHER_SHARE: Final = 1 / 16
"""How long the first request of a save waits for others, of the time that the last save took."""
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Request(Generic[T]):
    decide: Callable[[Book], T]
    bytes: int
    is_alone: bool
    result: T | None = None
    error: BaseException | None = None
    is_done: bool = False


class GroupCommit:
    """Decides requests on drafts of a book and saves them, many at a time."""

    def __init__(
        self,
        book: Book,
        save: Callable[[Book], None],
        bytes_max: int,
        afterwards: Callable[[], None],
        absorbed: Callable[[Book], None] = lambda _: None,
        *,
        gather_ms_max: int = 0,
    ) -> None:
        """`save` makes a draft durable or raises; `BrokerStopped` from it is for good.

        `absorbed` gets a draft that the book has absorbed, before waiting threads are woken.
        `afterwards` runs after that. A request waits for others for `gather_ms_max` at most.
        """
        self._book = book
        self._save = save
        self._bytes_max = bytes_max
        self._afterwards = afterwards
        self._absorbed = absorbed
        self._gather_s_max = gather_ms_max / 1000
        self._waiting: deque[_Request[Any]] = deque()
        self._turn = threading.Lock()
        self._bells: dict[str | None, set[WakeUp]] = {}
        self._ringing = threading.Lock()
        self._save_s = 0.0
        """How long the last save took."""
        self._stopped: str | None = None
        self._stopped_as: type[BrokerStopped] = BrokerStopped
        self.settled = threading.Lock()
        """Locked while the book absorbs a draft, and by readers of several tables."""

    def run(self, decide: Callable[[Book], T], *, size: int = 0, alone: bool = False) -> T:
        """Decide, save, and return the answer; concurrent calls are saved together.

        `alone` is for what looks at stored rows: nothing else is in its draft.
        """
        request = _Request(decide=decide, bytes=size, is_alone=alone)
        is_first = not self._turn.locked()
        self._waiting.append(request)
        with self._turn:
            if is_first and not request.is_done:
                self._gather()
            while not request.is_done:
                self._settle(self._take())
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]

    def pause(self, work: Callable[[], T]) -> T:
        """Run something while no request is decided or saved."""
        with self._turn:
            self.check()
            return work()

    def wait(
        self,
        until: Callable[[], bool],
        timeout_s: float,
        about: Iterable[str] | None = None,
        stop: WakeUp | None = None,
    ) -> bool:
        """Wait until something saved makes this true; whether it is.

        `about` names the journals and counters it depends on: others wake no thread. `stop`
        ends the wait when it is stopped.
        """
        bell, end = WakeUp(), time.monotonic() + timeout_s
        with self._rung(bell, [None] if about is None else list(about)), _stopped_by(stop, bell):
            while self._stopped is None and not until():
                left_s = end - time.monotonic()
                if left_s <= 0 or not bell.sleep(left_s):
                    break
        return until()

    @contextmanager
    def _rung(self, bell: WakeUp, topics: list[str | None]) -> Iterator[None]:
        """Have a bell rung for these within the block."""
        with self._ringing:
            for topic in topics:
                self._bells.setdefault(topic, set()).add(bell)
        try:
            yield
        finally:
            with self._ringing:
                for topic in topics:
                    self._bells[topic].discard(bell)
                    if not self._bells[topic]:
                        del self._bells[topic]

    def ring(self, about: Iterable[str] | None = None) -> None:
        """Wake the threads that wait for these journals and counters; by default, all."""
        with self._ringing:
            if not self._bells:
                return
            topics = list(self._bells) if about is None else {None, *about}
            bells = {bell for topic in topics for bell in self._bells.get(topic, ())}
        for bell in bells:
            bell.ring()

    def stop(self, why: str, kind: type[BrokerStopped] = BrokerStopped) -> None:
        """Save nothing from now on; later calls are refused with this kind of error."""
        if self._stopped is None:
            self._stopped_as, self._stopped = kind, why
        self.ring()

    def check(self) -> None:
        """Refuse if saving has stopped."""
        if self._stopped is not None:
            raise self._stopped_as(self._stopped)

    def _gather(self) -> None:
        """Wait for requests that are made at the same moment: far away each save takes long.

        Those that come while a save is under way are saved together anyway.
        """
        if self._save_s >= _FAR_S:
            time.sleep(min(self._gather_s_max, _GATHER_SHARE * self._save_s))

    def _take(self) -> list[_Request[Any]]:
        """The requests that wait, oldest first, up to the size of one commit."""
        requests = [self._waiting.popleft()]
        size = requests[0].bytes
        while self._waiting and not requests[0].is_alone and not self._waiting[0].is_alone:
            size += self._waiting[0].bytes
            if size > self._bytes_max:
                break
            requests.append(self._waiting.popleft())
        return requests

    def _settle(self, requests: list[_Request[Any]]) -> None:
        draft = self._book.draft()
        is_saving = False
        try:
            self.check()
            for request in requests:
                _decide(request, draft)
            if draft.is_changed():
                is_saving, begun = True, time.monotonic()
                self._save(draft)
                self._save_s = time.monotonic() - begun
                COMMIT_SECONDS.note(self._save_s)
                COMMIT_REQUESTS.add(len(requests))
                with self.settled:
                    self._book.absorb(draft)
                    is_saving = False
                    self._absorbed(draft)
        except MillraceError as error:
            if isinstance(error, BrokerStopped):
                self.stop(str(error), type(error))
            _refuse(requests, error)
        except BaseException as error:
            why = f"a commit was interrupted: {error!r}\n  to fix: "
            if is_saving:
                # What of it was saved is not known here, so nothing more may be.
                self.stop(why + "open the broker again")
                _refuse(requests, BrokerStopped(why + "open the broker again"))
            else:
                _refuse(requests, Retriable(why + "ask again"))
            raise
        finally:
            for request in requests:
                request.is_done = True
        self.ring([*draft.journals.own, *draft.counters.own, *([MOVED] if draft.moved() else ())])
        try:
            self._afterwards()
        except BrokerStopped as error:
            self.stop(str(error), type(error))
        except MillraceError as error:
            # The requests were saved or refused before; their callers hear of that.
            _log.warning("what is due after a commit could not be done: %s", error)


def _stopped_by(stop: WakeUp | None, bell: WakeUp) -> AbstractContextManager[None]:
    return nullcontext() if stop is None else stop.stops(bell)


def _decide(request: _Request[Any], draft: Book) -> None:
    trial = draft.draft()
    try:
        request.result = request.decide(trial)
    except Exception as error:  # noqa: BLE001 - goes to the caller of this request alone
        request.error = error
    else:
        draft.absorb(trial)


def _refuse(requests: list[_Request[Any]], error: MillraceError) -> None:
    """Give each request that has no error of its own a copy of this one."""
    for request in requests:
        if request.error is None:
            request.error = type(error)(str(error))
            request.error.__cause__ = error.__cause__
