"""A worker: leases units of a job, one after the other, and works on each for a bounded time.

It runs in a Spark task and ends by itself, so that Spark stays in charge. It learns the state of
the job from the broker; the lease of a unit decides which worker works on it. A step's failure is
an event of the job, not an error here: Spark would run the task again, and with it the call.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import LeaseLost
from millrace.journal.broker import Broker
from millrace.journal.core.values import JournalInfo, Lease
from millrace.log_lines import log_ids
from millrace.metrics.process_metrics import BACK_PRESSURED, BUSY, WAITING
from millrace.metrics.traces import span
from millrace.pipeline.calling.call_thread import stuck_calls
from millrace.pipeline.calling.function_caller import JOB_STUCK_CALLS_MAX
from millrace.pipeline.calling.function_instances import begin_run, has_model, made_for
from millrace.pipeline.core import hops, unit_choice
from millrace.pipeline.core.hops import Hop, Unit
from millrace.pipeline.core.job_events import ALONE, JobEventKind
from millrace.pipeline.core.unit_choice import FlowLimits, Steps, TurnEnd, UnitState
from millrace.pipeline.core.worker_deaths import Deaths
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.run.job_journals import journals_of
from millrace.pipeline.sinks import OtherJournals
from millrace.pipeline.worker.call_files import calls_folder, release_dead
from millrace.pipeline.worker.lease_keeper import Keeper
from millrace.pipeline.worker.run_events import RunEvents
from millrace.pipeline.worker.turn import LeasedUnit, StopFlag, WorkerTally
from millrace.pipeline.worker.turn_setup import TurnSetup
from millrace.pipeline.worker.unit_leases import UnitLeases

JOB_WARM_MS: Final = 30_000
"""How long a worker that made a step's callable prefers that step, before others get a turn."""

_LOG: Final = logging.getLogger(__name__)
_IDLE_LONGER_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The job, the run and the limits of a worker."""

    config: Config
    holder: str
    """Names this attempt of a worker, and no other."""
    run_epoch: int
    """The epoch of the run's lease; the worker ends when the lease has another epoch."""
    time_zone: str
    workspace: str
    scratch: str
    job_id: str
    """The id of the job, unique over all workspaces; its first run makes it."""
    events_from: int = 0
    """The offset of the run's first event in the job's record."""
    until_end: Mapping[str, int] | None = None
    """Journals that are read no further than to these offsets."""
    only: frozenset[str] | None = None
    """The hops that the worker may take; all by default."""
    idle_ms_max: int | None = None
    """How long the worker waits for work before it leaves its slot to other workers."""
    others: Mapping[str, OtherJournals] = field(default_factory=dict)
    """By sink: the journals of another workspace that it appends to."""
    progress: Mapping[str, str] = field(default_factory=dict)
    """By sink: the name of its progress, where that is kept with its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """The counts of a worker as plain values, for JSON."""

    ended: str
    """Why it ended: "time", "run over", "stopped", "idle", "failed" or "stuck"."""
    turns: dict[str, int] = field(default_factory=dict)
    """The number of turns on each hop."""
    rows_in: dict[str, int] = field(default_factory=dict)
    rows_out: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    seconds_total: float = 0.0
    seconds_per_hop: dict[str, float] = field(default_factory=dict)
    """Seconds within turns, without the time that the worker waited for work."""
    seconds_in_function: dict[str, float] = field(default_factory=dict)
    seconds_publishing: float = 0.0
    seconds_waiting: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The outcome as a dict, for JSON."""
        return asdict(self)


