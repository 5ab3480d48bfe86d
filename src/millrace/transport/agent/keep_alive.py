"""Renews the leases of agents while this process needs them.

Invariant: an agent that does not answer holds up none of the others, which are renewed all the
same. The next fetch from that agent reports it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from millrace.ids import FolderId
from millrace.transport.agent.hosts_at_once import ask_hosts
from millrace.transport.agent.remote_outputs import Agents
from millrace.wakeup import WakeUp, WorkerThread, join

_TIMES_PER_LEASE = 3


class KeepAlive:
    """A thread that calls every known agent a few times per lease, until closed."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._folders: set[FolderId] = set()
        self._lock = threading.Lock()
        self._ended = WakeUp()
        self._thread: WorkerThread | None = None

    def add(self, folder: FolderId) -> None:
        """Keep the agent of this folder, too."""
        with self._lock:
            self._folders.add(folder)
            if self._thread is None and not self._ended.is_stopped:
                self._thread = WorkerThread(self._run, "millrace-keep-alive")
                self._thread.start()

    def close(self) -> None:
        """Stop renewing."""
        self._ended.stop()
        with self._lock:
            threads = [] if self._thread is None else [self._thread]
        join(threads, self._agents.config.thread_stop_ms_max, "thread_stop_ms_max")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        every_s = self._agents.config.agent_lease_ms / _TIMES_PER_LEASE / 1000
        while self._ended.sleep(every_s):
            with self._lock:
                folders = sorted(self._folders)
            ask_hosts(self._renew, folders)

    def _renew(self, folder: FolderId) -> None:
        if not self._ended.is_stopped:
            self._agents.renew(folder)
