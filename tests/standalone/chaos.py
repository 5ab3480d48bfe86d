"""Kills parts of a cluster and its application, one after the other, as a seed says."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from tests.cluster.job_kit import wait_until
from tests.standalone.apps import Application
from tests.standalone.cluster import Host
from tests.standalone.network import Network
from tests.standalone.session import SLOTS


class Kill(StrEnum):
    """What is killed."""

    EXECUTOR = "executor"
    HOST = "host"
    """A worker and everything beside it; another one is started there after a while."""
    DRIVER = "driver"
    LINK = "link"
    """A host that lives and is not reached, for a while; only where the network is a test's own."""


EACH_TWICE: Final = (Kill.EXECUTOR, Kill.HOST, Kill.DRIVER) * 2
_DOWN_S: Final = (0.0, 4.0)
_CUT_S: Final = (1.0, 30.0)


def seeds() -> range:
    """The seeds of the long form."""
    first = int(os.environ.get("MILLRACE_CLUSTER_FIRST", "0"))
    return range(first, first + int(os.environ.get("MILLRACE_CLUSTER_SEEDS", "1")))


class Chaos:
    """Kills what belongs to an application while it works."""

    def __init__(self, app: Application, seed: int, network: Network | None = None) -> None:
        self.network = network
        self.app, self.cluster = app, app.cluster
        self.random = random.Random(seed)  # noqa: S311 - a seed replays it
        self.done: list[str] = []
        """What was killed, and when."""
        self._returning: list[threading.Timer] = []

    def __enter__(self) -> Self:
        """Start the application."""
        self.app.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the cluster as it was, for the next one."""
        self.close()
        if error is not None:
            error.add_note(f"killed: {', '.join(self.done)}\nsaid: {self.app.said()}")
        self.app.kill()

    def run(self, kills: Sequence[Kill], *, every: int) -> None:
        """Kill these in some order, each after `every` or so more of progress; then let it end."""
        order = self.random.sample(list(kills), len(kills))
        with self:
            for kill in order:
                goal = self.app.progress() + self.random.randint(every // 3, 2 * every)
                if not self.app.wait_for(goal):
                    break
                self.kill(kill)
            self.app.finish()

    def kill(self, kill: Kill) -> None:
        """Kill one of a kind, now."""
        at = f"at {self.app.progress()}"
        match kill:
            case Kill.DRIVER:
                self.app.workers_lost += SLOTS
                self.app.kill()
                self.app.start()
            case Kill.EXECUTOR:
                self.app.workers_lost += 1
                wait_until(lambda: any(host.executors() for host in self.cluster.hosts))
                there = [host for host in self.cluster.hosts if host.executors()]
                at += f" on {self._choose(there).number}"
            case Kill.HOST:
                host = self.random.choice(self.cluster.hosts)
                self.kill_host(host)
                at += f" on {host.number}"
            case Kill.LINK:
                self.app.workers_lost += 1
                self.close()
                assert self.network is not None, "its own network"
                address, off = self.random.choice(self.cluster.hosts).address, self.network.cut_off
                off.add(address)
                at += f" to {address} for {self._later(lambda: off.discard(address), _CUT_S):.0f} s"
        self.done.append(f"{kill} {at}")

    def kill_host(self, host: Host) -> None:
        """Kill a host, and start it again after a while."""
        self.close()  # One at a time.
        self.app.workers_lost += 1
        host.kill()
        self._later(host.start, _DOWN_S)

    def close(self) -> None:
        """Have all hosts and links back."""
        for timer in self._returning:
            timer.join()
        self._returning.clear()

    def _later(self, mend: Callable[[], None], after_s: tuple[float, float]) -> float:
        pause_s = self.random.uniform(*after_s)
        timer = threading.Timer(pause_s, mend)
        timer.start()
        self._returning.append(timer)
        return pause_s

    def _choose(self, hosts: Sequence[Host]) -> Host:
        host = self.random.choice(hosts)
        host.kill_executor()
        return host
