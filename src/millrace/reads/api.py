"""What a user of coordinated reads touches: a session, its checkpoints and their rows."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

import pyarrow as pa

from millrace.config import Config
from millrace.errors import (
    LeaseHeld,
    LeaseLost,
    MillraceError,
    PeerGone,
    ReadsFailed,
    UserError,
)
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.routing import Extract
from millrace.reads.model.session_messages import ToSession
from millrace.reads.session.checkpoint_store import CheckpointStore
from millrace.reads.session.session_actor import Members, SessionActor
from millrace.reads.session.session_folder import fresh_folder, write_status
from millrace.reads.session.session_state import SessionState
from millrace.reads.session.session_status import OpenSince, SessionStatus, status_of
from millrace.reads.thread_members import ThreadMembers
from millrace.wakeup import WakeUp, WorkerThread, join

_TELL_MS: Final = 1_000
_LOOK_S: Final = 0.5
"""How often the session looks whether something stalls, and for new journals at the latest."""


class RunningMembers(Members, Protocol):
    """Members that somebody runs for a session."""

    def start(self) -> None:
        """Begin to work: every member can be reached, and every stream between them is open."""

    def used_bytes(self) -> list[int]:
        """What each queue takes on disk."""

    def close(self) -> None:
        """Stop them all and drop their files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersRequest:
    """The members that a session wants, and where they tell it what happens."""

    task: CoordinatedRead
    count: int
    epoch: int
    """Of the session's lease."""
    folder: str
    on_message: Callable[[int, ToSession], None]
    on_failure: Callable[[int | None, BaseException], None]


MakeMembers = Callable[[MembersRequest], RunningMembers]


