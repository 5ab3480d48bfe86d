"""What a user of coordinated reads holds: a session, its checkpoints and their rows."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from millrace.durations import Duration, seconds
from millrace.errors import (
    HintsUnresolved,
    MillraceError,
    ReadsFailed,
    Retriable,
    SparkGone,
    UserError,
)
from millrace.journal.core.row_format import CLOCK
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.session.session_status import SessionStatus
from millrace.reads.session_run import SessionOptions, SessionRun, SessionWorkspace, was_closed
from millrace.wakeup import WakeUp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG: Final = logging.getLogger(__name__)
_DOUBLINGS_MAX: Final = 30


class ReadSession:
    """An open session of a coordinated read. Made by `Workspace.reads`.

    A session that was opened with `restart=True` opens itself again when it fails, from its last
    checkpoint, with growing waits. `next_checkpoint` does this; other calls raise until then. A
    checkpoint that was handed out and not committed comes again, exactly. Errors that another try
    cannot cure are raised at once: wrong input, transactions that never become whole, and a Spark
    session that is gone.

    Any thread may close a session. A call that waits for a checkpoint then raises `ReadsFailed`.

    Example:
        >>> orders = mr.Binding(name="orders", prefix="orders", key="cust_id")
        >>> with ws.reads(mr.CoordinatedRead("totals", [orders]), members=2) as session:
        ...     checkpoint = session.next_checkpoint(timeout=60)
        ...     tables = [session.read(member, checkpoint) for member in range(session.members)]
        ...     session.commit(checkpoint)
        >>> sum(table.num_rows for table in tables)
        3
    """

    def __init__(
        self, workspace: SessionWorkspace, read: CoordinatedRead, options: SessionOptions
    ) -> None:
        self.coordinated_read = read
        self.members = options.members
        self.restarts = 0
        """How often the session was opened again."""
        self._workspace = workspace
        self._options = options
        self._closing = WakeUp()
        self._lock = threading.Lock()
        """Held where the run changes: a close at the same time leaves none open."""
        self._failures = 0
        self._run: SessionRun | None = SessionRun(workspace, read, options)
        _LOG.info("opened the session of %s with %d members", read.name, self.members)

    def next_checkpoint(self, timeout: Duration | None = None) -> Checkpoint | None:
        """What has become visible since the last checkpoint; None if nothing did in time.

        It is stored before it is given out. After a crash, checkpoints that were given out and not
        committed come again first, exactly as they were.

        Args:
            timeout: how long to wait: seconds, a timedelta, or text such as "10s"; None: until
                there is something.

        Example:
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(read) as session:
            ...     session.next_checkpoint(timeout=60).number
            1
        """
        deadline = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while True:
            try:
                checkpoint = self._opened_run().next_checkpoint(deadline)
            except MillraceError as error:
                if not self._prepare_restart(error, deadline):
                    return None
            else:
                self._failures = 0
                return checkpoint

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
        run = self._current_run()
        tables = [
            pa.Table.from_batches([batch]) for batch in run.batches(member, _number(checkpoint))
        ]
        return pa.concat_tables([run.schema().empty_table(), *tables], promote_options="default")

    def batches(self, member: int, checkpoint: Checkpoint | int) -> Iterator[pa.RecordBatch]:
        """The same as `read`, a batch at a time.

        Example:
            >>> sum(batch.num_rows for batch in session.batches(0, checkpoint))
            3
        """
        return self._current_run().batches(member, _number(checkpoint))

    def to_spark(self, checkpoint: Checkpoint | int) -> DataFrame:
        """The rows that a checkpoint makes visible, of all members, as a Spark DataFrame.

        The columns are those of `read`; `_mr_clock` is a long, as Spark has no unsigned numbers.
        The rows pass through this process.

        Example:
            >>> read = mr.CoordinatedRead("frames", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(read, members=2) as session:
            ...     checkpoint = session.next_checkpoint(timeout=60)
            ...     session.to_spark(checkpoint).count()
            3
        """
        make_frame = self._workspace.make_frame
        if make_frame is None:
            raise UserError(
                "a session inside Spark has no Spark session for to_spark()\n"
                "  to fix: open the session with Workspace.reads"
            )
        tables = [self.read(member, checkpoint) for member in range(self.members)]
        rows = pa.concat_tables(tables, promote_options="default")
        clocks = [chunk.view(pa.int64()) for chunk in rows[CLOCK].chunks]
        position = rows.schema.get_field_index(CLOCK)
        frame: DataFrame = make_frame(
            rows.set_column(position, CLOCK, pa.chunked_array(clocks, pa.int64()))
        )
        return frame

    def commit(self, checkpoint: Checkpoint | int, *, with_next: bool = False) -> None:
        """Everything up to this checkpoint is done: it is never shown again, and disk is freed.

        Args:
            checkpoint: the checkpoint, or its number.
            with_next: store this when the next checkpoint is asked for, in one write with it if it
                is there, or at the close. After a crash before that, this checkpoint comes again.

        Example:
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(read) as session:
            ...     session.commit(session.next_checkpoint(timeout=60))
            ...     session.next_checkpoint(timeout=0) is None
            True
        """
        self._current_run().commit(_number(checkpoint), with_next=with_next)

    def release(self, producer: int | None = None) -> None:
        """Let transactions go that wait for another journal, of one producer or of all.

        Their rows appear as far as they are committed, each journal by itself.

        Example:
            >>> session.release()  # transactions that wait are shown as far as they are committed
        """
        self._current_run().release(producer)

    def abandon(self, producer: int) -> None:
        """Give up what a producer has open and will never end; it counts as rolled back.

        For producers that are dead: of one that goes on with the same transaction, the rest would
        be shown. A named producer is better opened again, which rolls back by itself.

        Example:
            >>> dead = ws.journals.producer()
            >>> done = dead.append("orders", rows)  # and it will never commit
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> with ws.reads(read) as session:
            ...     checkpoint = session.next_checkpoint(timeout=60)
            ...     session.abandon(dead.id)
        """
        self._current_run().abandon(producer)

    def status(self) -> SessionStatus:
        """How far journals are read, which transactions wait, and how much disk queues take.

        Example:
            >>> [journal.journal for journal in session.status().journals]
            ['shop/orders']
        """
        return self._current_run().status()

    def close(self) -> None:
        """Stop reading. What was committed stays; what was not is shown again next time.

        Any thread may close a session, also twice; its threads are gone then.

        Example:
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> session = ws.reads(read)
            >>> session.close()
        """
        self._closing.stop()
        with self._lock:
            run = self._run
        if run is not None:
            run.close()
            _LOG.info("closed the session of %s", self.coordinated_read.name)

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
    def _current_run(self) -> SessionRun:
        run = self._run
        if run is None:
            self._check_open()
            raise ReadsFailed(
                "the session has failed\n  to fix: ask for the next checkpoint, which opens the "
                "session again; what was not committed comes again"
            )
        return run

    def _opened_run(self) -> SessionRun:
        """The run; opened now if the last one has failed."""
        run = self._run
        if run is not None:
            return run
        self._check_open()
        options = replace(self._options, last_commit=None, read_through=None, take_over=True)
        run = SessionRun(self._workspace, self.coordinated_read, options)
        with self._lock:
            if not self._closing.is_stopped:
                self._run = run
                self.restarts += 1
                _LOG.info("opened the session of %s again", self.coordinated_read.name)
                return run
        run.close()
        raise was_closed(self.coordinated_read)

    def _check_open(self) -> None:
        if self._closing.is_stopped:
            raise was_closed(self.coordinated_read)

    def _prepare_restart(self, error: MillraceError, deadline: float | None) -> bool:
        """Close a run that failed and wait; False if the caller's time is over before the next."""
        if not self._options.restart:
            raise error
        if self._closing.is_stopped:
            raise was_closed(self.coordinated_read) from error
        if not _is_curable(error):
            raise error
        _LOG.info(
            "the session of %s failed and is opened again: %s", self.coordinated_read.name, error
        )
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            # A lease that cannot be given back now, as the owner is away, runs out by itself.
            with contextlib.suppress(Retriable):
                run.close()
        is_in_time = self._wait(deadline)
        self._check_open()
        return is_in_time

    def _wait(self, deadline: float | None) -> bool:
        """Wait before the next try; False if the caller's time is over first."""
        config = self._workspace.config
        pause_ms = config.reads_restart_wait_ms * 2**self._failures
        pause_s = min(pause_ms, config.reads_restart_wait_ms_max) / 1000
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        if deadline is not None and time.monotonic() + pause_s > deadline:
            self._closing.sleep(deadline - time.monotonic())
            return False
        self._closing.sleep(pause_s)
        return True


def _is_curable(error: BaseException) -> bool:
    """Whether another run may do better."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError | HintsUnresolved | SparkGone):
            return False
        cause = cause.__cause__
    return True


def _number(checkpoint: Checkpoint | int) -> CheckpointNumber:
    if isinstance(checkpoint, Checkpoint):
        return checkpoint.number
    return CheckpointNumber(checkpoint)
