"""Runs one world of owners, and judges by what clients were told, knowing nothing of the ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.sim.failover.hosts import LEASE_S, Host, Trouble, WorldTime
from tests.sim.failover.stepwise import STEPWISE, StepwiseClient, ToldStepwise, Way
from tests.unit.journal.journal_kit import SCHEMA, column, publish

from millrace.errors import BrokerStopped, MillraceError, OwnerReplaced
from millrace.journal.ledger_log import store_log
from millrace.transport.owner import owner_life

JOURNALS = ("a", "b")
CLIENTS = 2
FIRST_OF_CLIENT = 1000
HOSTS = 3
STEPS = 100
HEALING_STEPS = 40
ROWS_MAX = 30


class Wrong(AssertionError):
    """What must not be."""


@dataclass(slots=True)
class Told:
    """What clients heard: each attempt has a value of its own."""

    rows: dict[int, int] = field(default_factory=dict)
    """How many rows an attempt had."""
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The first offsets in both journals."""
    refused: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)

    def check(self, found: dict[str, list[tuple[int, int]]], *, is_recent: bool) -> None:
        """Compare with what a reader found: offsets and values of each journal."""
        counts = {name: Counter(value for _, value in rows) for name, rows in found.items()}
        there = counts["a"]
        if there != counts["b"]:
            raise Wrong(f"half a transaction: {there - counts['b']}, {counts['b'] - there}")
        for value, count in there.items():
            if self.rows[value] != count:
                raise Wrong(f"{value} has {count} rows of {self.rows[value]}")
            if value in self.refused:
                raise Wrong(f"{value} was refused, and is there")
        for place, name in enumerate(JOURNALS):
            self._check_offsets(name, found[name], place)
        if is_recent:
            if lost := self.acknowledged.keys() - there.keys():
                raise Wrong(f"{sorted(lost)} were acknowledged, and are not there")
            if gone := self.seen - there.keys():
                raise Wrong(f"{sorted(gone)} were seen, and are gone")
            self.seen |= there.keys()

    def _check_offsets(self, name: str, rows: list[tuple[int, int]], place: int) -> None:
        offsets = [offset for offset, _ in rows]
        if offsets != sorted(set(offsets)):
            raise Wrong(f"offsets of {name} are not in order")
        first: dict[int, int] = {}
        for offset, value in rows:
            first.setdefault(value, offset)
        told = self.acknowledged
        if moved := [v for v in first if v in told and told[v][place] != first[v]]:
            raise Wrong(f"{moved} have other offsets in {name} than acknowledged")


