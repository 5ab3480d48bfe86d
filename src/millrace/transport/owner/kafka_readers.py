"""How a joined process comes to read Kafka itself, and when it leaves that to the owner.

Invariant: a process that cannot reach the cluster asks the owner, and tries again later.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from millrace.config import Config
from millrace.errors import Retriable
from millrace.journal.core.read_limits import ReadLimits
from millrace.journal.core.row_bundles import ManyRows
from millrace.journal.core.values import KafkaPlace
from millrace.journal.direct_reads import SpotUnreadable

if TYPE_CHECKING:
    from millrace.journal.kafka.direct_topics import DirectTopics

_PAUSE_S: Final = 30.0
"""For so long the owner reads after this process could not; it doubles with each time."""
_PAUSE_S_MAX: Final = 1_800.0
_log: Final = logging.getLogger(__name__)
_inherited: Final[list[object]] = []
"""Consumers of a process that this one was forked from: to close them would wait for ever."""


class KafkaReaders:
    """The reader of topics of this process, for one cluster at a time; for many threads."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._made: tuple[KafkaPlace, DirectTopics] | None = None
        self._not_before, self._pause_s = 0.0, _PAUSE_S
        self._lock = threading.Lock()
        _readers.add(self)

    def at(self, place: KafkaPlace) -> DirectTopics | None:
        """What reads the topics of a cluster; None if the owner is to read."""
        made = self._made
        if made is not None and made[0] == place:
            return made[1] if time.monotonic() >= self._not_before else None
        with self._lock:
            if time.monotonic() < self._not_before:
                return None
            if self._made is None or self._made[0] != place:
                self._open(place)
            return None if self._made is None else self._made[1]

    def read(self, topics: DirectTopics, located: ManyRows, limits: ReadLimits) -> ManyRows:
        """The rows that the owner located; raises `SpotUnreadable` if it is to read them."""
        try:
            rows = topics.read(located, limits)
        except SpotUnreadable as error:
            if isinstance(error.__cause__, Retriable):
                self._leave(error)
            raise
        self._pause_s = _PAUSE_S
        return rows

    def close(self) -> None:
        """Close the consumers."""
        made, self._made = self._made, None
        if made is not None:
            made[1].close()

    def forked(self) -> object:
        """Begin anew in a child process; what its parent had."""
        made, self._made, self._lock = self._made, None, threading.Lock()
        return made

    def _open(self, place: KafkaPlace) -> None:
        self.close()
        try:
            module = importlib.import_module("millrace.journal.kafka.direct_topics")
            self._made = (place, module.DirectTopics(place, self._config))
        except (ImportError, SpotUnreadable) as error:
            self._leave(error)

    def _leave(self, why: Exception) -> None:
        """Let the owner read for a while."""
        _log.info("the owner reads Kafka for this process for %s s: %s", self._pause_s, why)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


_readers: Final[weakref.WeakSet[KafkaReaders]] = weakref.WeakSet()


def _after_fork() -> None:
    _inherited.extend(readers.forked() for readers in _readers)


os.register_at_fork(after_in_child=_after_fork)
