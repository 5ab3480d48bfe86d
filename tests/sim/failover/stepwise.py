"""Producers of the world whose transactions stay open over many steps, in two journals.

Producer, joined broker and its retries are the real ones. The way to an owner loses calls and
answers, and carries calls out when their client has long gone on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

from tests.sim.failover.hosts import CONFIG, LEASE_S, START_S, Host, WorldTime
from tests.unit.journal.journal_kit import SCHEMA, column

from millrace.errors import BrokerStopped, MillraceError, OwnerUnreachable
from millrace.journal.producer import Producer
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner.broker_calls import BrokerCall
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.owner_calls import OwnerCaller

STEPWISE = ("p", "q")
CLIENT_CONFIG = CONFIG.with_options(
    owner_backoff_ms=300, owner_retries_max=6, journal_inline_bytes_max=1 << 20
)
ROWS_MAX = 3
Rows = Mapping[str, list[tuple[int, int]]]


class StepwiseWrong(AssertionError):
    """What must not be of transactions that stay open."""


class Surroundings(Protocol):
    """What clients need of their world."""

    hosts: list[Host]
    acting: Host
    time: WorldTime
    random: Random

    def wait(self, seconds: float) -> None:
        """Let time pass for all hosts while a client waits."""


@dataclass(slots=True)
class HostLink:
    """A client's way to the owner on a host."""

    way: Way
    host: Host
    broker: Any
    epoch: int
    address: str

    def call(self, call: BrokerCall, arguments: Mapping[str, Any], *, timeout_ms: int) -> Any:  # noqa: ANN401, ARG002
        """Make a call; it may be lost, be carried out later, or its answer be lost."""
        chance = 1.0 if self.way.is_calm else self.way.world.random.random()
        carry_out = partial(self._carry_out, call, dict(arguments))
        if chance < 0.03:
            raise CallCut("the connection is cut", may_be_done=False)
        if chance < 0.1 or not self.host.is_awake:
            self.way.later(carry_out, self.host)
            raise CallCut("no answer yet")
        answer = carry_out()
        if chance < 0.2:
            raise CallCut("the answer is lost")
        return answer

    def _carry_out(self, call: BrokerCall, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        world, host = self.way.world, self.host
        if host.broker is not self.broker or host.life is None or not host.is_awake:
            raise CallCut("nobody answers there", may_be_done=False)
        before, world.acting = world.acting, host
        try:
            host.life.check()
            return getattr(self.broker, call.name)(**arguments)
        except BrokerStopped:
            host.end()
            raise
        finally:
            world.acting = before

    def direct_place(self) -> None:
        """Rows are sent."""

    def is_stale(self) -> bool:
        return self.host.broker is not self.broker or self.is_superseded()

    def is_superseded(self) -> bool:
        return self.way.newest_epoch() > self.epoch

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class Way:
    """How clients come to owners, and what is still on it."""

    world: Surroundings
    is_calm: bool = False
    on_it: list[tuple[float, partial[Any]]] = field(default_factory=list)

    def connect(self, _deadline: float, epoch_min: int) -> Any:  # noqa: ANN401 - a link
        there = [host for host in self.world.hosts if host.broker is not None and host.is_awake]
        found = [(host.broker.epoch, host) for host in there if host.broker is not None]
        found = [one for one in found if one[0] >= epoch_min]
        if not found or (not self.is_calm and self.world.random.random() < 0.1):
            raise OwnerUnreachable("nobody answers")
        epoch, host = max(found, key=lambda one: one[0])
        if len(found) > 1 and not self.is_calm and self.world.random.random() < 0.2:
            epoch, host = self.world.random.choice(found)
        return HostLink(self, host, host.broker, epoch, host.name)

    def newest_epoch(self) -> int:
        return max((h.broker.epoch for h in self.world.hosts if h.broker is not None), default=0)

    def later(self, carry_out: partial[Any], host: Host) -> None:
        """A call arrives when its host is awake, or some time later."""
        wait_s = self.world.random.choice((0.2, 1.0, LEASE_S)) * self.world.random.random()
        at = max(self.world.time.now, host.sleeps_until) + wait_s
        self.on_it.append((at, carry_out))

    def arrive(self) -> None:
        """What is due is carried out; nobody hears of it."""
        due = [call for at, call in self.on_it if at <= self.world.time.now]
        self.on_it = [one for one in self.on_it if one[0] > self.world.time.now]
        for call in due:
            with contextlib.suppress(MillraceError, CallCut):
                call()

    def joined(self) -> JoinedBroker:
        """The journals, for a client's process."""
        return JoinedBroker.of(
            OwnerCaller(
                self.connect,
                CLIENT_CONFIG,
                sleep=self.world.wait,
                now=lambda: self.world.time.now,
            )
        )


@dataclass(slots=True)
class ToldStepwise:
    """What producers asked for, and heard."""

    rows: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of each transaction, how many rows it has in each journal."""
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    def check(self, found: Rows, *, is_end: bool) -> None:
        """Compare with what a reader found; before the end others may be open in front of rows."""
        counts = {name: Counter(value for _, value in rows) for name, rows in found.items()}
        for name, there in counts.items():
            for value, count in there.items():
                asked_there = self.rows[value].get(name, 0)
                if count > asked_there or (is_end and count < asked_there):
                    raise StepwiseWrong(f"{value} has {count} rows in {name}: {self.rows[value]}")
                if value in self.refused:
                    raise StepwiseWrong(f"{value} was rolled back, and is in {name}")
        for value, asked in self.rows.items() if is_end else ():
            there_in = [name for name in asked if value in counts[name]]
            if value in self.acknowledged and len(there_in) < len(asked):
                raise StepwiseWrong(f"{value} was acknowledged, and is in {there_in} of {asked}")
            if there_in and len(there_in) < len(asked):
                raise StepwiseWrong(f"half of {value} is there: in {there_in} of {asked}")


class StepwiseClient:
    """A named producer, in one life after the other. It does one call in each step."""

    def __init__(self, name: str, way: Way, told: ToldStepwise, first: int) -> None:
        self.name, self.way, self.told = name, way, told
        self.value = first
        self.mine: Producer | None = None
        self.plan: list[tuple[str, int]] = []
        """Appends of so many rows to journals that are left to do, and the end."""

    def step(self) -> None:
        random = self.way.world.random
        if self.mine is None:
            with contextlib.suppress(MillraceError):
                self.mine = self.open()
            return
        if not self.plan:
            self._begin(random)
        doing, count = self.plan[0]
        try:
            if doing in STEPWISE:
                self.mine.append(doing, column([self.value] * count))
            elif doing == "commit":
                self.mine.commit()
                self.told.acknowledged.add(self.value)
            else:
                self.mine.rollback()
                self.told.refused.add(self.value)
        except MillraceError:
            self._after_trouble(random, doing)
        else:
            del self.plan[0]

    def open(self) -> Producer:
        """A new life, which ends what the last one left."""
        broker, world = self.way.joined(), self.way.world
        for name in STEPWISE:
            broker.create(name, SCHEMA)
        self.plan = []
        return Producer(broker, self.name, now_ns=lambda: int((START_S + world.time.now) * 1e9))

    def _begin(self, random: Random) -> None:
        self.value += 1
        rows: Counter[str] = Counter()
        for name in random.sample(STEPWISE, random.randint(1, 2)):
            for count in random.choice(([1], [1], [2, 1])):
                self.plan.append((name, min(count, ROWS_MAX)))
                rows[name] += count
        self.told.rows[self.value] = dict(rows)
        self.plan.append(("rollback" if random.random() < 0.3 else "commit", 0))

    def _after_trouble(self, random: Random, doing: str) -> None:
        assert self.mine is not None
        chance = random.random()
        if chance < 0.6 and doing != "commit":
            self.plan = [("rollback", 0)]
        elif chance < 0.6:
            return  # Asked again.
        else:
            if chance < 0.8:
                with contextlib.suppress(MillraceError):
                    self.mine.close()
            self.mine = None