class Worker:
    """Works on a job's units until its time is over."""

    def __init__(self, broker: Broker, job_hops: Sequence[Hop], settings: WorkerSettings) -> None:
        self._broker, self._settings, self._config = broker, settings, settings.config
        self._steps = Steps.of(job_hops)
        self._job = job_hops[0].job
        self._stopping = StopFlag()
        self._events = RunEvents(
            broker,
            settings.config,
            self._job,
            run=settings.run_epoch,
            offset=settings.events_from,
        )
        self.keeper: Keeper | None = None
        """Keeps the leases while the worker runs."""
        self._tally = WorkerTally(job=self._job)
        self._setup = TurnSetup(broker, settings)
        self._units: dict[Unit, JournalInfo] = {}
        self._listed_at = 0.0
        self._aside: set[Unit] = set()
        self._waits: dict[Unit, tuple[int | None, float]] = {}
        self._warm: tuple[str, float] | None = None
        self._turns: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._waited = 0.0
        self._pushed_back: frozenset[str] = frozenset()
        self._idle = 0
        self._idle_s_max = (settings.idle_ms_max or math.inf) / 1000
        self._until = 0.0
        self._leases = UnitLeases(broker, settings.config, settings.holder)
        config = self._config
        self._limits = FlowLimits(
            backlog_rows_max=config.job_backlog_rows_max,
            sink_bytes=config.job_sink_bytes,
            sink_ms=ms(config.job_sink_wait),
        )

    def stop(self) -> None:
        """Make `run` end soon: no call is begun any more. From any thread or signal handler."""
        self._stopping.set()

    def run(self) -> WorkerOutcome:
        """Work until the time is over, the run ends, or `stop` is called."""
        with log_ids(job=self._job, run=self._settings.run_epoch), span("worker"):
            return self._run()

    def _run(self) -> WorkerOutcome:
        begun = time.monotonic()
        name, config = hops.run_lease(self._job), self._config
        _LOG.info("job %s: worker %s started", self._job, self._settings.holder)
        begin_run(self._job, self._settings.run_epoch)
        keeper = self.keeper = Keeper(self._broker, config, name, self._settings.run_epoch)
        try:
            keeper.look()
            self._find_units()
            known = {(unit.hop, int(info.id)) for unit, info in self._units.items()}
            folder = calls_folder(self._settings.workspace, self._job, self._settings.job_id)
            release_dead(self._broker, folder, self._job, known)
            self._until = begun + ms(config.job_worker_time) / 1000
            ended = self._work(keeper)
            _LOG.info("job %s: worker %s ended: %s", self._job, self._settings.holder, ended)
        finally:
            self._leases.close()
            keeper.close()
            self._setup.close()
        tally = self._tally
        return WorkerOutcome(
            ended=ended,
            turns=self._turns,
            rows_in=tally.rows_in,
            rows_out=tally.rows_out,
            calls=tally.calls,
            errors=tally.errors,
            skipped=tally.skipped,
            dead_letters=tally.dead_letters,
            seconds_total=time.monotonic() - begun,
            seconds_per_hop=self._seconds,
            seconds_in_function=tally.in_function,
            seconds_publishing=self._setup.seconds_publishing,
            seconds_waiting=self._waited,
        )

    def _work(self, keeper: Keeper) -> str:
        worked = time.monotonic()
        while time.monotonic() < self._until:
            if self._stopping.is_set():
                return "stopped"
            if stuck_calls() >= JOB_STUCK_CALLS_MAX:
                return "stuck"
            ended = self._one_turn(keeper) if not keeper.run_is_over.is_set() else None
            if keeper.run_is_over.is_set():
                return "run over"
            match ended:
                case None:
                    if time.monotonic() - worked > self._idle_s_max:
                        return "idle"
                    self._wait()
                case TurnEnd.FAILED | TurnEnd.STUCK:
                    return ended.value
                case _:
                    self._idle, worked = 0, time.monotonic()
        return "time"

    def _wait(self) -> None:
        """Wait before the next look for work; longer if there was none for long."""
        begun = time.monotonic()
        steps = set(self._steps.hops) if self._settings.only is None else self._settings.only
        longer = min(_IDLE_LONGER_MAX, 1 + self._idle // _IDLE_LONGER_MAX)
        self._stopping.wait(self._config.job_idle_ms * longer / 1000)
        self._idle += 1
        waited_s = time.monotonic() - begun
        self._waited += waited_s
        for step in steps:
            kept = BACK_PRESSURED if step in self._pushed_back else WAITING
            kept.add(waited_s, self._job, step)

    # Choosing.
    def _find_units(self) -> None:
        self._listed_at = time.monotonic()
        listed = patiently(
            lambda: [(hop, journals_of(self._broker, hop)) for hop in self._steps.hops.values()],
            self._config,
        )
        self._units = {Unit(hop.name, info.name): info for hop, infos in listed for info in infos}
        self._aside |= self._left_alone()

    def _run_has_failed(self) -> bool:
        """Whether a step of this run gave up: another call would cost money again."""
        return any(event.happened is JobEventKind.FAILED for event in self._events.look())

    def _left_alone(self) -> set[Unit]:
        """Units that this run is not to work on: held for the user, or without budget."""
        out: set[Unit] = set()
        for event in self._events.look():
            is_of_one = event.happened in (JobEventKind.HELD, JobEventKind.WAITING)
            if is_of_one or (event.happened is JobEventKind.SPENT and event.detail.get(ALONE)):
                out.add(Unit(event.step, event.detail["journal"]))
            elif event.happened is JobEventKind.SPENT:
                out |= {unit for unit in self._units if unit.hop == event.step}
        return out

    def _ranked(self, keeper: Keeper) -> list[Unit]:
        units = list(self._units)
        group_journals = [(self._steps.hops[unit.hop].group, unit.journal) for unit in units]
        positions = patiently(lambda: self._broker.positions(group_journals), self._config)
        leases = patiently(lambda: self._broker.leases(f"{hops.ROOT}/{self._job}"), self._config)
        leased = {lease.name for lease in leases}
        if hops.run_lease(self._job) not in leased:
            keeper.look()  # A worker without work learns at once that the run is over.
        states = []
        for unit, position in zip(units, positions, strict=True):
            rows, end = position.backlog, (self._settings.until_end or {}).get(unit.journal)
            if end is not None and (position.committed or position.start) >= end:
                rows = 0
            states.append(
                UnitState(
                    unit=unit,
                    rows=rows,
                    is_leased=self._lease_name(unit) in leased,
                    waited_ms=self._waited_ms(unit, position.committed, rows),
                )
            )
        self._pushed_back = unit_choice.pushed_back(self._steps, states, self._limits)
        ranked = unit_choice.rank(
            self._steps,
            states,
            self._limits,
            aside=self._aside,
            warm=self._warm_hop(),
            row_bytes=self._tally.row_bytes,
        )
        only = self._settings.only
        return ranked if only is None else [unit for unit in ranked if unit.hop in only]

    def _waited_ms(self, unit: Unit, committed: int | None, rows: int) -> int:
        """How long rows have been seen to wait at this offset."""
        known = self._waits.get(unit)
        if not rows or known is None or known[0] != committed:
            self._waits[unit] = (committed, time.monotonic())
            return 0
        return int((time.monotonic() - known[1]) * 1000)

    def _warm_hop(self) -> str | None:
        if self._warm is None or time.monotonic() - self._warm[1] > JOB_WARM_MS / 1000:
            return None
        name = self._warm[0]
        return name if made_for(self._steps.hops[name]) else None

    def _lease_name(self, unit: Unit) -> str:
        return hops.unit_lease(self._job, unit.hop, self._units[unit].id)

    # Working.
    def _one_turn(self, keeper: Keeper) -> TurnEnd | None:
        """Work on the best unit that can be leased; None if there was none, or it had no work."""
        is_old = time.monotonic() - self._listed_at > self._config.job_turn_ms / 1000
        if self._settings.until_end is None and is_old:
            self._find_units()  # The user's journals may be more by now.
        for unit in self._ranked(keeper):
            if keeper.run_is_over.is_set():
                return None
            slots = hops.slots(self._steps.hops[unit.hop], unit.journal)
            with self._leases.leased(self._lease_name(unit), slots, keeper) as lease:
                if lease is None:
                    continue
                # A worker that gives up a unit records that before it releases the lease.
                if self._steps.hops[unit.hop].expensive and self._run_has_failed():
                    return TurnEnd.FAILED
                ended = self._turn(unit, lease, keeper)
                is_nothing = ended in (TurnEnd.OVER, TurnEnd.LOST) and not self._setup.has_moved
                return None if is_nothing else ended
        return None

    def _turn(self, unit: Unit, lease: Lease, keeper: Keeper) -> TurnEnd:
        hop, begun = self._steps.hops[unit.hop].over(unit.journal), time.monotonic()
        _LOG.debug("step %s: work on %s begins", hop.name, unit.journal)
        length_ms = ms(self._config.job_sink_wait) if hop.writes_files else self._config.job_turn_ms
        leased_unit = LeasedUnit(
            broker=self._broker,
            config=self._config,
            hop=hop,
            journal=self._units[unit],
            lease=lease,
            run=self._settings.run_epoch,
            job_id=self._settings.job_id,
            keeper=keeper,
            stopping=self._stopping,
            tally=self._tally,
            until=begun + max(length_ms, self._leases.turn_ms_min) / 1000,
            end=(self._settings.until_end or {}).get(unit.journal),
            deaths=Deaths.of(self._events.look(), unit.journal, hop.called),
            has_room=lambda: self._has_room(hop),
            stays=lambda: self._stays(hop, keeper),
        )
        try:
            with BUSY.seconds(self._job, hop.name), log_ids(step=hop.name), span("step"):
                ended = self._setup.work(
                    leased_unit, is_reported=lambda: unit in self._left_alone()
                )
        except LeaseLost:
            ended = TurnEnd.LOST
        finally:
            spent = time.monotonic() - begun
            self._turns[hop.name] = self._turns.get(hop.name, 0) + 1
            self._seconds[hop.name] = self._seconds.get(hop.name, 0.0) + spent
        if ended in (TurnEnd.HELD, TurnEnd.WAITING):
            self._aside.add(unit)
        elif ended is TurnEnd.SPENT and hop.asks_in_batches:
            self._aside.add(unit)  # Others may have batches that were paid for.
        elif ended is TurnEnd.SPENT:
            self._aside |= {other for other in self._units if other.hop == unit.hop}
        self._keep_warm(hop)
        return ended

    def _stays(self, hop: Hop, keeper: Keeper) -> bool:
        """Whether a turn may go on when its time is over: no other unit is as urgent."""
        if time.monotonic() >= self._until:
            return False
        return all(self._steps.hops[unit.hop].depth < hop.depth for unit in self._ranked(keeper))

    def _has_room(self, hop: Hop) -> bool:
        """Whether no step behind a hop has too many rows waiting."""
        for name in hop.feeds:
            group = self._steps.hops[name].group
            group_journals = [(group, unit.journal) for unit in self._units if unit.hop == name]
            positions = patiently(partial(self._broker.positions, group_journals), self._config)
            if sum(position.backlog for position in positions) >= self._config.job_backlog_rows_max:
                return False
        return True

    def _keep_warm(self, hop: Hop) -> None:
        if has_model(hop) and (self._warm is None or self._warm[0] != hop.name):
            self._warm = (hop.name, time.monotonic())
