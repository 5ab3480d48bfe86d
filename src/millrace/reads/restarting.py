"""A session that is opened again when it fails, from its last checkpoint, with growing waits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

import pyarrow as pa

from millrace.config import Config
from millrace.errors import (
    HintsUnresolved,
    MillraceError,
    ReadsFailed,
    Retriable,
    SparkGone,
    UserError,
)
from millrace.reads.api import ReadSession, SessionOptions, SessionWorkspace, was_closed
from millrace.reads.model.checkpoint import Checkpoint
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.session.session_status import SessionStatus
from millrace.wakeup import WakeUp


class RestartingSession:
    """Has the calls of a session. `next_checkpoint` opens the next one if the last has failed.

    A checkpoint that was handed out and not committed comes again, exactly, from the next session.
    Errors that another try cannot cure are raised at once: those of input, transactions that never
    become whole, and a Spark session that is gone. Another thread may close it: a call that waits
    for a checkpoint raises `ReadsFailed`, and no session is opened after that.

    Example:
        >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders")])
        >>> with ws.reads(task, restart=True) as session:
        ...     checkpoint = session.next_checkpoint(timeout=60)
        ...     session.read(0, checkpoint).num_rows, session.restarts
        (3, 0)
    """

    def __init__(
        self,
        open_first: Callable[[], ReadSession],
        open_next: Callable[[], ReadSession],
        config: Config,
    ) -> None:
        self._open = open_next
        self._closing = WakeUp()
        self._lock = threading.Lock()
        """Held where the session changes: none is left open by a close at the same time."""
        self._wait_ms = config.reads_restart_wait_ms
        self._wait_ms_max = config.reads_restart_wait_ms_max
        self._failures = 0
        self.restarts = 0
        """How often a session was opened again."""
        self._session: ReadSession | None = open_first()
        self._task = self._session.task

    @property
    def members(self) -> int:
        """How many members the session has.

        Example:
            >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(task, members=2, restart=True) as session:
            ...     session.members
            2
        """
        return self._open_session().members

    def next_checkpoint(self, timeout: float | None = None) -> Checkpoint | None:
        """See `ReadSession.next_checkpoint`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                found = self._opened().next_checkpoint(left)
            except MillraceError as error:
                if self._closing.is_stopped:
                    raise was_closed(self._task) from error
                if not _is_curable(error):
                    raise
                # What cannot be given back now, as the owner is away, runs out by itself.
                with contextlib.suppress(Retriable):
                    self._drop()
                is_in_time = self._wait(deadline)
                self._check_open()
                if not is_in_time:
                    return None
            else:
                self._failures = 0
                return found

    def read(self, member: int, checkpoint: Checkpoint | int) -> pa.Table:
        """See `ReadSession.read`; raises if the session has failed."""
        return self._open_session().read(member, checkpoint)

    def batches(self, member: int, checkpoint: Checkpoint | int) -> Iterator[pa.RecordBatch]:
        """See `ReadSession.batches`; raises if the session has failed."""
        return self._open_session().batches(member, checkpoint)

    def commit(self, checkpoint: Checkpoint | int) -> None:
        """See `ReadSession.commit`; raises if the session has failed."""
        self._open_session().commit(checkpoint)

    def release(self, producer: int | None = None) -> None:
        """See `ReadSession.release`; raises if the session has failed."""
        self._open_session().release(producer)

    def abandon(self, producer: int) -> None:
        """See `ReadSession.abandon`; raises if the session has failed."""
        self._open_session().abandon(producer)

    def status(self) -> SessionStatus:
        """See `ReadSession.status`; raises if the session has failed."""
        return self._open_session().status()

    def close(self) -> None:
        """See `ReadSession.close`."""
        self._closing.stop()
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> ReadSession:
        """The session; opened now if the last one has failed."""
        session = self._session
        if session is not None:
            return session
        self._check_open()
        session = self._open()
        with self._lock:
            if not self._closing.is_stopped:
                self._session = session
                self.restarts += 1
                return session
        session.close()
        raise was_closed(self._task)

    def _check_open(self) -> None:
        if self._closing.is_stopped:
            raise was_closed(self._task)

    def _open_session(self) -> ReadSession:
        session = self._session
        if session is None:
            self._check_open()
            raise ReadsFailed(
                "the session has failed\n  to fix: ask for the next checkpoint, which opens the "
                "next session; what was not committed comes again"
            )
        return session

    def _drop(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _wait(self, deadline: float | None) -> bool:
        """Wait before the next try; False if the caller's time is over first."""
        pause_s = min(self._wait_ms * 2**self._failures, self._wait_ms_max) / 1000
        self._failures = min(self._failures + 1, 30)
        if deadline is not None and time.monotonic() + pause_s > deadline:
            self._closing.sleep(deadline - time.monotonic())
            return False
        self._closing.sleep(pause_s)
        return True


def restarting(
    place: SessionWorkspace, task: CoordinatedRead, opening: SessionOptions
) -> RestartingSession:
    """Open a session that is opened again when it fails."""
    again = replace(opening, last_commit=None, read_through=None, take_over=True)
    return RestartingSession(
        lambda: place.open(task, opening), lambda: place.open(task, again), place.config
    )


def _is_curable(error: BaseException) -> bool:
    """Whether the next session may do better."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError | HintsUnresolved | SparkGone):
            return False
        cause = cause.__cause__
    return True
