"""How a joined process comes to use Kafka itself, and when it leaves that to the owner.

Invariant: a process that cannot reach the cluster asks the owner, and tries again later.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.config import Config
from millrace.errors import Retriable
from millrace.journal.core.read_limits import ReadLimits
from millrace.journal.core.row_bundles import ManyRows
from millrace.journal.core.values import KafkaPlace
from millrace.journal.direct_reads import SpotUnreadable

if TYPE_CHECKING:
    from millrace.journal.broker import Broker
    from millrace.journal.core.write_grants import GrantRequest, WriteGrant
    from millrace.journal.kafka.direct_producers import DirectProducers
    from millrace.journal.kafka.direct_topics import DirectTopics
    from millrace.journal.kafka.kafka_messages import HeldRows

Answer = TypeVar("Answer")
_PAUSE_S: Final = 30.0
"""For so long the owner does it after this process could not; it doubles with each time."""
_PAUSE_S_MAX: Final = 1_800.0
_log: Final = logging.getLogger(__name__)
_inherited: Final[list[object]] = []
"""Clients of a process that this one was forked from: to close them would wait for ever."""


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """What reads and writes the topics of one cluster."""

    topics: DirectTopics
    producers: DirectProducers

    def close(self) -> None:
        """Close consumers and producers."""
        self.topics.close()
        self.producers.close()


class KafkaAccess:
    """The clients of this process, for one cluster at a time; for many threads."""

    def __init__(self, config: Config, owner: Broker) -> None:
        self._config, self._owner = config, owner
        self._made: tuple[KafkaPlace, KafkaClients] | None = None
        self._not_before, self._pause_s = 0.0, _PAUSE_S
        self._lock = threading.Lock()
        _accesses.add(self)

    def at(self, place: KafkaPlace) -> KafkaClients | None:
        """The clients of a cluster; None if the owner is to do it."""
        made = self._made
        if made is not None and made[0] == place:
            return made[1] if time.monotonic() >= self._not_before else None
        with self._lock:
            if time.monotonic() < self._not_before:
                return None
            if self._made is None or self._made[0] != place:
                self._open(place)
            return None if self._made is None else self._made[1]

    def read(self, clients: KafkaClients, located: ManyRows, limits: ReadLimits) -> ManyRows:
        """The rows that the owner located; raises `SpotUnreadable` if it is to read them."""
        return self._tried(lambda: clients.topics.read(located, limits))

    def make(
        self, clients: KafkaClients, wanted: GrantRequest, held: Sequence[HeldRows]
    ) -> WriteGrant | None:
        """Make a transaction; None, or `SpotUnreadable`, if the owner is to get the rows."""
        return self._tried(lambda: clients.producers.make(wanted, held))

    def close(self) -> None:
        """Close the clients."""
        made, self._made = self._made, None
        if made is not None:
            made[1].close()

    def forked(self) -> object:
        """Begin anew in a child process; what its parent had."""
        made, self._made, self._lock = self._made, None, threading.Lock()
        return made

    def _tried(self, work: Callable[[], Answer]) -> Answer:
        try:
            answer = work()
        except SpotUnreadable as error:
            if isinstance(error.__cause__, Retriable):
                self._leave(error)
            raise
        self._pause_s = _PAUSE_S
        return answer

    def _open(self, place: KafkaPlace) -> None:
        self.close()
        try:
            topics = importlib.import_module("millrace.journal.kafka.direct_topics")
            producers = importlib.import_module("millrace.journal.kafka.direct_producers")
            clients = KafkaClients(
                topics.DirectTopics(place, self._config),
                producers.DirectProducers(place, self._config, self._owner),
            )
            self._made = (place, clients)
        except (ImportError, SpotUnreadable) as error:
            self._leave(error)

    def _leave(self, why: Exception) -> None:
        """Let the owner do it for a while."""
        _log.info("the owner uses Kafka for this process for %s s: %s", self._pause_s, why)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


_accesses: Final[weakref.WeakSet[KafkaAccess]] = weakref.WeakSet()


def _after_fork() -> None:
    _inherited.extend(access.forked() for access in _accesses)


os.register_at_fork(after_in_child=_after_fork)
