"""How a thread sleeps, is woken, is stopped, and is waited for.

Invariant: a stop is never lost. `WakeUp` keeps "was rung" and "is stopped" under one lock, tests
both before it sleeps and after, and forgets a ring only in the call that returns because of it. A
plain `Event` that is cleared between the test for a stop and the sleep loses the stop: that is why
`tests/test_tidy.py` refuses `Event.clear`, and waits without a limit but for an agreed few.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from millrace.errors import Retriable
from millrace.log_lines import current_ids, take_ids

_FRAMES: Final = 4
"""How many calls of a thread that does not end are named, the last one first."""
_WAITING: Final = (threading.__file__, __file__)
"""Frames in these files only show that a thread waits."""


class WakeUp:
    """Wakes a sleeping thread. Any thread may ring it, and stop it for good.

    A ring is for one thread that sleeps here; a stop is for all of them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # Its lock may be taken twice: a signal may stop it.
        self._is_rung = False
        self._is_stopped = False
        self._also: list[WakeUp] = []

    @property
    def is_stopped(self) -> bool:
        """Whether the thread is to end."""
        return self._is_stopped

    def ring(self) -> None:
        """There is something to do: end the sleep, or the next one if the thread is awake."""
        with self._changed:
            self._is_rung = True
            self._changed.notify_all()

    def stop(self) -> None:
        """The thread is to end: end this sleep, and every later one at once."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
            also = list(self._also)
        for other in also:
            other.stop()

    @contextmanager
    def stops(self, other: WakeUp) -> Iterator[None]:
        """Within the block, a stop of this one stops the other one, too."""
        with self._changed:
            self._also.append(other)
            is_stopped = self._is_stopped
        if is_stopped:
            other.stop()
        try:
            yield
        finally:
            with self._changed:
                self._also.remove(other)

    def sleep(self, limit_s: float) -> bool:
        """Sleep until rung or stopped, at most so long; False once it is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_rung or self._is_stopped, max(0.0, limit_s))
            self._is_rung = False
            return not self._is_stopped


class WorkerThread(threading.Thread):
    """A thread that others wait for by `ended`, and that does not keep the process alive.

    `Thread.join` asks for the current thread. In a thread of Flight's that makes an entry in
    `threading.enumerate()`, which Python 3.11 keeps when that thread has ended. And up to Python
    3.12 a `join` that an exception of a signal interrupts takes the thread for ended.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work: Callable[[], object] | None = run
        self._log_ids = current_ids()
        self.ended = threading.Event()
        """Set as the last thing that it does."""

    def run(self) -> None:
        """See `Thread.run`."""
        work, self._work = self._work, None
        take_ids(self._log_ids)
        try:
            assert work is not None, "run once"
            work()
        finally:
            del work  # Its objects are freed with the thread, not with the last reference to it.
            self.ended.set()


def is_current(thread: threading.Thread) -> bool:
    """Whether the caller runs in this thread. Makes no entry, see `WorkerThread`."""
    # The number of a thread that has ended may be another one's by now.
    return thread.ident == threading.get_ident() and thread.is_alive()


def is_main() -> bool:
    """Whether the caller runs in the main thread."""
    return is_current(threading.main_thread())


def join(threads: Iterable[WorkerThread], limit_ms: int, limit: str) -> None:
    """Wait for threads that are to stop; the first that does not end is an error.

    A thread that was not started, and the caller's own, are not waited for. `limit` is the name of
    the limit in `Config`.
    """
    for thread in still_running(threads, limit_ms):
        raise Retriable(
            f"thread {thread.name} did not end in {limit_ms} ms\n  limit: {limit}\n"
            f"  found: it is at {_where(thread)}\n"
            "  to fix: see that what it waits for answers, and close again; the thread ends with "
            "the process"
        )


def still_running(threads: Iterable[WorkerThread], limit_ms: int) -> list[WorkerThread]:
    """Wait so long for all threads that are to stop; return those that did not end."""
    until = time.monotonic() + limit_ms / 1000
    running = []
    for thread in threads:
        # One that was not started, or that a fork has left behind in the parent, is not alive.
        if thread.is_alive() and not is_current(thread):
            has_ended = thread.ended.wait(max(0.0, until - time.monotonic()))
            running += [] if has_ended else [thread]
    return running


def within(work: Callable[[], object], limit_ms: int, name: str) -> bool:
    """Run a function that may hang, in a thread of this name; whether it ended in time.

    What it raised in time is raised here.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = WorkerThread(run, name)
    try:
        thread.start()
    except RuntimeError:  # The interpreter is ending and starts no more threads.
        work()
        return True
    running = still_running([thread], limit_ms)
    if errors:
        raise errors[0]
    return not running


def _where(thread: threading.Thread) -> str:
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the one way
    frames = traceback.extract_stack(frame) if frame is not None else []
    calls = [call for call in reversed(frames) if call.filename not in _WAITING]
    return " < ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls[:_FRAMES])
