"""The lease of a job's run: one process at a time holds it, and renews it while it lives.

Invariant: a process that lost the lease notices within the lease's time, and stops.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import LeaseHeld, LeaseLost, MillraceError, WorkspaceUnknown
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.metrics.process_metrics import LEASES_LOST
from millrace.pipeline.core import hops
from millrace.pipeline.run import lease_holders
from millrace.pipeline.run.interrupts import say
from millrace.pipeline.run.lease_holders import HolderLife, running

_LOG: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.1


def refuse_running(broker: Broker, job: str) -> None:
    """Raise at once if a process that is known to live runs a job."""
    try:
        lease = running(broker, job)
    except WorkspaceUnknown:
        return  # The run itself makes the workspace.
    if lease is None or lease.holder.startswith(lease_holders.REMOVAL):
        return
    if lease_holders.life_of(lease.holder) is HolderLife.ALIVE:
        raise _already_running(job, lease)


def _already_running(job: str, lease: Lease | None) -> LeaseHeld:
    return LeaseHeld(
        f"job {job!r} is being run already\n"
        f"  run by: {lease.holder if lease else 'somebody'}\n"
        "  to fix: wait for its end, or stop it there"
    )


class RunLease:
    """The lease of a run; its epoch is the run's number."""

    def __init__(
        self, broker: Broker, job: str, config: Config, stop: threading.Event, doing: str = ""
    ) -> None:
        self._broker, self._job, self._config = broker, job, config
        self._ended = threading.Event()
        self.lost: MillraceError | None = None
        """The reason why the lease is lost."""
        self.lease = self._take(stop, doing)
        lease_holders.keep(self.lease.holder)
        self._thread = threading.Thread(target=self._keep, name="millrace-run-lease", daemon=True)
        self._thread.start()

    @property
    def run(self) -> int:
        """The run's number."""
        return self.lease.epoch

    def check(self) -> None:
        """Raise if the lease is lost."""
        if self.lost is not None:
            raise self.lost

    def release(self) -> None:
        """Release the lease; all workers see then that the run is over."""
        self.let_go()
        self._broker.release(self.lease)

    def let_go(self) -> None:
        """Stop renewing the lease: it runs out by itself."""
        self._ended.set()
        lease_holders.let_go(self.lease.holder)

    def _take(self, stop: threading.Event, doing: str) -> Lease:
        """Take the lease. If its holder may be dead, say so and wait until the lease runs out."""
        name, lease_ms = hops.run_lease(self._job), ms(self._config.job_run_lease)
        holder = lease_holders.new_holder(doing)
        until = time.monotonic() + 2 * lease_ms / 1000
        last_expiry: int | None = None
        while True:
            try:
                lease = self._broker.acquire(name, holder, lease_ms=lease_ms)
            except LeaseHeld as error:
                current = running(self._broker, self._job)
                life = (
                    HolderLife.UNKNOWN if current is None else lease_holders.life_of(current.holder)
                )
                has_renewed = current is not None and last_expiry not in (
                    None,
                    current.expires_at_ms,
                )
                is_removal = current is not None and current.holder.startswith(
                    lease_holders.REMOVAL
                )
                is_run = not is_removal and (life is HolderLife.ALIVE or has_renewed)
                if is_run or stop.is_set() or time.monotonic() > until:
                    raise _already_running(self._job, current) from error
                if current is not None and last_expiry is None:
                    say(_waiting(self._job, current, life, lease_ms))
                last_expiry = None if current is None else current.expires_at_ms
                stop.wait(_POLL_S)
            else:
                if last_expiry is not None:
                    _LOG.info("job %s: run %d takes over", self._job, lease.epoch)
                return lease

    def _keep(self) -> None:
        try:
            self._renew()
        except Exception as error:  # noqa: BLE001 - raised by the run, which would not know of it
            self.lost = MillraceError(
                f"job {self._job!r}: the lease of run {self.run} is no longer renewed\n"
                f"  found: {type(error).__name__}: {error}\n"
                "  to fix: run it again to go on where it stopped"
            )

    def _renew(self) -> None:
        lease_ms = ms(self._config.job_run_lease)
        renewed = time.monotonic()
        while not self._ended.wait(lease_ms / 3000):
            try:
                self._broker.renew(self.lease, lease_ms=lease_ms)
                renewed = time.monotonic()
            except LeaseLost as error:
                if not self._ended.is_set():
                    LEASES_LOST.add(1, "run")
                    _LOG.warning("job %s: run %d was ended by somebody else", self._job, self.run)
                    self.lost = LeaseLost(
                        f"job {self._job!r}: run {self.run} was ended by somebody else\n"
                        f"  found: {error}\n  to fix: run it again to go on where it stopped"
                    )
                return
            except MillraceError as error:
                # Workers stop when it has run out, so there is no use in going on longer.
                if time.monotonic() - renewed > lease_ms / 1000:
                    self.lost = error
                    return


def _waiting(job: str, lease: Lease, life: HolderLife, lease_ms: int) -> str:
    """The message before a wait for the lease of a process that may be dead."""
    why = "that process is gone" if life is HolderLife.DEAD else "that process may be gone"
    if lease.holder.startswith(lease_holders.REMOVAL):
        why = "that is short"
    return (
        f"job {job!r} is held by {lease.holder}; {why}\n"
        f"  waiting until its lease runs out or is renewed, at most {2 * lease_ms / 1000:g} s "
        "(twice job_run_lease)"
    )
