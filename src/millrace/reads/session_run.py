"""One run of a session: from its lease to its close, or to the first failure.

A `ReadSession` holds one run at a time, and may open the next run when one has failed. Invariant:
when `close` has returned, the run's threads have ended, and its lease is given back or expires.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import (
    LeaseHeld,
    LeaseLost,
    MillraceError,
    PeerGone,
    ReadsFailed,
    UserError,
)
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import NO_JOURNAL
from millrace.journal.core.values import Lease
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.session_messages import ToSession
from millrace.reads.session.checkpoint_store import CheckpointStore
from millrace.reads.session.failed_reads import failure_kind
from millrace.reads.session.members_port import MakeMembers, MembersRequest
from millrace.reads.session.session_actor import SessionActor
from millrace.reads.session.session_folder import fresh_folder, write_status
from millrace.reads.session.session_state import Resumed, SessionState
from millrace.reads.session.session_status import OpenSince, SessionStatus, status_of
from millrace.wakeup import WakeUp, WorkerThread, join

READS_SILENT_PRODUCER_MS: Final = 2_592_000_000
"""A producer that was silent for longer is left out of checkpoints."""

_LOG: Final = logging.getLogger(__name__)
_STATUS_MS: Final = 1_000
"""How often a run writes its status to its folder, for other processes."""
_WATCH_S: Final = 0.5
"""How often a run looks for stalled transactions, and for new journals at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session is opened."""

    members: int = 1
    last_commit: int | None = None
    read_through: int | None = None
    take_over: bool = False
    restart: bool = False
    """Open the next run when one fails."""
    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    """The name of the lease's holder, for messages."""


@dataclass(frozen=True, slots=True)
class SessionWorkspace:
    """What a session works with: the journals, a folder for queues, limits, and members."""

    broker: Broker
    folder: str
    config: Config
    make_members: MakeMembers
    make_frame: Callable[[pa.Table], Any] | None = None
    """Makes a Spark DataFrame of a table, where there is a Spark session."""