def as_threads(broker: Broker, config: Config, extract: Extract | None = None) -> MakeMembers:
    """Members as threads of this process."""
    return lambda wanted: ThreadMembers(
        task=wanted.task,
        count=wanted.count,
        broker=broker,
        folder=wanted.folder,
        on_message=wanted.on_message,
        on_failure=wanted.on_failure,
        config=config,
        extract=extract,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session is to be opened."""

    members: int = 1
    last_commit: int | None = None
    read_through: int | None = None
    take_over: bool = False
    holder: str = ""


@dataclass(frozen=True, slots=True)
class SessionWorkspace:
    """Where sessions are opened: the journals, a folder for queues, limits, and members."""

    broker: Broker
    folder: str
    config: Config
    make_members: MakeMembers

    def open(self, task: CoordinatedRead, opening: SessionOptions) -> ReadSession:
        """Open a session of a task."""
        return ReadSession(self, task, opening)


class ReadSession:
    """An open session. Made by `Workspace.reads`.

    Example:
        >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders", key="cust_id")])
        >>> with ws.reads(task, members=2) as session:
        ...     checkpoint = session.next_checkpoint(timeout=60)
        ...     found = [session.read(member, checkpoint) for member in range(session.members)]
        ...     session.commit(checkpoint)
        >>> sum(table.num_rows for table in found)
        3
    """

    def __init__(
        self, place: SessionWorkspace, task: CoordinatedRead, opening: SessionOptions
    ) -> None:
        if opening.members < 1:
            raise UserError(f"{opening.members} members cannot read\n  to fix: give 1 or more")
        self.task = task
        self.members = opening.members
        self._broker = broker = place.broker
        self._config = config = place.config
        # For the thread that renews the lease, and the one that waits for journals to come and go.
        self._renewing, self._watching = WakeUp(), WakeUp()
        self._is_wanted = 0
        self._closing = threading.Lock()
        self._is_released = False
        self._open_since = OpenSince()
        self._told_ms = 0
        self._lease = _acquire(broker, task, opening, config)
        self._folder = fresh_folder(place.folder, task, self._lease)
        try:
            self._store = CheckpointStore(
                broker,
                task.name,
                self._lease,
                silent_ms=config.reads_silent_producer_ms,
                now_ms=_now_ms,
            )
            resumed = self._store.load(
                last_commit=opening.last_commit, read_through=opening.read_through
            )
            self._store.keep_task(task)
            state = SessionState(task, opening.members, resumed)
            wanted = MembersRequest(
                task=task,
                count=opening.members,
                epoch=self._lease.epoch,
                folder=self._folder,
                on_message=self._on_message,
                on_failure=self._on_failure,
            )
            self._members = place.make_members(wanted)
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

    def next_checkpoint(self, timeout: float | None = None) -> Checkpoint | None:
        """What has become visible since the last checkpoint; None if nothing did in time.

        It is stored before it is given out. After a crash, checkpoints that were given out and not
        committed come again first, exactly as they were.

        Args:
            timeout: how long to wait, in seconds; None: until there is something.

        Example:
            >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(task) as session:
            ...     session.next_checkpoint(timeout=60).number
            1
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._actor.changed:
            self._is_wanted += 1
            try:
                while True:
                    try:
                        found = self._actor.next_checkpoint()
                    except BaseException as error:  # It may be taken out and not be stored.
                        self._on_failure(None, error)
                        if isinstance(error, Exception):
                            self._actor.check()
                        raise
                    if found is not None:
                        return found
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return None
                    most_s = self._config.thread_sleep_ms_max / 1000
                    self._actor.changed.wait(most_s if left is None else min(left, most_s))
            finally:
                self._is_wanted -= 1

    def read(self, member: int, checkpoint: Checkpoint | int) -> pa.Table:
        """The rows that a checkpoint makes visible to a member.

        Rows of a journal come in its order; across journals those of higher priority come first,
        then those with the lower clock. The system columns are `_mr_tag`, `_mr_producer`,
        `_mr_clock` and `_mr_offset`. Reading again gives the same rows, until the checkpoint is
        committed.

        Example:
            >>> rows = session.read(0, checkpoint)
            >>> rows["amount"].to_pylist()
            [10, 20, 30]
        """
        tables = [pa.Table.from_batches([each]) for each in self.batches(member, checkpoint)]
        with self._actor.changed:
            columns = self._actor.state.schema().empty_table()
        return pa.concat_tables([columns, *tables], promote_options="default")

    def batches(self, member: int, checkpoint: Checkpoint | int) -> Iterator[pa.RecordBatch]:
        """The same as `read`, a batch at a time.

        Example:
            >>> sum(batch.num_rows for batch in session.batches(0, checkpoint))
            3
        """
        return self._actor.read(member, _number(checkpoint))

    def commit(self, checkpoint: Checkpoint | int) -> None:
        """Everything up to this checkpoint is done: it is never shown again, and disk is freed.

        Example:
            >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(task) as session:
            ...     session.commit(session.next_checkpoint(timeout=60))
            ...     session.next_checkpoint(timeout=0) is None
            True
        """
        try:
            self._actor.commit(_number(checkpoint))
        except LeaseLost as error:
            self._on_failure(None, error)
            self._actor.check()

    def release(self, producer: int | None = None) -> None:
        """Let transactions go that wait for another journal, of one producer or of all.

        Their rows appear as far as they are committed, each journal by itself.

        Example:
            >>> session.release()  # whatever waits for another journal is shown as far as it came
        """
        with self._actor.changed:
            self._actor.state.release(producer)
            self._actor.changed.notify_all()

    def abandon(self, producer: int) -> None:
        """Give up what a producer has open and will never end; it counts as rolled back.

        For producers that are dead: of one that goes on with the same transaction, the rest would
        be shown. A named producer is better opened again, which rolls back by itself.

        Example:
            >>> dead = ws.journals.producer()
            >>> done = dead.append("orders", rows)  # and it will never commit
            >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(task) as session:
            ...     checkpoint = session.next_checkpoint(timeout=60)
            ...     session.abandon(dead.id)
        """
        self._actor.abandon(producer)

    def status(self) -> SessionStatus:
        """How far journals are read, what is waited for, and what lies on disk.

        Example:
            >>> [journal.journal for journal in session.status().journals]
            ['shop/orders']
        """
        return self._status(with_journals=True)

    def close(self) -> None:
        """Stop reading. What was committed stays; what was not is shown again next time.

        Any thread may close a session, also twice; its threads are gone then.

        Example:
            >>> task = mr.Task("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> session = ws.reads(task)
            >>> session.close()
        """
        self._renewing.stop()
        self._watching.stop()
        self._actor.fail(was_closed(self.task))
        with self._closing:
            try:
                self._members.close()
                join(self._threads, self._config.thread_stop_ms_max, "thread_stop_ms_max")
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)
                if not self._is_released:
                    self._give_back()
                    self._is_released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Inside.
    def _give_back(self) -> None:
        """Give the lease back; one that cannot be, as the owner is away, runs out by itself."""
        with contextlib.suppress(PeerGone):
            self._broker.release(self._lease)

    def _status(self, *, with_journals: bool) -> SessionStatus:
        used = self._members.used_bytes()  # Asks members, who may be elsewhere: without the lock.
        with self._actor.changed:
            self._actor.check()
            return status_of(
                self._actor.state,
                self._open_since,
                used,
                now_ms=_now_ms(),
                open_ms_max=self._config.reads_open_transaction_ms,
                with_journals=with_journals,
            )

    def _begin(self) -> None:
        """Open every stream, then have journals read; the first error ends it all."""
        try:
            self._members.start()
            self._version = self._actor.look(_now_ms())
            self._actor.begin()
        except BaseException:
            self._members.close()
            raise

    def _on_message(self, slice_: int, message: ToSession) -> None:
        self._actor.on_message(slice_, message, _now_ms())

    def _on_failure(self, member: int | None, error: BaseException) -> None:
        if FileNotFoundError in (type(error), type(error.__cause__)):
            error = self._why_gone(error)
        who = "the session" if member is None else f"member {member}"
        failure = ReadsFailed.kind_for(error)(
            f"the session of task {self.task.name} ended: {who} failed\n  "
            f"{type(error).__name__}: {error}\n  to fix: {_what_to_do(error)}"
        )
        failure.__cause__ = error
        self._actor.fail(error if isinstance(error, ReadsFailed) else failure)

    def _why_gone(self, error: BaseException) -> BaseException:
        """Whoever takes a task over removes the files of the session before: then say that."""
        try:
            self._broker.renew(self._lease, lease_ms=self._config.reads_lease_ms)
        except LeaseLost as lost:
            return lost
        except MillraceError:
            pass
        return error

    def _guard(self, run: object) -> None:
        assert callable(run)
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - it ends the session, which tells it
            if not self._renewing.is_stopped:
                self._on_failure(None, error)

    def _renew(self) -> None:
        pause_s = self._config.reads_lease_ms / 3000
        while self._renewing.sleep(pause_s):
            self._lease = self._broker.renew(self._lease, lease_ms=self._config.reads_lease_ms)
            self._store.renewed(self._lease)

    def _watch(self) -> None:
        while not self._watching.is_stopped:
            # Only the version is wanted: no journal has this prefix, so none is sent.
            seen = self._broker.watch(
                self._version, prefix="\0", timeout_s=_LOOK_S, stop=self._watching
            ).version
            if seen != self._version or self._actor.wants_journals:
                self._version = self._actor.look(_now_ms())
            with self._actor.changed:
                limit = self._config.reads_hint_wait_ms_max
                wanted = self._is_wanted > 0
                self._actor.state.check_stall(_now_ms(), limit, is_wanted=wanted)
                if wanted:
                    self._actor.relieve()
            self._tell()

    def _tell(self) -> None:
        """Write down how the session stands, for others to look at."""
        if _now_ms() - self._told_ms >= _TELL_MS:
            self._told_ms = _now_ms()
            # Each journal would take longer than a second to tell, where there are very many.
            status = self._status(with_journals=False)
            write_status(self._folder, status, _now_ms())


