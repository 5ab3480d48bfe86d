"""The leases of a worker's units: taken one at a time, and given back while work goes on.

Where leases are far away, each is a round trip. So a worker stays with a unit for long, and leases
the next one while the last one is still being given back.
Invariant: a unit is worked on only under a lease that the keeper renews.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import LeaseHeld, MillraceError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.worker.lease_keeper import Keeper

JOB_TURN_SHARE: Final = 50
"""A turn is at least so many times as long as it takes to change to another unit."""

JOB_TURN_MS_MAX: Final = 30_000
"""A turn is not made longer than this for that reason."""

_CHANGE_COMMITS: Final = 4
"""To change to another unit: the last results, the release, the lease, the first intent."""
_RELEASE_S: Final = 0.02
_LATER: Final = 0.8
"""What a time counts after each later one, so that one quick answer does not count as near."""


class UnitLeases:
    """Takes and gives back leases. For one thread."""

    def __init__(self, broker: Broker, config: Config, holder: str) -> None:
        self._broker, self._config, self._holder = broker, config, holder
        self._releasing = ThreadPoolExecutor(1, thread_name_prefix="millrace-release")
        self._took_s = 0.0
        """How long it takes to take a lease."""

    @property
    def turn_ms_min(self) -> int:
        """The shortest turn that is worth it."""
        change_ms = _CHANGE_COMMITS * 1000 * self._took_s
        return min(JOB_TURN_MS_MAX, int(JOB_TURN_SHARE * change_ms))

    @contextlib.contextmanager
    def leased(self, name: str, slots: Sequence[str], keeper: Keeper) -> Iterator[Lease | None]:
        """Take the lease of a unit, and one of these slots if there are any; None if it is held."""
        with contextlib.ExitStack() as stack:
            is_free = not slots or any(self._take(slot, keeper, stack) for slot in slots)
            yield self._take(name, keeper, stack) if is_free else None

    def close(self) -> None:
        """Wait until all leases are given back."""
        self._releasing.shutdown()

    def _take(self, name: str, keeper: Keeper, stack: contextlib.ExitStack) -> Lease | None:
        lease_ms, begun = ms(self._config.job_lease), time.monotonic()
        fault("worker.lease.before")
        try:
            lease = patiently(
                lambda: self._broker.acquire(name, self._holder, lease_ms=lease_ms), self._config
            )
        except LeaseHeld:
            return None
        fault("worker.lease.after")
        self._took_s = max(time.monotonic() - begun, _LATER * self._took_s)
        keeper.hold(lease)
        stack.callback(self._give_back, lease, keeper)
        return lease

    def _give_back(self, lease: Lease, keeper: Keeper) -> None:
        keeper.drop(lease)
        released = self._releasing.submit(self._release, lease)
        if self._took_s < _RELEASE_S:
            wait([released], _RELEASE_S)

    def _release(self, lease: Lease) -> None:
        fault("worker.release.before")
        # One that cannot be given back runs out by itself.
        with contextlib.suppress(MillraceError):
            self._broker.release(lease)
        fault("worker.release.after")