class SessionRun:
    """A session that reads, until it fails or is closed. Any thread may call it."""

    def __init__(
        self, workspace: SessionWorkspace, read: CoordinatedRead, options: SessionOptions
    ) -> None:
        if options.members < 1:
            raise UserError(f"{options.members} members cannot read\n  to fix: give 1 or more")
        self.coordinated_read = read
        self._broker = broker = workspace.broker
        self._config = config = workspace.config
        # For the thread that renews the lease, and the one that waits for journals to come and go.
        self._renewing, self._watching = WakeUp(), WakeUp()
        self._waiting_callers = 0
        self._closing = threading.Lock()
        self._is_released = False
        self._open_since = OpenSince()
        self._status_written_ms = 0
        self._lease = _acquire(broker, read, options, config)
        self._folder = fresh_folder(workspace.folder, read, self._lease)
        try:
            self._store = self._open_store()
            resumed = self._resume(options)
            state = SessionState(read, options.members, resumed)
            request = MembersRequest(
                read=read,
                count=options.members,
                epoch=self._lease.epoch,
                folder=self._folder,
                on_message=self._on_message,
                on_failure=self.fail,
            )
            self._members = workspace.make_members(request)
            self._actor = SessionActor(state, self._members, self._store, broker)
            self._begin()
        except BaseException:
            self._give_back()
            raise
        self._threads = [
            WorkerThread(partial(self._guard, run), name)
            for run, name in ((self._renew, "reads-lease"), (self._watch, "reads-watch"))
        ]
        for thread in self._threads:
            thread.start()

    def next_checkpoint(self, deadline: float | None) -> Checkpoint | None:
        """The next checkpoint, stored; None if the deadline comes first."""
        with self._actor.changed:
            self._waiting_callers += 1
            try:
                while True:
                    try:
                        checkpoint = self._actor.next_checkpoint()
                    except BaseException as error:  # It may be chosen and not be stored.
                        self.fail(None, error)
                        if isinstance(error, Exception):
                            self._actor.check()
                        raise
                    if checkpoint is not None:
                        return checkpoint
                    self._actor.store_due_commit()
                    left_s = None if deadline is None else deadline - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        return None
                    pause_s = self._config.thread_sleep_ms_max / 1000
                    self._actor.changed.wait(pause_s if left_s is None else min(left_s, pause_s))
            finally:
                self._waiting_callers -= 1

    def schema(self) -> pa.Schema:
        """The columns of the rows, as far as journals are known."""
        with self._actor.changed:
            return self._actor.state.schema()

    def batches(self, member: int, number: CheckpointNumber) -> Iterator[pa.RecordBatch]:
        """The rows that a checkpoint makes visible to a member, in order."""
        return self._actor.read(member, number)

    def commit(self, number: CheckpointNumber, *, with_next: bool = False) -> None:
        """Everything up to a checkpoint is processed; `with_next`: store that with the next one."""
        try:
            if with_next:
                self._actor.commit_with_next(number)
            else:
                self._actor.commit(number)
        except LeaseLost as error:
            self.fail(None, error)
            self._actor.check()

    def release(self, producer: int | None) -> None:
        """Show transactions that wait for another journal as far as they are committed."""
        self._actor.release(producer)

    def abandon(self, producer: int) -> None:
        """Count the open transaction of a producer as rolled back."""
        self._actor.abandon(producer)

    def status(self, *, with_journals: bool = True) -> SessionStatus:
        """How far journals are read, which transactions wait, and the queues' disk."""
        usage = self._members.usage()  # Calls members, maybe on other hosts: without the lock.
        with self._actor.changed:
            self._actor.check()
            return status_of(
                self._actor.state,
                self._open_since,
                usage,
                now_ms=_now_ms(),
                open_ms_max=self._config.reads_open_transaction_ms,
                with_journals=with_journals,
            )

    def fail(self, member: int | None, error: BaseException) -> None:
        """End the run with an error of a member, or of the session itself."""
        if FileNotFoundError in (type(error), type(error.__cause__)):
            error = self._why_gone(error)
        part = "the session" if member is None else f"member {member}"
        failure = failure_kind(error)(
            f"the session of coordinated read {self.coordinated_read.name} ended: {part} failed\n  "
            f"{type(error).__name__}: {error}\n  to fix: {_what_to_do(error)}"
        )
        failure.__cause__ = error
        if member is not None and not self._renewing.is_stopped:
            _LOG.info("%s lost %s: %s", self.coordinated_read.name, part, error)
        self._actor.fail(error if isinstance(error, ReadsFailed) else failure)

    def close(self) -> None:
        """Stop reading, and wait for the threads to end. Any thread may close a run, also twice."""
        with contextlib.suppress(MillraceError):  # What is not stored comes again.
            self._actor.store_due_commit()
        self._renewing.stop()
        self._watching.stop()
        self._actor.fail(was_closed(self.coordinated_read))
        with self._closing:
            try:
                self._members.close()
                join(self._threads, self._config.thread_stop_ms_max, "thread_stop_ms_max")
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)
                if not self._is_released:
                    self._give_back()
                    self._is_released = True

    # Inside.
    def _open_store(self) -> CheckpointStore:
        return CheckpointStore(
            self._broker,
            self.coordinated_read.name,
            self._lease,
            silent_ms=READS_SILENT_PRODUCER_MS,
            now_ms=_now_ms,
        )

    def _resume(self, options: SessionOptions) -> Resumed:
        """Load the state that the session begins with, and store the read's definition."""
        resumed = self._store.load(
            last_commit=options.last_commit, read_through=options.read_through
        )
        self._store.keep_definition(self.coordinated_read)
        _LOG.info(
            "%s resumes after checkpoint %d, %d to be replayed",
            self.coordinated_read.name,
            resumed.committed.number,
            len(resumed.prepared),
        )
        return resumed

    def _give_back(self) -> None:
        """Give the lease back; if the owner cannot be reached, the lease expires."""
        with contextlib.suppress(PeerGone):
            self._broker.release(self._lease)

    def _begin(self) -> None:
        """Open every stream, then start to read journals; the first error ends it all."""
        try:
            self._members.start()
            self._version = self._actor.list_journals(_now_ms())
            self._actor.begin()
        except BaseException:
            self._members.close()
            raise

    def _on_message(self, slice_: int, message: ToSession) -> None:
        self._actor.on_message(slice_, message, _now_ms())

    def _why_gone(self, error: BaseException) -> BaseException:
        """A session that takes a read over removes the files of the one before: then say that."""
        try:
            self._broker.renew(self._lease, lease_ms=ms(self._config.reads_lease))
        except LeaseLost as lost:
            return lost
        except MillraceError:
            pass
        return error

    def _guard(self, run: object) -> None:
        assert callable(run)
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - it ends the session, which raises it
            if not self._renewing.is_stopped:
                self.fail(None, error)

    def _renew(self) -> None:
        pause_s = ms(self._config.reads_lease) / 3000
        while self._renewing.sleep(pause_s):
            self._lease = self._broker.renew(self._lease, lease_ms=ms(self._config.reads_lease))
            self._store.renewed(self._lease)

    def _watch(self) -> None:
        while not self._watching.is_stopped:
            # Only the version is wanted.
            seen = self._broker.watch(
                self._version, prefix=NO_JOURNAL, timeout_s=_WATCH_S, stop=self._watching
            ).version
            if seen != self._version or self._actor.needs_journals:
                self._version = self._actor.list_journals(_now_ms(), self._version)
            with self._actor.changed:
                hint_wait_ms = ms(self._config.reads_hint_wait)
                is_wanted = self._waiting_callers > 0
                self._actor.tick(_now_ms(), hint_wait_ms=hint_wait_ms, is_wanted=is_wanted)
            self._save_status()

    def _save_status(self) -> None:
        """Write the status to the folder now and then, for other processes."""
        if _now_ms() - self._status_written_ms >= _STATUS_MS:
            self._status_written_ms = _now_ms()
            # Listing each journal would take longer than a second, where there are very many.
            write_status(self._folder, self.status(with_journals=False), _now_ms())


def was_closed(read: CoordinatedRead) -> ReadsFailed:
    """Word the error for calls of a session that was closed, by this or another thread."""
    return ReadsFailed(
        f"the session of coordinated read {read.name} was closed\n  found: a call after close()\n"
        "  to fix: open it again with ws.reads(read); it goes on from the last checkpoint"
    )


def _acquire(
    broker: Broker, read: CoordinatedRead, options: SessionOptions, config: Config
) -> Lease:
    """The lease of a coordinated read: at once, when its holder has died, or by taking it over."""
    name = f"reads/{read.name}"
    holder = f"{options.holder}:{secrets.token_hex(4)}"
    deadline = time.monotonic() + 2 * ms(config.reads_lease) / 1000
    while True:
        try:
            return broker.acquire(name, holder, lease_ms=ms(config.reads_lease))
        except LeaseHeld as error:
            if options.take_over:
                broker.fence(name)
            elif time.monotonic() > deadline:
                raise LeaseHeld(
                    f"coordinated read {read.name} is being read by another session\n  {error}\n"
                    "  to fix: close that one, or open with take_over=True, which ends it"
                ) from error
            else:
                time.sleep(0.2)


def _what_to_do(error: BaseException) -> str:
    if isinstance(error, LeaseLost):
        return (
            "another session took this coordinated read over; keep one session open at a time, "
            "or give each a name of its own"
        )
    return "open it again; it goes on from the last checkpoint"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
