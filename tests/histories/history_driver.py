"""Runs a history from a seed: real processes, of which some are killed, stopped or cut off."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.histories.history_checker import problems
from tests.histories.history_children import (
    CONFIG,
    COPY,
    GROUP,
    JOURNALS,
    SCHEMA,
    SOURCE,
    STEPWISE,
    Scene,
    copier,
    copy_some,
    host,
    producer,
    reader,
    values_of,
    writer,
)
from tests.histories.history_places import LedgerPlace

import millrace as mr
from millrace.durations import ms
from millrace.errors import MillraceError
from millrace.faults import VARIABLE
from millrace.testing.fault_injection import POINTS
from millrace.workspace import runtime_of

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["__main__", "tests.histories.history_children", "millrace.workspace", "pandas"]
)
"""pandas, as pyarrow imports it where it finds it, with the first rows of a process."""
END_S = 120.0
"""Longer than any process takes to end on a busy machine."""
CLIENT_POINTS = tuple(p for p in POINTS if p.startswith(("direct.", "producer.", "kafka.")))
HOST_POINTS = tuple(
    p
    for p in POINTS
    if p.startswith(("journal.", "ledger.", "owner.", "bucket.create", "kafka.publish."))
)
"""Points that some hosts never pass are no harm."""


@dataclass
class Actor:
    """A process that is started again when it was killed."""

    scene: Scene
    who: str
    work: Callable[..., None]
    number: int | None = None
    life: int = 0
    process: ForkServerProcess | None = None

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.scene.fault_file(self.who))
        given = () if self.number is None else (self.number, self.life)
        self.process = FORK.Process(target=self.work, args=(self.scene, self.who, *given))
        self.process.start()
        self.life += 1

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.join()

    def join(self) -> None:
        assert self.process is not None
        self.process.join(END_S)
        assert self.process.exitcode is not None, f"{self.who} does not end"
        assert self.process.exitcode in (0, -signal.SIGKILL), f"{self.who} ended by itself"

    def arm(self, point: str) -> None:
        """Let it die at a point, if it comes there."""
        path = Path(self.scene.fault_file(self.who))
        path.with_suffix(".new").write_text(point)
        path.with_suffix(".new").rename(path)


@dataclass
class Run:
    """One history."""

    place: LedgerPlace
    scene: Scene
    chance: random.Random
    hosts: list[Actor] = field(default_factory=list)
    clients: list[Actor] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """What was done to whom, for the report of a failure."""

    @property
    def actors(self) -> list[Actor]:
        return [*self.hosts, *self.clients]

    def harm(self) -> None:
        kinds = [self.kill_owner, self.stop_owner, self.arm_host, self.kill_client, self.arm_client]
        kinds += [self.harm_server, self.harm_server] if self.place.harms else []
        self.chance.choice(kinds)()

    def owner(self) -> Actor:
        """The host that owns the journals, as far as can be seen."""
        with contextlib.suppress(MillraceError, OSError, ValueError):
            endpoint = self.scene.where.owner()
            for host_ in self.hosts:
                if endpoint is not None and host_.process and host_.process.pid == endpoint.pid:
                    return host_
        return self.chance.choice(self.hosts)

    def kill_owner(self) -> None:
        chosen = self.owner()
        self.note("kill", chosen)
        chosen.kill()
        time.sleep(self.chance.choice((0, 0, 0.5)))
        chosen.start()

    def stop_owner(self) -> None:
        """Stop it for longer than its lease, then let it go on as if nothing had been."""
        chosen = self.owner()
        self.note("stop", chosen)
        chosen.signal(signal.SIGSTOP)
        lease_s = ms(CONFIG.owner_lease) / 1000
        time.sleep(0.3 if self.place.is_fenced_by_lock else lease_s * self.chance.choice((0.5, 2)))
        chosen.signal(signal.SIGCONT)

    def arm_host(self) -> None:
        self.arm(self.owner(), self.chance.choice(HOST_POINTS))

    def arm_client(self) -> None:
        self.arm(self.chance.choice(self.clients), self.chance.choice(CLIENT_POINTS))

    def arm(self, chosen: Actor, point: str) -> None:
        self.note(f"die at {point}", chosen)
        chosen.arm(point)
        until = time.monotonic() + 0.5
        assert chosen.process is not None
        while chosen.process.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
        if chosen.process.is_alive():
            Path(self.scene.fault_file(chosen.who)).unlink()
            self.done[-1] += " (did not come there)"
            time.sleep(0.05)

    def kill_client(self) -> None:
        chosen = self.chance.choice(self.clients)
        self.note("kill", chosen)
        chosen.kill()
        chosen.start()

    def harm_server(self) -> None:
        name = self.chance.choice(sorted(self.place.harms))
        self.done.append(f"{time.monotonic():.3f} {name} server")
        self.place.harms[name]()

    def note(self, what: str, actor: Actor) -> None:
        self.done.append(f"{time.monotonic():.3f} {what} {actor.who}/{actor.life - 1}")

    def get_on(self, count: int) -> None:
        """Wait until so many more requests of writers are acknowledged."""
        before, until = self._acked(), time.monotonic() + END_S
        while self._acked() < before + count:
            self.look_after()
            assert time.monotonic() < until, f"nobody gets on\n{self.report()}"
            time.sleep(0.02)

    def _acked(self) -> int:
        files = Path(self.scene.folder).glob("writer-*.history")
        return sum(file.read_bytes().count(b'"acked"') for file in files)

    def report(self) -> str:
        return "\n".join(f"  after: {line}" for line in self.done)

    def look_after(self) -> None:
        """Start those again that died at a point."""
        for actor in self.actors:
            if actor.process is not None and not actor.process.is_alive():
                code = actor.process.exitcode
                assert code == -signal.SIGKILL, f"{actor.who} ended by itself: {code}"
                actor.start()


@contextmanager
def _processes(run: Run) -> Iterator[None]:
    for actor in run.actors:
        actor.start()
    try:
        yield
    finally:
        for actor in run.actors:
            actor.signal(signal.SIGKILL)
        for actor in run.actors:
            if actor.process is not None:
                actor.process.join(END_S)


def run_history(place: LedgerPlace, folder: Path, seed: int, harms: int = 5) -> list[str]:
    """Run a history from a seed; what is wrong with it. What processes said stays in the folder."""
    folder.mkdir()
    chance = random.Random(seed)  # noqa: S311 - a seed replays what is done
    assert VARIABLE not in os.environ
    scene = _scene(place, folder, chance, seed)
    run = Run(place, scene, chance)
    run.hosts = [Actor(scene, f"host-{n}", host) for n in range(2)]
    kinds = (("writer", writer, 3), ("producer", producer, 2), ("copier", copier, 1))
    for name, work, count in (*kinds, ("reader", reader, 2)):
        for _ in range(count):
            number = len(run.clients)
            run.clients.append(Actor(scene, f"{name}-{number}", work, number))
    with _processes(run):
        for _ in range(harms):
            run.get_on(chance.randint(1, 15))
            run.harm()
        run.get_on(10)
        Path(scene.stop).touch()
        for actor in run.clients:
            actor.join()
        Path(scene.stop_hosts).touch()
        for actor in run.hosts:
            actor.join()
    events = _events(folder)
    events += _at_the_end(place)
    (folder / "events.json").write_text(json.dumps(events))
    found = problems(events)
    return [*found, run.report()] if found else []


def _scene(place: LedgerPlace, folder: Path, chance: random.Random, seed: int) -> Scene:
    os.environ.update(place.environment)
    with place.open(create=True) as ws:
        for name in JOURNALS:
            ws.journals.create(name, SCHEMA, place.labels)
        ws.journals.commit(GROUP, SOURCE, 0, expected=None)
        # Whoever owns them then is found by the file that it leaves.
        where = replace(runtime_of(ws).journal_address(), address=None)
    cuts: tuple[int | None, ...] = ()
    if chance.random() < 0.3:
        cuts = tuple(chance.choice((None, 3000, 20_000, 100_000)) for _ in range(30))
    return Scene(
        path=place.path,
        ledger=place.ledger,
        broker=place.broker,
        folder=str(folder),
        seed=seed,
        where=where,
        environment=dict(place.environment),
        cuts=cuts,
    )


def _events(folder: Path) -> list[dict[str, Any]]:
    """All that was written down; the last line of a killed process may be torn."""
    events = []
    for path in sorted(folder.glob("*.history")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    return events


def _at_the_end(place: LedgerPlace) -> list[dict[str, Any]]:
    """What a process finds that opens the workspace afterwards, and another one after it."""
    events: list[dict[str, Any]] = []
    with place.open() as ws:
        for number, _ in enumerate(STEPWISE):
            # The successors of the last producers end what they left open.
            ws.journals.producer(f"producer-{3 + number}").close()
        while copy_some(runtime_of(ws).joined_broker(), 1000):
            pass
        events += _finals(ws)
        offset = ws.journals.committed(GROUP, SOURCE)
        events.append({"event": "copied", "from": SOURCE, "to": COPY, "offset": offset})
    with place.open() as ws:
        # Everything that was only in memory is gone now.
        assert _finals(ws) == [event for event in events if event["event"] == "final"]
        checked = ws.verify()
        assert not checked.problems, checked.problems
    return events


def _finals(ws: mr.Workspace) -> list[dict[str, Any]]:
    events = []
    for name in JOURNALS:
        offsets: list[int] = []
        values: list[int] = []
        start = at = ws.journals.start_offset(name)
        while (fetched := ws.journals.read(name, at)).next_offset > at:
            some = values_of(fetched)
            offsets += some[0]
            values += some[1]
            at = fetched.next_offset
        events.append(
            {
                "event": "final",
                "journal": name,
                "start": start,
                "offsets": offsets,
                "values": values,
            }
        )
    return events