class World:
    """Hosts, links and clients; all chance comes from the seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)  # noqa: S311 - a seed replays it
        self.time = WorldTime()
        self.told = Told()
        self.hosts = [Host(f"h{n}", folder, self.time, self.random) for n in range(HOSTS)]
        self.acting = self.hosts[0]
        self.value = 0
        self.takeovers = 0
        self.way = Way(self)
        self.stepwise = ToldStepwise()
        self.clients = [
            StepwiseClient(f"s{n}", self.way, self.stepwise, first=n * FIRST_OF_CLIENT)
            for n in range(CLIENTS)
        ]
        self.is_hasty = seed % 3 == 0
        """Hosts take over from owners that live: no row is lost, though answers may be old."""

    def run(self) -> None:
        """Trouble for a while, then none: somebody owns the journals, and nothing is wrong."""
        try:
            for _ in range(STEPS):
                self._step()
            self._heal()
        finally:
            for host in self.hosts:
                host.end()

    def _step(self) -> None:
        self.wait(self.random.uniform(0, LEASE_S / 5), is_opened=False)
        for client in self.clients:
            if self.random.random() < 0.6:
                client.step()
        self.acting = host = self.random.choice(self.hosts)
        if not host.is_awake:
            return
        actions = {
            self._write: 9,
            self._read: 4,
            self._trouble: 3,
            self._sleep: 2,
            self._kill: 0.7,
            self._jump: 0.5,
            self._keep: 5,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        if host.broker is None:
            host.try_to_own(is_hasty=self.is_hasty)
            self.takeovers += host.broker is not None
        else:
            action(host)

    def wait(self, seconds: float, *, is_opened: bool = True) -> None:
        """Let time pass; hosts give signs of life, may open the journals, and hear of calls."""
        self.time.pass_s(seconds)
        for host in self.hosts:
            self.acting = host
            host.live()
            if is_opened and host.broker is None and host.is_awake and self.random.random() < 0.3:
                host.try_to_own(is_hasty=False)
                self.takeovers += host.broker is not None
        self.way.arrive()

    def _heal(self) -> None:
        self.is_hasty = False
        for host in self.hosts:
            host.store.trouble = Trouble()
        for number in range(HEALING_STEPS):
            self.time.pass_s(LEASE_S / 5)
            for host in self.hosts:
                self.acting = host
                host.live()
                if host.broker is None and host.is_awake:
                    host.try_to_own(is_hasty=False)
                    self.takeovers += host.broker is not None
                if host.is_awake and number > HEALING_STEPS - 5:
                    for action in (self._write, self._read):
                        if host.broker is not None:
                            action(host)
        owners = [host for host in self.hosts if host.broker is not None]
        if not owners or self.value not in self.told.acknowledged:
            raise Wrong("nobody could write in the end")
        self._end_stepwise()
        owner = max(owners, key=lambda host: host.broker.epoch if host.broker else 0)
        self.acting = owner
        self._read(owner, is_end=True)

    def _end_stepwise(self) -> None:
        """The next life of each producer ends what is open; what is on its way comes too late."""
        self.way.is_calm = True
        for client in self.clients:
            client.open().close()
        while self.way.on_it:
            self.wait(LEASE_S / 5)

    def _write(self, host: Host) -> None:
        assert host.broker is not None
        assert host.life is not None
        self.value += 1
        value, rows = self.value, self.random.randint(1, ROWS_MAX)
        self.told.rows[value] = rows
        try:
            host.life.check()
            names = {journal.name for journal in host.broker.list()}
            for name in JOURNALS:
                if name not in names:
                    host.broker.create(name, SCHEMA)
            done = publish(host.broker, {name: column([value] * rows) for name in JOURNALS})
        except OwnerReplaced:
            self.told.refused.add(value)
            host.end()
        except BrokerStopped:
            host.end()  # Whether it was saved is not known.
        except MillraceError:
            self.told.refused.add(value)
        else:
            a, b = (done.appended[name].first_offset for name in JOURNALS)
            self.told.acknowledged[value] = (a, b)

    def _read(self, host: Host, *, is_end: bool = False) -> None:
        assert host.broker is not None
        assert host.life is not None
        try:
            host.life.check()
            names = {journal.name for journal in host.broker.list()}
            everything = {
                name: self._rows(host, name) if name in names else []
                for name in (*JOURNALS, *STEPWISE)
            }
        except BrokerStopped:
            host.end()
        except MillraceError:
            return
        else:
            found = {name: everything.pop(name) for name in JOURNALS}
            self.told.check(found, is_recent=not self.is_hasty)
            self.stepwise.check(everything, is_end=is_end)

    def _rows(self, host: Host, name: str) -> list[tuple[int, int]]:
        assert host.broker is not None
        at = host.broker.start_offset(name)
        found: list[tuple[int, int]] = []
        while True:
            fetched = host.broker.read(name, at)
            if fetched.next_offset == at:
                return found
            table = fetched.stored()
            found += zip(table["_mr_offset"].to_pylist(), table["x"].to_pylist(), strict=True)
            at = fetched.next_offset

    def _trouble(self, host: Host) -> None:
        chance = self.random.random
        host.store.trouble = self.random.choice(
            (
                Trouble(),
                Trouble(cut=1.0),
                Trouble(cut=1.0),
                Trouble(cut=0.3 * chance()),
                Trouble(lost_answer=0.3 * chance(), late=0.3 * chance()),
                Trouble(late=0.7 * chance()),
            )
        )

    def _sleep(self, host: Host) -> None:
        host.sleeps_until = self.time.now + self.random.uniform(0, 6 * LEASE_S)

    def _kill(self, host: Host) -> None:
        host.end()

    def _jump(self, host: Host) -> None:
        host.wall_jump_s = self.random.uniform(-1e6, 1e6)

    def _keep(self, host: Host) -> None:
        """Snapshots, trims and tidying."""
        assert host.broker is not None
        try:
            if self.random.random() < 0.25:
                host.broker.tidy()
            else:
                host.broker._log_ledger.make_snapshot()
        except BrokerStopped:
            host.end()
        except MillraceError:
            return


def run(seed: int, folder: Path) -> World:
    """One world; `Wrong` if something is."""
    world = World(seed, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner_life, "steady_s", lambda: world.acting.steady_s())  # noqa: PLW0108
        patch.setattr(store_log, "time", world.time)
        world.run()
    return world
