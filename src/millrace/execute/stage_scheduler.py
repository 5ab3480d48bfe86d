"""Runs the stages of a query, those that do not wait for each other at the same time.

Invariant: a stage is begun after all that it reads, and never beside one that does the same work:
that is finished then, and found. When one fails or the caller is interrupted, Spark's work for the
others is cancelled, and nothing is left running when the call ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from millrace.execute.lost_outputs import Lost, OutputsLost

_LOOK_S: Final = 5.0
"""How long a query waits for the next stage to end before it looks again."""


class Cancelled(Exception):
    """Ends a stage because another one failed, or the caller was interrupted."""


class Stop:
    """Tells stages on their way that they are no longer wanted."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def stop(self) -> None:
        """Ask all to end."""
        self._event.set()

    def check(self) -> None:
        """Raise if asked to end."""
        if self._event.is_set():
            raise Cancelled


@dataclass(frozen=True, slots=True)
class ReadyStage:
    """A stage that can be begun: its work, by which twins are told, and what runs it."""

    number: int
    fingerprints: frozenset[str]
    run: Callable[[Stop], None]


def run_all(
    needs: Sequence[frozenset[int]], prepare: Callable[[int], ReadyStage], *, at_once_max: int
) -> None:
    """Run stages 0, 1, ...; `needs` says for each which others come first.

    A stage is prepared when those are done. Outputs that it finds lost stop nothing that is on its
    way; they are raised at the end.
    """
    stop = Stop()
    with ThreadPoolExecutor(at_once_max, thread_name_prefix="millrace-stage") as threads:
        try:
            lost = _Stages(needs, prepare, threads, stop).run(at_once_max)
        except BaseException:
            stop.stop()
            raise
    if lost:
        raise OutputsLost(lost)


class _Stages:
    """Stages that wait, run and are done."""

    def __init__(
        self,
        needs: Sequence[frozenset[int]],
        prepare: Callable[[int], ReadyStage],
        threads: ThreadPoolExecutor,
        stop: Stop,
    ) -> None:
        self._needs, self._prepare = needs, prepare
        self._threads, self._stop = threads, stop
        self._waiting = list(range(len(needs)))
        self._ready: dict[int, ReadyStage] = {}
        self._running: dict[Future[None], ReadyStage] = {}
        self._done: set[int] = set()
        self._lost: list[Lost] = []

    def run(self, at_once_max: int) -> list[Lost]:
        """Run all, or until something is lost; returns what is."""
        while True:
            if not self._lost:
                self._start(at_once_max)
            if not self._running:
                return self._lost
            finished, _ = wait(self._running, _LOOK_S, return_when=FIRST_COMPLETED)
            for future in finished:
                job = self._running.pop(future)
                try:
                    future.result(0)
                except OutputsLost as error:
                    self._lost += error.lost
                else:
                    self._done.add(job.number)

    def _start(self, at_once_max: int) -> None:
        for number in [n for n in self._waiting if self._needs[n] <= self._done]:
            self._waiting.remove(number)
            try:
                self._ready[number] = self._prepare(number)
            except OutputsLost as error:
                self._lost += error.lost
                return
        for number, job in sorted(self._ready.items()):
            beside = self._running.values()
            twin = any(job.fingerprints & other.fingerprints for other in beside)
            if len(beside) < at_once_max and not twin:
                del self._ready[number]
                self._running[self._threads.submit(job.run, self._stop)] = job
