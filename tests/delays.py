"""Delays threads at random where they take locks, wait, wake each other and stop each other.

`Delays(seed)` makes every operation on locks, conditions, events, queues and threads pause now and
then, before it and after it. The seed draws a few kinds of operation that are slow; the others
pause seldom. That opens windows that even delays do not. The pauses of a thread are a sequence of
its own, given by the seed and its name.

`finished` runs something and fails with the stacks of all threads if it does not end.
"""

# ruff: noqa: ANN401, S311, BLE001 - it stands in for anything, and tells what goes wrong

from __future__ import annotations

import contextlib
import faulthandler
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Self

from millrace.wakeup import WakeUp, WorkerThread

HANG_S = 120.0
"""A loaded machine is slow; nothing here takes a tenth of this."""
_SLOW_KINDS = (1, 2, 4)
_SLOW_SHARES = (0.2, 0.6)
_SLOW_S = (0.002, 0.01, 0.02)
_SHARE, _LONGEST_S = 0.02, 0.001
_PATCHED: dict[type, tuple[str, ...]] = {
    threading.Event: ("set", "clear", "wait", "is_set"),
    threading.Condition: ("__enter__", "__exit__", "wait", "notify"),
    threading.Thread: ("start", "run"),
    WorkerThread: ("run",),
    WakeUp: ("ring", "stop", "sleep"),
}


class Hung(AssertionError):
    """Something did not end; the text has the stacks of all threads."""


class Delays:
    """Delays every thread of the process while its block lasts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0
        """How many pauses were made."""
        chosen = random.Random(f"delays {seed}")
        kinds = [f"{kind.__name__}.{name}" for kind, names in _PATCHED.items() for name in names]
        kinds += ["lock.acquire", "lock.release", "queue.put", "queue.get", "WakeUp.is_stopped"]
        slow = chosen.sample(kinds, chosen.choice(_SLOW_KINDS))
        how = (chosen.choice(_SLOW_SHARES), chosen.choice(_SLOW_S))
        self._pace = {kind: how if kind in slow else (_SHARE, _LONGEST_S) for kind in kinds}
        self._switch_s = chosen.choice((1e-5, 1e-4, 5e-3))
        self._pauses = threading.local()
        self._undo = contextlib.ExitStack()

    def pause(self, kind: str) -> None:
        """Maybe sleep."""
        mine: random.Random | None = getattr(self._pauses, "random", None)
        if mine is None:
            # `current_thread` would make an entry for threads of Flight's.
            known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
            name = "of a library" if known is None else known.name
            mine = self._pauses.random = random.Random(f"{self.seed} {name}")
        share, longest_s = self._pace[kind]
        if mine.random() < share:
            self.count += 1
            time.sleep(mine.random() * longest_s)

    def __enter__(self) -> Self:
        for kind, names in _PATCHED.items():
            for name in names:
                self._patch(kind, name, self._delayed(getattr(kind, name), kind, name))
        self._patch(WakeUp, "is_stopped", property(self._is_stopped))
        self._patch(threading, "Lock", lambda made=threading.Lock: _Lock(made(), self))
        self._patch(threading, "RLock", lambda made=threading.RLock: _Lock(made(), self))
        self._patch(queue, "SimpleQueue", lambda made=queue.SimpleQueue: _Queue(made(), self))
        self._undo.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(self._switch_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, value)

    def _delayed(self, method: Callable[..., Any], kind: type, name: str) -> Callable[..., Any]:
        of = f"{kind.__name__}.{name}"

        @wraps(method)
        def delayed(*args: Any, **named: Any) -> Any:
            self.pause(of)
            found = method(*args, **named)
            self.pause(of)
            return found

        return delayed

    def _is_stopped(self, wake: WakeUp) -> bool:
        self.pause("WakeUp.is_stopped")
        found = wake._is_stopped
        self.pause("WakeUp.is_stopped")
        return found


class _Lock:
    """A lock, or one that its holder may take again, with pauses."""

    def __init__(self, inner: Any, delays: Delays) -> None:
        self._inner, self._delays = inner, delays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def acquire(self, *args: Any, **named: Any) -> bool:
        self._delays.pause("lock.acquire")
        found: bool = self._inner.acquire(*args, **named)
        self._delays.pause("lock.acquire")
        return found

    def release(self) -> None:
        self._delays.pause("lock.release")
        self._inner.release()
        self._delays.pause("lock.release")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class _Queue:
    """A queue with pauses."""

    def __init__(self, inner: Any, delays: Delays) -> None:
        self._inner, self._delays = inner, delays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, *args: Any, **named: Any) -> None:
        self._delays.pause("queue.put")
        self._inner.put(*args, **named)

    def get(self, *args: Any, **named: Any) -> Any:
        self._delays.pause("queue.get")
        found = self._inner.get(*args, **named)
        self._delays.pause("queue.get")
        return found


def finished(work: Callable[[], None], about: str, limit_s: float = HANG_S) -> None:
    """Run something in a thread of its own; what it raises is raised here, a hang as `Hung`."""
    errors: list[BaseException] = []
    done = threading._allocate_lock()  # type: ignore[attr-defined]
    done.acquire()  # A plain lock, that is never delayed, whatever is patched.

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    threading.Thread(target=run, name=f"stress {about}", daemon=True).start()
    if not done.acquire(timeout=limit_s):
        raise Hung(f"{about} did not end in {limit_s} s\n{stacks()}")
    if errors:
        raise AssertionError(f"{about}: {errors[0]!r}") from errors[0]


def stacks() -> str:
    """Where every thread stands."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read()


def together(*works: Callable[[], object]) -> None:
    """Run these at the same time, and raise what the first of them raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
