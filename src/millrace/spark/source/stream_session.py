"""The session behind a streaming query: its checkpoints, and their rows for Spark's tasks.

Spark's own log says which checkpoints are done; the session resumes from that log and commits these
checkpoints. Invariant: a range of checkpoints, once given to Spark, shows the same rows until Spark
has committed it, also in the next process after this one was killed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.durations import ms
from millrace.errors import UserError
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.session_run import SessionOptions, was_closed
from millrace.spark.source.stream_rows import ColumnShaping, journals_for
from millrace.spark.source.stream_workspace import StreamWorkspace
from millrace.transport.flight.tls import own_certificate
from millrace.transport.streams.stream_server import (
    StreamAddress,
    StreamServer,
    StreamShare,
    tell,
)
from millrace.wakeup import WorkerThread, join, within

_SHOWN_JOURNALS_MAX: Final = 10_000
"""Of more journals the progress of a query shows no sums: they would be made with every batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """The state of Spark's log."""

    done: int
    """The checkpoint that it has committed."""
    begun: int
    """The checkpoint up to which a batch was begun; the same if none was."""


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How much a micro-batch may have; at least one checkpoint always."""

    rows: int | None = None
    bytes: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether everything there is may come."""
        return self.rows is None and self.bytes is None

    def allows(self, rows: int, size: int) -> bool:
        """Whether this many rows and bytes are within the limit."""
        return (self.rows is None or rows <= self.rows) and (
            self.bytes is None or size <= self.bytes
        )


@dataclass(frozen=True, slots=True)
class _ReadyCheckpoint:
    """A checkpoint that is ready for Spark, and how much it shows."""

    number: int
    rows: int = 0
    bytes: int = 0


