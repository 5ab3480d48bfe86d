"""Lets a worker's calls pass as fast as the limits of their step allow, over all workers.

A thread reserves the next block of calls in the step's pace journal while calls of the last one are
made, so that no call waits for the journal. For a step without limits it looks now and then whether
another worker has met a busy provider, and tells the others of its own.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from millrace.config import Config
from millrace.errors import Conflict, JournalUnknown, Retriable
from millrace.journal.broker import Broker
from millrace.pipeline.core import hops
from millrace.pipeline.core.call_outcomes import CallOutcome
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.paid import pace
from millrace.pipeline.paid.limits_and_budget import Limits
from millrace.pipeline.paid.pace import PaceRow, Permits
from millrace.pipeline.worker.turn import LeasedUnit, now_us
from millrace.wakeup import WakeUp, WorkerThread, join

_KEPT_ROWS: Final = 1000
_LOOK_S: Final = 1.0
"""How often a worker without limits looks for what others have found."""


class CallPace:
    """The permits of one turn. Any thread may ask."""

    def __init__(self, broker: Broker, config: Config, journal: str, limits: Limits | None) -> None:
        self._broker, self._config, self._journal = broker, config, journal
        self._permits = Permits(limits)
        self._lock = threading.Lock()
        self._wanted = WakeUp()
        self._is_wanted = False
        self._error: BaseException | None = None
        self._reserved = 0
        self._thread = WorkerThread(self._run, "millrace-pace")
        self._thread.start()

    def wait_s(self) -> float:
        """Take the right to make a call: 0, or how long to wait before it is asked for again."""
        if self._error is not None:
            raise self._error
        with self._lock:
            wait_us = self._permits.take(now_us())
            self._ask()
        return 0.0 if wait_us is None else wait_us / 1_000_000

    def on_called(self, outcome: CallOutcome) -> None:
        """A call has ended."""
        permits, noted = self._permits, outcome.noted
        with self._lock:
            if outcome.refused_s is not None:
                permits.on_allowed(noted.allowed, now_us())
                permits.on_refused(now_us(), int(outcome.refused_s * 1_000_000))
                self._ask()
            else:
                permits.on_called(noted.spend.tokens, now_us(), allowed=noted.allowed)

    def _ask(self) -> None:
        """Have the thread append a row, if it is time for one."""
        if self._permits.needs_more(now_us()):
            self._is_wanted = True
            self._wanted.ring()

    def close(self) -> None:
        """Reserve nothing more."""
        self._wanted.stop()
        join([self._thread], self._config.thread_stop_ms_max, "thread_stop_ms_max")

    def _run(self) -> None:
        try:
            while self._wanted.sleep(_LOOK_S):
                if self._permits.is_free:
                    self._look()
                while self._is_wanted and not self._wanted.is_stopped:
                    self._is_wanted = False
                    patiently(self._reserve, self._config)
        except BaseException as error:  # noqa: BLE001 - raised where calls are made
            self._error = error

    def _look(self) -> None:
        """Learn what other workers have found."""
        with contextlib.suppress(Retriable):
            last, _ = self._last()
            with self._lock:
                self._permits.on_look(last, now_us())

    def _last(self) -> tuple[PaceRow, int]:
        """The last row and the end of the journal; a step without limits has one when needed."""
        try:
            known, end = last_row(self._broker, self._journal)
        except JournalUnknown:
            return PaceRow(), 0
        return PaceRow() if known is None else pace.from_row(known), end

    def _reserve(self) -> None:
        while not self._wanted.is_stopped:
            last, end = self._last()
            with self._lock:
                now = now_us()
                row = self._permits.next_row(last, now)
            try:
                with self._broker.transaction() as t:
                    t.append(self._journal, pace.to_rows(row), expected=end)
            except JournalUnknown:
                self._broker.create(self._journal, pace.PACE_SCHEMA)
                continue
            except Conflict:
                continue  # Another worker was first.
            with self._lock:
                self._permits.on_reserved(last, row, now)
            self._reserved += 1
            if self._reserved % _KEPT_ROWS == 0:
                self._broker.truncate_before(self._journal, end)
            return


def pace_of(unit: LeasedUnit, step: Map | FunctionSink, stack: contextlib.ExitStack) -> CallPace:
    """The pace of a step's calls."""
    journal = hops.pace_journal(unit.hop.job, unit.hop.name)
    pace = CallPace(unit.broker, unit.config, journal, step.options.limits)
    stack.callback(pace.close)
    return pace
