"""The parts that all turns share: the leased unit, the counts of the worker, and its stop flag."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.config import Config
from millrace.durations import ms
from millrace.journal.broker import Broker
from millrace.journal.core.values import JournalInfo, Lease
from millrace.metrics.process_metrics import IN_FUNCTION
from millrace.pipeline.calling.call_failures import Stopped
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.unit_publish import UnitNotes
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.worker.lease_keeper import Keeper

_LOOK_S: Final = 0.02
_RUN_LOOK_S: Final = 0.5
_TURN_CALLS: Final = 40
"""A turn is so many times as long as its longest paid call: then few slots wait for its end."""
_TURN_S_MAX: Final = 1800.0


class StopFlag:
    """Like an event, and safe to set in a signal handler: nothing is locked."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Ask to stop."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._is_set

    def wait(self, seconds: float) -> None:
        """Wait for these seconds, or until a stop is asked for."""
        until = time.monotonic() + seconds
        while not self._is_set and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))


@dataclass(slots=True, kw_only=True)
class WorkerTally:
    """Counts of a worker's work; the `WorkerOutcome` holds all of them."""

    job: str = ""
    rows_in: dict[str, int] = field(default_factory=dict)
    rows_out: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    in_function: dict[str, float] = field(default_factory=dict)
    row_bytes: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def add(to: dict[str, Any], name: str, count: float) -> None:
        """Count some more for a step."""
        if count:
            to[name] = to.get(name, 0) + count

    def add_in_function(self, step: str, seconds: float) -> None:
        """Count some more time inside the function of a step."""
        self.add(self.in_function, step, seconds)
        IN_FUNCTION.add(seconds, self.job, step)


@dataclass(slots=True, kw_only=True)
class LeasedUnit:
    """A unit that this worker has leased."""

    broker: Broker
    config: Config
    hop: Hop
    journal: JournalInfo
    lease: Lease
    run: int
    job_id: str
    keeper: Keeper
    stopping: StopFlag
    tally: WorkerTally
    until: float
    """When the turn is over, in steady seconds."""
    end: int | None
    """Rows from this offset on are left for later."""
    has_room: Callable[[], bool] = lambda: True
    """Whether the steps behind this one can take more; asked now and then."""
    deaths: Deaths = field(default_factory=Deaths)
    """Calls that ended their process, as far as this run knows."""
    stays: Callable[[], bool] = lambda: False
    """Whether the turn may go on when its time is over."""
    begun: float = field(default_factory=time.monotonic)
    looked: float = 0.0
    is_over: bool = False
    """Whether the turn has ended, or ends before its time is over."""

    def goes_on(self) -> bool:
        """Whether to begin more work in this turn. Once it says no, it says no for good."""
        now = time.monotonic()
        if self.is_ending():
            return False
        if now >= self.until:
            if self.is_over or not self.stays():
                self.is_over = True
                return False
            self.until = now + self.config.job_turn_ms / 1000
        if now - self.looked > self._look_s:
            if self.looked and not self.has_room():
                self.is_over = True
            self.looked = now
        return not self.is_over

    @property
    def _look_s(self) -> float:
        """How often to ask for room; rarely between calls, since they wait for the answer."""
        if self.hop.expensive is None:
            return ms(self.config.job_publish_every) / 1000
        return self.config.job_turn_ms / 2000

    def on_called(self, seconds: float) -> None:
        """A paid call took this long: a turn, at whose end slots are empty, is much longer."""
        self.until = max(self.until, self.begun + min(_TURN_CALLS * seconds, _TURN_S_MAX))

    def is_ending(self) -> bool:
        """Whether nothing more may be begun: the worker is to end, or has lost the unit."""
        return (
            self.stopping.is_set()
            or self.keeper.run_is_over.is_set()
            or self.keeper.has_lost(self.lease)
        )

    def sleep(self, seconds: float) -> None:
        """Wait before a call of a cheap step, or raise `Stopped`."""
        until = time.monotonic() + seconds
        while True:
            if self.is_ending():
                raise Stopped
            left = until - time.monotonic()
            if left <= 0:
                return
            self.stopping.wait(min(left, _RUN_LOOK_S))

    @property
    def notes(self) -> UnitNotes:
        """Makes events and dead letters of the unit."""
        return UnitNotes(
            job_id=self.job_id,
            job=self.hop.job,
            run=self.run,
            journal=self.journal.name,
            journal_id=int(self.journal.id),
        )


def now_us() -> int:
    """The time that records carry."""
    return time.time_ns() // 1000