class StreamSession:
    """An open session of a stream, and the server that gives out its rows."""

    def __init__(
        self,
        workspace: StreamWorkspace,
        read: CoordinatedRead,
        schema: pa.Schema,
        *,
        members: int,
        start: StreamStart,
    ) -> None:
        self.schema = schema
        self.members = members
        self._workspace = workspace
        self._read = read
        self._shaping = ColumnShaping(schema, workspace.broker)
        self._changed = threading.Condition()
        """Held while something below is read or changed; notified when a checkpoint is ready."""
        self._handed: list[int] = []
        self._ready: list[_ReadyCheckpoint] = []
        self._taker: WorkerThread | None = None
        self._looks_begun = self._looks_done = 0
        self._failure: BaseException | None = None
        self._is_closed = False
        self._start = start
        self._session = self._open(start)
        try:
            self._recover(start)
            self._server = StreamServer(
                workspace.host,
                self,
                read=read.name,
                token=workspace.token,
                config=workspace.config,
                certificate=own_certificate(os.environ),
            )
            tell(workspace.store, read.name, self._server.address)
        except BaseException:
            self._session.close()
            raise

    @property
    def name(self) -> str:
        """The name of the read."""
        return self._read.name

    @property
    def begin(self) -> int:
        """The checkpoint after which this session began: rows before it are not shown again."""
        return self._start.done

    @property
    def address(self) -> StreamAddress:
        """How tasks find the rows."""
        return StreamAddress(
            path=self._workspace.store.root,
            read=self._read.name,
            token=self._workspace.token,
            planned=self._server.address,
        )

    # For Spark's planner.
    def take_ahead(self) -> None:
        """From now on, take checkpoints as they come, so that none becomes too large."""
        if self._taker is None:
            self._taker = WorkerThread(self._take, "stream-taker")
            self._taker.start()

    def advance(self, start: int, limit: BatchLimit, *, upto: int | None = None) -> int:
        """The checkpoint up to which the next batch goes; `start` if there is nothing new.

        With `upto`, the last one that it may be.
        """
        if not limit.is_none:
            self.take_ahead()
        self._wait_for_one()
        return self._choose(start, limit, upto)

    def settled(self) -> int:
        """The checkpoint that shows everything that has become visible by now."""
        if self._taker is None:
            self._take_one(0)
        else:
            self._wait_for_look()
        with self._changed:
            return max(self._handed, default=0)

    def newest(self) -> int:
        """The last checkpoint that was shown, or committed if none was shown since."""
        with self._changed:
            return max(self._handed, default=self._start.done)

    def offsets(self) -> dict[str, int]:
        """How far each journal is read by now, under all of its bindings."""
        offsets: dict[str, int] = {}
        for status in self._session.status().journals:
            lowest = offsets.get(status.journal, status.offset)
            offsets[status.journal] = min(status.offset, lowest)
        return offsets

    def ends(self) -> dict[str, int]:
        """Where committed rows end now, of each journal that is read."""
        journals = journals_for(self._read, self._workspace.broker.watch(-1).journals)
        names = sorted({journal.name for _, journal in journals})
        group = f"reads/{self._read.name}"
        positions = self._workspace.broker.positions([(group, name) for name in names])
        return {position.journal: position.end for position in positions}

    def progress(self) -> dict[str, int]:
        """What Spark's progress shows of the read; of very many journals, the checkpoint alone."""
        journals = journals_for(self._read, self._workspace.broker.watch(-1).journals)
        names = sorted({journal.name for _, journal in journals})
        found = {"checkpoint": self.newest(), "journals": len(names)}
        if len(names) > _SHOWN_JOURNALS_MAX:
            return found
        group = f"reads/{self._read.name}"
        positions = self._workspace.broker.positions([(group, name) for name in names])
        status = self._session.status()
        return found | {
            "lagRows": sum(position.backlog for position in positions),
            "pendingHints": len(status.waiting),
            "queueBytes": sum(status.disk_bytes),
        }

    @property
    def quiet_s(self) -> float:
        """How long no row may come until all available rows count as read."""
        return ms(self._workspace.config.stream_quiet) / 1000

    def commit(self, number: int) -> None:
        """Spark has done everything up to a checkpoint: free its disk.

        Spark's own log has it already, so it is stored with the next checkpoint.
        """
        with self._changed:
            is_new = any(checkpoint <= number for checkpoint in self._handed)
            self._handed = [checkpoint for checkpoint in self._handed if checkpoint > number]
        if is_new:
            self._session.commit(number, with_next=True)

    # For Spark's tasks.
    def rows(self, share: StreamShare) -> Iterator[pa.RecordBatch]:
        """See `Rows.rows`: checkpoint after checkpoint."""
        with self._changed:
            numbers = [n for n in self._handed if share.start < n <= share.end]
        if share.members != self.members or share.end not in numbers:
            raise UserError(
                f"checkpoints {share.start} to {share.end} of {self._read.name} are not "
                f"those of a batch that runs\n  found: {', '.join(map(str, numbers)) or 'none'}, "
                f"{self.members} members\n  to fix: let just one query stream this read, and use "
                "its DataFrame once: each use reads by itself and needs a read of its own name"
            )
        return self._batches(share.member, numbers)

    def close(self) -> None:
        """Stop reading; what Spark did not commit comes again."""
        with self._changed:
            self._is_closed = True
            self._failure = self._failure or was_closed(self._read)
            self._changed.notify_all()
        config = self._workspace.config
        try:
            # Calls of tasks that still fetch end at the latest when the session is closed.
            within(self._server.shutdown, config.reads_stop_ms_max, "stream-server-end")
        finally:
            self._session.close()
        taker = [] if self._taker is None else [self._taker]
        join(taker, config.thread_stop_ms_max, "thread_stop_ms_max")

    # Inside.
    def _open(self, start: StreamStart) -> ReadSession:
        options = SessionOptions(
            members=self.members,
            last_commit=start.done,
            read_through=start.begun,
            take_over=True,
        )
        return ReadSession(self._workspace.sessions(), self._read, options)

    def _recover(self, start: StreamStart) -> None:
        """Commit the checkpoints that Spark has done, and show those that it began again."""
        self._session.commit(start.done)
        number = start.done
        while number < start.begun:
            checkpoint = self._session.next_checkpoint()
            assert checkpoint is not None, "no limit on the wait"
            number = checkpoint.number
            self._handed.append(number)

    def _batches(self, member: int, numbers: list[int]) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            for batch in self._session.batches(member, number):
                yield self._shaping.shape(batch)

    def _take(self) -> None:
        try:
            while not self._is_closed:
                with self._changed:
                    self._looks_begun += 1
                self._take_one(self._workspace.config.stream_wait_ms / 1000)
                with self._changed:
                    self._looks_done = self._looks_begun
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - the next call raises it
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _take_one(self, wait_s: float) -> None:
        checkpoint = self._session.next_checkpoint(wait_s)
        if checkpoint is None:
            return
        number = checkpoint.number
        ready = _ReadyCheckpoint(number) if self._taker is None else self._measured(number)
        with self._changed:
            self._handed.append(number)
            self._ready.append(ready)

    def _measured(self, number: int) -> _ReadyCheckpoint:
        rows = size = 0
        for member in range(self.members):
            for batch in self._session.batches(member, number):
                rows, size = rows + batch.num_rows, size + batch.nbytes
        return _ReadyCheckpoint(number, rows, size)

    def _wait_for_one(self) -> None:
        """Have a checkpoint ready, if one comes in time."""
        if self._taker is None and not self._ready:
            self._take_one(self._workspace.config.stream_wait_ms / 1000)
        elif self._taker is not None:
            self._wait_for_look(or_ready=True)

    def _wait_for_look(self, *, or_ready: bool = False) -> None:
        """Wait until the thread of `take_ahead` has looked again, or a checkpoint is ready."""
        with self._changed:
            next_look = self._looks_begun + 1
            while self._looks_done < next_look and not (or_ready and self._ready):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(self._workspace.config.thread_sleep_ms_max / 1000)

    def _choose(self, start: int, limit: BatchLimit, upto: int | None) -> int:
        """As many of the ready checkpoints as the limit allows."""
        rows = size = 0
        end = start
        with self._changed:
            while self._ready:
                first = self._ready[0]
                rows, size = rows + first.rows, size + first.bytes
                is_too_much = end > start and not limit.allows(rows, size)
                if is_too_much or (upto is not None and first.number > upto):
                    break
                end = self._ready.pop(0).number
        return end
