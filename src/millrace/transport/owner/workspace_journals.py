"""The journals of an open workspace: one broker, made at its first use, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from millrace.config import Config
from millrace.journal.api import Journals
from millrace.transport.owner.election import own_or_join_later
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import OwnedWorkspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class WorkspaceJournals:
    """Opens the journals of a workspace. No owner is elected before the first call on them."""

    def __init__(
        self,
        workspace: Callable[[], OwnedWorkspace],
        config: Config,
        before: Callable[[bool], object],
        to_spark: Callable[[Mapping[str, Any]], DataFrame],
    ) -> None:
        """`before` is called before each call, with whether the call may change something."""
        self._workspace = workspace
        self._config = config
        self._before = before
        self._to_spark = to_spark
        self._opening = threading.Lock()
        self._opened: tuple[JoinedBroker, Journals] | None = None

    def broker(self) -> JoinedBroker:
        """The port, for the rest of the package."""
        return self._open()[0]

    def journals(self) -> Journals:
        """The calls that users need."""
        return self._open()[1]

    def close(self) -> None:
        """Close the journals. Their next use opens them again."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _open(self) -> tuple[JoinedBroker, Journals]:
        with self._opening:
            if self._opened is None:
                broker = own_or_join_later(self._workspace, self._config, self._before)
                self._opened = broker, Journals(broker, broker.follow, self._to_spark)
            return self._opened
