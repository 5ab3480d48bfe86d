"""Keeps a worker's leases alive while it is in a call, and watches whether its run goes on."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import LeaseLost, MillraceError
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.metrics.process_metrics import LEASES_LOST
from millrace.wakeup import WakeUp, WorkerThread, join

_LOG: Final = logging.getLogger(__name__)


class Keeper:
    """A thread that renews leases. A lease that was not renewed in time counts as lost."""

    def __init__(self, broker: Broker, config: Config, run_lease: str, run_epoch: int) -> None:
        self._broker, self._config = broker, config
        self._run_lease, self._run_epoch = run_lease, run_epoch
        self._kept: dict[str, tuple[Lease, float]] = {}
        self._lock = threading.Lock()
        self._ended = WakeUp()
        self.run_is_over = threading.Event()
        """Set when the run's lease is gone, or another run has it."""
        self._thread = WorkerThread(self._run, "millrace-keep")
        self._thread.start()

    def hold(self, lease: Lease) -> None:
        """Keep a lease from now on."""
        with self._lock:
            self._kept[lease.name] = (lease, time.monotonic())

    def drop(self, lease: Lease) -> None:
        """Keep a lease no longer."""
        with self._lock:
            self._kept.pop(lease.name, None)

    def leases(self) -> list[Lease]:
        """The leases that are kept now."""
        with self._lock:
            return [lease for lease, _ in self._kept.values()]

    def has_lost(self, lease: Lease) -> bool:
        """Whether another worker may have the lease by now."""
        with self._lock:
            kept = self._kept.get(lease.name)
        return kept is None or time.monotonic() - kept[1] > ms(self._config.job_lease) / 1000

    def close(self) -> None:
        """Stop keeping."""
        self._ended.stop()
        join([self._thread], self._config.thread_stop_ms_max, "thread_stop_ms_max")

    def look(self) -> None:
        """Check whether the run goes on; an error of the broker does not end it."""
        try:
            leases = self._broker.leases(self._run_lease)
        except MillraceError:
            return
        own_run = (self._run_lease, self._run_epoch)
        if own_run not in [(lease.name, lease.epoch) for lease in leases]:
            self.run_is_over.set()

    def _run(self) -> None:
        every_s = min(ms(self._config.job_lease), ms(self._config.job_run_lease)) / 5000
        while self._ended.sleep(every_s):
            self.look()
            for lease in self.leases():
                if self._ended.is_stopped:
                    return
                self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        begun = time.monotonic()
        try:
            self._broker.renew(lease, lease_ms=ms(self._config.job_lease))
        except LeaseLost:
            self.drop(lease)
            LEASES_LOST.add(1, "unit")
            _LOG.warning("lease %s is lost: this worker was silent for too long", lease.name)
        except MillraceError:
            return  # Tried again; `has_lost` counts the time.
        else:
            with self._lock:
                if lease.name in self._kept:
                    self._kept[lease.name] = (lease, begun)