def was_closed(task: CoordinatedRead) -> ReadsFailed:
    """Word the error for calls of a session that was closed, by this or another thread."""
    return ReadsFailed(
        f"the session of task {task.name} was closed\n  found: a call after close()\n"
        "  to fix: open it again with ws.reads(task); it goes on from the last checkpoint"
    )


def _acquire(
    broker: Broker, task: CoordinatedRead, opening: SessionOptions, config: Config
) -> Lease:
    """The lease of a task: at once, when its holder has died, or by taking it over."""
    name = f"reads/{task.name}"
    holder = f"{opening.holder}:{secrets.token_hex(4)}"
    deadline = time.monotonic() + 2 * config.reads_lease_ms / 1000
    while True:
        try:
            return broker.acquire(name, holder, lease_ms=config.reads_lease_ms)
        except LeaseHeld as error:
            if opening.take_over:
                broker.fence(name)
            elif time.monotonic() > deadline:
                raise LeaseHeld(
                    f"task {task.name} is being read by another session\n  {error}\n"
                    "  to fix: close that one, or open with take_over=True, which ends it"
                ) from error
            else:
                time.sleep(0.2)


def _what_to_do(error: BaseException) -> str:
    if isinstance(error, LeaseLost):
        return (
            "another session took this task over; read it in one place at a time, or give each "
            "a task of its own name"
        )
    return "open it again; it goes on from the last checkpoint"


def _number(checkpoint: Checkpoint | int) -> CheckpointNumber:
    if isinstance(checkpoint, Checkpoint):
        return checkpoint.number
    return CheckpointNumber(checkpoint)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
