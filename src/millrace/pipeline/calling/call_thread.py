"""Makes a call in a thread of its own, so that a call that never returns can be left behind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from millrace.errors import MillraceError

Work = Callable[[], Any]


class CallTimedOut(MillraceError):
    """A call did not return in time."""


_LEFT_BEHIND: list[threading.Thread] = []


def stuck_calls() -> int:
    """How many calls of this process never returned so far."""
    _LEFT_BEHIND[:] = [thread for thread in _LEFT_BEHIND if thread.is_alive()]
    return len(_LEFT_BEHIND)


class CallThread:
    """A thread for calls; a new thread replaces one that is stuck."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work | None] | None = None
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, work: Work, timeout_s: float) -> Any:  # noqa: ANN401 - the user's result
        """Return the result, or raise the call's exception; `CallTimedOut` if it takes too long."""
        if self._work is None:
            self._start()
        assert self._work is not None
        self._work.put(work)
        try:
            result, error = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self._leave()
            raise CallTimedOut(
                f"the call did not return within {timeout_s:g} s\n"
                "  to fix: raise timeout, or give the function a time limit of its own"
            ) from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the thread, if it is not in a call."""
        if self._work is not None:
            self._work.put(None)
            self._work = None

    def _start(self) -> None:
        self._work, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._work, self._answers), name="millrace-call", daemon=True
        )
        self._thread.start()

    def _leave(self) -> None:
        assert self._thread is not None
        _LEFT_BEHIND.append(self._thread)
        self.close()


def _serve(
    work: queue.SimpleQueue[Work | None],
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]],
) -> None:
    while (call := work.get()) is not None:
        answer: tuple[Any, BaseException | None]
        try:
            answer = (call(), None)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            answer = (None, error)
        answers.put(answer)
        del call, answer
