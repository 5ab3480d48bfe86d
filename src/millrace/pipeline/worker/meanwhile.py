"""Work in a second thread while the first one is busy for long."""

from __future__ import annotations

from collections.abc import Callable

from millrace.config import Config
from millrace.durations import ms
from millrace.wakeup import WakeUp, WorkerThread, join

_LEASES_MAX = 10
"""The work asks the owner a few times, each for at most the time of a lease."""


class Meanwhile:
    """Begins its work when this much time has passed, unless `finish` is called before."""

    def __init__(self, work: Callable[[], None] | None, after_ms: int) -> None:
        """Without `work`, nothing is begun."""
        self._work, self._after_ms = work, after_ms
        self._is_over = WakeUp()
        self.error: BaseException | None = None
        """What the work raised; known after `finish`."""
        self._thread = WorkerThread(self._run, "millrace-ahead")
        if work is not None:
            self._thread.start()

    def finish(self, config: Config) -> None:
        """Begin nothing any more, and wait for work that has begun."""
        self._is_over.stop()
        join([self._thread], _LEASES_MAX * ms(config.job_lease), f"{_LEASES_MAX} times job_lease")

    def _run(self) -> None:
        assert self._work is not None
        if not self._is_over.sleep(self._after_ms / 1000):
            return
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self.error = error
