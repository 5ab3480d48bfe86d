"""No thread waits for ever, however threads, locks and events are delayed.

The simulation replaces threads, so it cannot see a wake-up that is lost. Here threads are real, and
every operation on locks, conditions, events and queues pauses at random, by a seed. A close that
does not end shows the stacks of all threads.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.delays import HANG_S, Delays, Hung, finished
from tests.laws import seeds
from tests.property.threads_kit import SCENARIOS

from millrace.reads import member, thread_members

QUICK_SEEDS = range(2)
SLOW_SEEDS = seeds(100, first=1_000)


def run(name: str, seed: int, folder: Path, limit_s: float = HANG_S) -> tuple[int, int]:
    """How often something was closed, and how often a thread was delayed meanwhile."""
    closes: list[int] = []
    folder.mkdir(parents=True)
    chosen = random.Random(f"{name} {seed}")  # noqa: S311

    def work() -> None:
        closes.append(SCENARIOS[name](folder, chosen))

    with Delays(seed) as delays:
        finished(work, f"{name}, seed {seed}", limit_s)
    return sum(closes), delays.count


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_close_ends_however_threads_are_delayed(name: str, tmp_path: Path) -> None:
    counts = [run(name, seed, tmp_path / str(seed)) for seed in QUICK_SEEDS]
    assert all(closes for closes, _ in counts)
    assert sum(pauses for _, pauses in counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_thousands_of_closes_end_however_threads_are_delayed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [run(name, seed, tmp_path / str(seed)) for seed in SLOW_SEEDS]
    closes, pauses = (sum(column) for column in zip(*counts, strict=True))
    with capsys.disabled():
        print(f"\n{name}: {closes} closes, {pauses} pauses, {len(counts)} seeds, no hang")  # noqa: T201


class LosesStops(member.Member):
    """The mistake that this file is for: the event is cleared after the test for a stop."""

    made: ClassVar[list[LosesStops]] = []

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - as its base
        super().__init__(**given)
        self._event, self._is_over = threading.Event(), threading.Event()
        self._slice._wake = self._event.set
        self.made.append(self)

    @property
    def has_lost_its_stop(self) -> bool:
        """Told to stop, it sleeps all the same, with nobody left to wake it."""
        is_told = self._is_over.is_set() and not self._event.is_set()
        return is_told and self._threads[0].is_alive()

    def stop(self) -> None:
        """Nothing: a member was stopped when it was closed."""

    def close(self) -> None:
        self._is_over.set()
        self._event.set()
        super().stop()
        super().close()

    def _run_slice(self) -> None:
        while not self._is_over.is_set():
            self._event.clear()
            if not self._slice.turn(time.time_ns()):
                self._event.wait(HANG_S)


@pytest.mark.slow
def test_a_planted_event_that_loses_a_stop_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_members, "Member", LosesStops)
    monkeypatch.setattr(LosesStops, "made", [])
    try:
        assert any(is_found(seed, tmp_path / str(seed)) for seed in range(200))
    finally:
        for each in LosesStops.made:
            each._event.set()


def is_found(seed: int, folder: Path) -> bool:
    try:
        run("sessions_of_threads", seed, folder, limit_s=5)
    except Hung:
        return any(each.has_lost_its_stop for each in LosesStops.made)
    return False
