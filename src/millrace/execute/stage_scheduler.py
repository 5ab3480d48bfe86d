"""Chooses the next stage of a query, and runs those that do not wait for each other together.

Invariant: a stage begins after all stages that it reads, and never at the same time as one that
does the same work: the second one finds the first one's outputs. When a stage fails or the caller
is interrupted, the tasks of the others are cancelled, and nothing runs when the block ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from millrace.execute.lost_outputs import Lost, OutputsLost
from millrace.log_lines import take_ids
from millrace.metrics.traces import trace_ids

_LOOK_S: Final = 5.0
"""How long a query waits for the next stage to end before it looks again."""


class Cancelled(Exception):
    """Ends a stage because another one failed, or the caller was interrupted."""


class Stop:
    """Tells running stages to end."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def stop(self) -> None:
        """Ask all to end."""
        self._event.set()

    def check(self) -> None:
        """Raise if the stage is to end."""
        if self._event.is_set():
            raise Cancelled


@dataclass(frozen=True, slots=True)
class _PlannedStage:
    number: int
    fingerprints: frozenset[str]
    run: Callable[[Stop], None]


class StageScheduler:
    """Stages that wait, run and are done. Use it as a context manager.

    For every stage that `ready` gives out, the caller calls `start`, `skip` or `on_lost`.
    """

    def __init__(self, needs: Sequence[frozenset[int]], *, at_once_max: int) -> None:
        """`needs` says for stages 0, 1, ... which others come first."""
        self._needs = needs
        self._at_once_max = at_once_max
        self._threads = ThreadPoolExecutor(
            at_once_max,
            thread_name_prefix="millrace-stage",
            initializer=take_ids,
            initargs=(trace_ids(),),
        )
        self._stop = Stop()
        self._waiting = list(range(len(needs)))
        self._planned: dict[int, _PlannedStage] = {}
        self._running: dict[Future[None], int] = {}
        self._running_work: dict[int, frozenset[str]] = {}
        self._done: set[int] = set()
        self._lost: list[Lost] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stop.stop()
        self._threads.shutdown()

    def ready(self) -> Iterator[int]:
        """The stages whose inputs are done, as they become so; ends when all stages are done.

        Raises:
            OutputsLost: at the end, if stages found outputs lost. Stages that ran went on.
        """
        while True:
            numbers = [n for n in self._waiting if self._needs[n] <= self._done]
            for number in numbers:
                if self._lost:
                    break
                self._waiting.remove(number)
                yield number
            if not self._lost:
                self._submit()
                if numbers:
                    continue  # Stages that were skipped may have made others ready.
            if not self._running:
                break
            self._wait()
        if self._lost:
            raise OutputsLost(self._lost)

    def start(self, number: int, fingerprints: frozenset[str], run: Callable[[Stop], None]) -> None:
        """Run a stage in a thread; stages that share a fingerprint run one after the other."""
        self._planned[number] = _PlannedStage(number, fingerprints, run)

    def skip(self, number: int) -> None:
        """Count a stage as done."""
        self._done.add(number)

    def on_lost(self, lost: Sequence[Lost]) -> None:
        """Begin no further stages: outputs that one of them reads are lost."""
        self._lost += lost

    def _submit(self) -> None:
        for number, stage in sorted(self._planned.items()):
            twin = any(stage.fingerprints & other for other in self._running_work.values())
            if len(self._running) < self._at_once_max and not twin:
                del self._planned[number]
                self._running[self._threads.submit(stage.run, self._stop)] = number
                self._running_work[number] = stage.fingerprints

    def _wait(self) -> None:
        finished, _ = wait(self._running, _LOOK_S, return_when=FIRST_COMPLETED)
        for future in finished:
            number = self._running.pop(future)
            del self._running_work[number]
            try:
                future.result(0)
            except OutputsLost as error:
                self.on_lost(error.lost)
            else:
                self._done.add(number)
