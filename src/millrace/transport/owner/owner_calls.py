"""Calls to the current owner of the journals, repeated after a cut where that is safe.

Invariant: no call hangs, each has a deadline over all its tries. The deadline counts from when the
owner was first found away: a call that begins after that waits a tenth of the limit. A call that
may have been carried out, and would do more when asked twice, is not asked again: it is an
`OwnerUnreachable` that says so. Once an owner has answered, one with a lower epoch is never gone
back to.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, TypeVar

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import BrokerStopped, OwnerReplaced, OwnerUnreachable
from millrace.journal.core.values import KafkaPlace, SegmentFile
from millrace.reads.live.follow_requests import FollowRequest, FollowStarted, Message
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner.broker_calls import BrokerCall
from millrace.transport.owner.owner_links import DirectPlace, OwnerLink
from millrace.wakeup import WakeUp

_PAUSE_MS_MAX: Final = 500
LIVE_RETRY_MS_MAX: Final = 2_000
"""The longest wait before a follower that was cut off asks again."""

Answer = TypeVar("Answer")
_LATER_TRIES: Final = 10
_log: Final = logging.getLogger(__name__)
Connect = Callable[[float, int], OwnerLink]
"""Finds the owner, before a deadline, with at least this epoch; or raises `OwnerUnreachable`."""


class OwnerCaller:
    """Makes calls through a link that it keeps until it breaks. May be used by many threads."""

    def __init__(
        self,
        connect: Connect,
        config: Config,
        *,
        before: Callable[[bool], object] = lambda _writes: None,
        close: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._connect = connect
        self._before = before
        self._close = close
        self._sleep = sleep
        self._now = now
        self._epoch = 0
        self._closed = False
        self._kept: OwnerLink | None = None
        self._away_since: float | None = None
        """When the owner was found not to answer; None while it does."""
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def call(
        self,
        call: BrokerCall,
        arguments: Mapping[str, Any],
        *,
        wait_ms: int = 0,
        stop: WakeUp | None = None,
    ) -> Any:  # noqa: ANN401
        """Make a call; `wait_ms` is how long the owner is meant to wait with the answer.

        It is not tried again once `stop` is stopped.
        """
        self._before(call.rule.writes)
        return self._try(
            lambda link, left_ms: link.call(call, arguments, timeout_ms=left_ms + wait_ms),
            is_repeatable=call.rule.is_repeatable(arguments),
            doing=call.name,
            extra_ms=wait_ms,
            stop=stop,
        )

    def store(self, path: str, file: SegmentFile) -> SegmentFile:
        """Send a file to the owner. The owner removes a copy whose answer was lost, later."""
        self._before(True)  # noqa: FBT003 - whether it writes
        return self._try(
            lambda link, left_ms: link.store(path, file, timeout_ms=left_ms),
            is_repeatable=True,
            doing="store_file",
        )

    def shared_folder(self) -> str | None:
        """The adoption folder, if the owner sees files that are written there from here."""
        self._before(True)  # noqa: FBT003 - whether it writes
        return self._try(
            lambda link, _left_ms: link.shared_folder(), is_repeatable=True, doing="adoption_folder"
        )

    def direct_place(self) -> DirectPlace | KafkaPlace | None:
        """Where rows of the journals are, if this process may see them."""
        self._before(False)  # noqa: FBT003 - whether it writes
        return self._try(
            lambda link, _left_ms: link.direct_place(),
            is_repeatable=True,
            doing="direct_folder",
            is_contact=False,
        )

    def follow(self, request: FollowRequest) -> tuple[OwnerLink, FollowStarted, Generator[Message]]:
        """Open a stream of rows; return its first message and the rest, which the caller closes."""

        def begin(
            link: OwnerLink, _left_ms: int
        ) -> tuple[OwnerLink, FollowStarted, Generator[Message]]:
            stream = link.follow(request)
            opened = next(stream, None)
            if not isinstance(opened, FollowStarted):
                stream.close()
                raise CallCut("the stream ended before it began", may_be_done=False)
            return link, opened, stream

        self._before(False)  # noqa: FBT003 - whether it writes
        return self._try(begin, is_repeatable=True, doing="follow")

    def link(self) -> OwnerLink:
        """The link in use; made now if there is none."""
        self._before(False)  # noqa: FBT003 - whether it writes
        return self._linked(self._deadline())

    def close(self) -> None:
        """Make no more calls."""
        with self._lock:
            self._closed = True
            link, self._kept = self._kept, None
        if link is not None:
            link.close()
        self._close()

    def _try(
        self,
        ask: Callable[[OwnerLink, int], Answer],
        *,
        is_repeatable: bool,
        doing: str,
        extra_ms: int = 0,
        stop: WakeUp | None = None,
        is_contact: bool = True,
    ) -> Answer:
        """Ask, and ask again when cut, waiting longer each time.

        `is_contact` is whether an answer shows that the owner is there.
        """
        deadline = self._deadline() + extra_ms / 1000
        reason, may_be_done, tries = "", False, 0
        for pause in self._pauses_s():
            if self._now() + pause >= deadline:
                break
            if pause and not self._pause(pause, stop):
                break
            tries += 1
            try:
                link = self._linked(deadline)
            except OwnerUnreachable as error:
                reason = str(error)
                self._note_away()
                continue
            try:
                answer = ask(link, int((deadline - self._now()) * 1000) - extra_ms)
            except CallCut as cut:
                self._note_away()
                self.drop(link)
                reason, may_be_done = str(cut), may_be_done or cut.may_be_done
                _log.debug("%s was cut, try %s: %s", doing, tries, reason)
                if may_be_done and not is_repeatable:
                    break
            except OwnerReplaced as replaced:
                # Nothing of it was saved, so the next owner is asked.
                self._note_away()
                self.drop(link)
                reason = str(replaced)
            except BrokerStopped as stopped:
                self.drop(link)
                reason, may_be_done = str(stopped), True
                if not is_repeatable or not link.is_superseded():
                    raise
            else:
                if is_contact:
                    self._away_since = None
                return answer
        raise _unreachable(doing, reason, tries, may_be_done=may_be_done and not is_repeatable)

    def _pauses_s(self) -> Iterator[float]:
        """The waits before the tries: they double up to half a second, to find a new owner soon.

        All together are as long as if they doubled on.
        """
        yield 0.0
        pause = first = self.config.owner_backoff_ms
        left = first * (2**self.config.owner_retries_max - 1)
        while left > 0:
            now = min(pause, left, max(first, _PAUSE_MS_MAX))
            yield now / 1000
            left, pause = left - now, pause * 2

    def _note_away(self) -> None:
        if self._away_since is None:
            self._away_since = self._now()

    def _deadline(self) -> float:
        """When a call that begins now is given up: the wait for an owner is not begun anew."""
        now, limit_s = self._now(), self.config.peer_ms(ms(self.config.owner_timeout)) / 1000
        if self._away_since is None:
            return now + limit_s
        return max(self._away_since + limit_s, now + limit_s / _LATER_TRIES)

    def _linked(self, deadline: float) -> OwnerLink:
        if self._pid != os.getpid():
            # Locks and connections do not survive a fork.
            self._pid, self._lock, self._kept = os.getpid(), threading.Lock(), None
        if not self._lock.acquire(timeout=max(0.0, deadline - self._now())):
            raise OwnerUnreachable(
                "others here have been looking for it all the time\n  to fix: ask again"
            )
        try:
            if self._closed:
                raise BrokerStopped("the journals were closed\n  to fix: open the workspace again")
            kept = self._kept
            if kept is not None and kept.is_stale():
                self._kept = None
                kept.close()
            if self._kept is None:
                self._kept = self._connect(deadline, self._epoch)
                if self._epoch and self._kept.epoch > self._epoch:
                    _log.info("the owner of the journals is a new one: %s", self._kept.address)
                self._epoch = max(self._epoch, self._kept.epoch)
            return self._kept
        finally:
            self._lock.release()

    def _pause(self, pause_s: float, stop: WakeUp | None) -> bool:
        """Wait before the next try; whether there is to be one."""
        if stop is not None:
            return stop.sleep(pause_s)
        self._sleep(pause_s)
        return True

    def back_off(self, cuts: int) -> None:
        """Wait before a stream that was cut so often is opened again."""
        wait_ms = self.config.owner_backoff_ms * 2 ** min(cuts - 1, 62)
        self._sleep(min(wait_ms, LIVE_RETRY_MS_MAX) / 1000)

    def drop(self, link: OwnerLink) -> None:
        """Use a link that broke no more."""
        with self._lock:
            if self._kept is not link:
                return
            self._kept = None
        link.close()


def _unreachable(doing: str, reason: str, tries: int, *, may_be_done: bool) -> OwnerUnreachable:
    reasons = "\n    ".join(reason.splitlines()) or "no time was left"
    doubt = (
        "  the call may have been carried out: its answer is lost\n"
        "  to fix: look what is there before you ask again; with a producer and a sequence a\n"
        "  publish can be asked again by itself"
        if may_be_done
        else "  to fix: see that the owner runs and can be reached, or open the workspace where\n"
        "  its journals lie, and run this again: it goes on from where it stopped;\n"
        "  `millrace serve` is an owner that stays"
    )
    return OwnerUnreachable(
        f"the owner of the journals does not answer: {doing}\n"
        f"  found, after {tries} tries: {reasons}\n{doubt}"
    )
