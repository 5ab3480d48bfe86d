"""Hosts that own journals in a bucket one after the other, in a world with its own time.

Brokers, ledgers, signs of life and takeovers are the real ones. The bucket is a folder that each
host reaches by a link of its own: calls fail, lose their answer, or arrive when they were given up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from millrace.config import Config
from millrace.errors import BrokerStopped, MillraceError, PeerGone
from millrace.journal.book_broker import Times
from millrace.journal.ledger_log.loaded_log import LoadedLog
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.storage.local import LocalStore
from millrace.transport.owner import owner_life
from millrace.transport.owner.owner_life import LifeWatch, OwnerLife, read_sign
from millrace.wakeup import WakeUp

FOLDER = "j"
NEVER_DUE = 1 << 30
CONFIG = Config(
    journal_commit_gather_ms_max=1,  # Steps wait for real time here.
    owner_lease="6s",
    ledger_snapshot_records=NEVER_DUE,
    ledger_retry_ms=400,
    ledger_retry_ms_max=1000,
    journal_small_bytes_max=200,
)
LOADS_AHEAD = 0.5
"""How often a look at a silent owner loads its log."""
LEASE_S = owner_life.lease_s(CONFIG)
START_S = 1_700_000_000
HERE = ("path", "root", "spill_folder", "payload_folder", "each", "ahead", "workspace_id", "probe")
"""What a store does without asking the server."""


@dataclass(slots=True)
class WorldTime:
    """Seconds since the world began, and what arrives late in it."""

    now: float = 0.0
    late: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and what is due arrive."""
        self.now += seconds
        due = [each for each in self.late if each[0] <= self.now]
        self.late = [each for each in self.late if each[0] > self.now]
        for _, arrive in due:
            arrive()

    # What `store_log` takes from the module `time`.
    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pass_s(seconds)

    def time_ns(self) -> int:
        return int((START_S + self.now) * 1e9)


@dataclass(slots=True)
class Trouble:
    """How often calls over a link go wrong."""

    cut: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0


class LinkedStore:
    """The bucket, as one host reaches it."""

    remote = True

    def __init__(self, folder: Path, time: WorldTime, random: Random) -> None:
        self._inner = LocalStore(str(folder))
        self._time = time
        self._random = random
        self.trouble = Trouble()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        there = getattr(self._inner, name)
        if name in HERE or not callable(there):
            return there
        if name in ("create", "replace"):
            there = functools.partial(self._put, there)
        return functools.partial(self._call, name, there)

    def _put(self, call: Callable[..., Any], relative: str, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """A bucket has no folders; and no power cut is simulated here."""
        Path(self._inner.path(relative)).parent.mkdir(parents=True, exist_ok=True)
        return call(relative, *given, **(named | {"sync": False} if "sync" in named else named))

    def _call(self, name: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:  # noqa: ANN401
        chance = self._random.random()
        trouble = self.trouble
        if chance < trouble.cut:
            raise PeerGone(f"{name}: the link is cut")
        chance -= trouble.cut
        if chance < trouble.lost_answer:
            call(*given, **named)
            raise PeerGone(f"{name}: no answer")
        chance -= trouble.lost_answer
        if chance < trouble.late and name in ("create", "replace"):
            arrives = self._time.now + self._random.uniform(0.1, 3 * LEASE_S)
            self._time.late.append((arrives, functools.partial(call, *given, **named)))
            raise PeerGone(f"{name}: no answer yet")
        return call(*given, **named)


class Host:
    """A process on a host that owns the journals at times."""

    def __init__(self, name: str, folder: Path, time: WorldTime, random: Random) -> None:
        self.name = name
        self.store = LinkedStore(folder, time, random)
        self._time = time
        self._random = random
        self._offset_s = random.uniform(0, 1e6)
        self.wall_jump_s = 0.0
        self.watch = LifeWatch(CONFIG, now=self.steady_s)
        self.ahead: LoadedLog | None = None
        """What it loaded of the log while the owner was silent."""
        self.broker: LogBroker | None = None
        self.life: OwnerLife | None = None
        self.beats_at = 0.0
        self.sleeps_until = 0.0

    def steady_s(self) -> float:
        """Clocks of hosts have nothing in common."""
        return self._time.now + self._offset_s

    @property
    def is_awake(self) -> bool:
        return self._time.now >= self.sleeps_until

    def try_to_own(self, *, is_hasty: bool) -> None:
        """What an opener does: join an owner that lives, take over one that is silent."""
        assert self.broker is None
        broker = None
        try:
            sign = read_sign(self.store)
            if not self.watch.is_over(sign) and not is_hasty:
                self._look_ahead()
                return
            broker = self.watch.open(sign, self._open)
            if self._random.random() < 0.1:
                return  # Killed before its first sign of life.
            life = OwnerLife(self.store, broker, f"{self.name} {broker.epoch}", CONFIG, WakeUp())
            life.give_sign()
        except MillraceError:
            if broker is not None:
                broker.close()
            return
        self.broker, self.life = broker, life
        self.beats_at = self._time.now + LEASE_S / owner_life.SIGNS_PER_LEASE

    def _look_ahead(self) -> None:
        """Load the log, which may be replaced, trimmed and continued before it is opened."""
        if self.ahead is None and self.watch.is_silent() and self._random.random() < LOADS_AHEAD:
            self.ahead = LoadedLog.ahead(StoreLog(self.store, FOLDER, CONFIG))

    def _open(self, known_end: int, epoch_seen: int | None) -> LogBroker:
        ahead, self.ahead = self.ahead, None
        log = StoreLog(self.store, FOLDER, CONFIG) if ahead is None else ahead.log
        wall = Times(lambda: int((START_S + self._time.now + self.wall_jump_s) * 1e9))
        return LogBroker.open_log(
            self.store,
            FOLDER,
            log,
            CONFIG,
            times=wall,
            known_end=known_end,
            epoch_seen=epoch_seen,
            ahead=ahead,
        )

    def live(self) -> None:
        """Give the sign of life that is due."""
        if self.life is None or not self.is_awake or self._time.now < self.beats_at:
            return
        self.beats_at = self._time.now + LEASE_S / owner_life.SIGNS_PER_LEASE
        try:
            self.life.give_sign()
        except BrokerStopped:
            self.end()
        except MillraceError:
            return

    def end(self) -> None:
        """The process dies, or gives up; nobody hears of it."""
        if self.broker is not None:
            self.broker._log_ledger.close()
        if self.ahead is not None:
            self.ahead.close()
        self.ahead = None
        self.broker = self.life = None
