"""Brokers as processes see them that die at some publish, or whose answers are lost."""

from __future__ import annotations

from typing import Any

from millrace.errors import AgentUnreachable, MillraceError
from millrace.journal.broker import Broker
from millrace.journal.core.values import Publish, Published


class Killed(MillraceError):
    """The process is gone: nothing that it asks is heard any more."""


class Mortal:
    """A broker as seen by a process that dies at some publish, before or after it is done."""

    def __init__(self, broker: Broker, dies_at: int, *, after: bool, loses: int) -> None:
        self.broker, self.dies_at, self.after, self.loses = broker, dies_at, after, loses
        self.asked = 0
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the broker
        if self.is_dead:
            raise Killed("dead")
        return getattr(self.broker, name)

    def transaction(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as it is
        made = self.broker.transaction(*args, **more)
        made._broker = self
        return made

    def publish(self, request: Publish) -> Published:
        if self.is_dead:
            raise Killed("dead")
        self.asked += 1
        if self.asked == self.dies_at and not self.after:
            self.is_dead = True
            raise Killed("before it was done")
        done = self.broker.publish(request)
        if self.asked == self.dies_at:
            self.is_dead = True
            raise Killed("after it was done")
        if self.loses and self.asked % self.loses == 0:
            raise AgentUnreachable("lost")
        return done
