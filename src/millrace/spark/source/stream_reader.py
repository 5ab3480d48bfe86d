"""`spark.readStream.format("millrace")`: coordinated reads as a stream of Spark.

Offsets are numbers of checkpoints. Spark makes a reader in several processes: one plans and gives
offsets for the life of the query, the others are tasks that just read. So nothing is opened before
the first call, which also shows the state of Spark's log: `partitions(a, b)` comes first if the
batch up to b was begun and not committed, otherwise `latestOffset(a)`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.errors import MillraceError
from millrace.reads.session.checkpoint_store import read_checkpoints
from millrace.spark.frames.rows_as_frames import spark_types
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.stream_end import ProcessEnd
from millrace.spark.source.stream_read import find_read
from millrace.spark.source.stream_rows import columns_of
from millrace.spark.source.stream_session import BatchLimit, StreamSession, StreamStart
from millrace.spark.source.stream_workspace import StreamWorkspace, open_stream_workspace
from millrace.transport.flight.tls import trusted_roots
from millrace.transport.streams.stream_server import StreamAddress, StreamShare, fetch

STREAM_END_MS_MAX: Final = 5_000
"""How long a reader whose query ended may take to let go of its lease and its files."""

CHECKPOINT = "checkpoint"


def stream_schema(options: SourceOptions) -> StructType:
    """The columns of a stream, from the journals that there are now."""
    workspace = open_stream_workspace(options)
    try:
        return spark_types(columns_of(find_read(options, workspace.broker), workspace.broker))
    finally:
        workspace.close()


@dataclass
class StreamPartition(InputPartition):
    """The share of one task, and the address of its rows."""

    share: StreamShare
    where: StreamAddress


class CoordinatedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a coordinated read for one query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._workspace: StreamWorkspace | None = None
        self._session: StreamSession | None = None
        self._available: _Available | None = None
        self._end = ProcessEnd()

    # Offsets.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a query without a log of its own begins: after the last commit of the read."""
        broker = self._opened().broker
        checkpoints = read_checkpoints(broker, find_read(self._options, broker).name)
        return {CHECKPOINT: checkpoints.committed.number}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch. Everything up to `start` is done."""
        done = int(start[CHECKPOINT])
        session = self._running(StreamStart(done=done, begun=done))
        session.commit(done)
        if self._available is not None:
            return {CHECKPOINT: self._available.advance(session, done, self._limit(limit))}
        return {CHECKPOINT: session.advance(done, self._limit(limit))}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the options; of two, Spark gets the rows, and both are kept."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the rows that are there at the first call for an offset, and then end."""
        self._available = _Available()

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is done."""
        if self._session is not None:
            self._session.commit(int(end[CHECKPOINT]))

    # Rows.
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each member."""
        done, begun = int(start[CHECKPOINT]), int(end[CHECKPOINT])
        session = self._running(StreamStart(done=done, begun=begun))
        if done == begun:
            return []
        return [
            StreamPartition(
                StreamShare(member=member, members=session.members, start=done, end=begun),
                session.address,
            )
            for member in range(session.members)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a member; runs in a task."""
        assert isinstance(partition, StreamPartition)
        return fetch(partition.where, partition.share, trusted_roots(os.environ))

    def stop(self) -> None:
        """Close the session and the workspace."""
        session, self._session = self._session, None
        workspace, self._workspace = self._workspace, None
        if workspace is None:
            return
        self._end.finish(partial(_let_go, session, workspace), STREAM_END_MS_MAX)

    # Inside.
    def _opened(self) -> StreamWorkspace:
        if self._workspace is None:
            self._workspace = open_stream_workspace(self._options)
            self._end.watch()
        return self._workspace

    def _running(self, start: StreamStart) -> StreamSession:
        if self._session is None:
            workspace = self._opened()
            self._session = StreamSession(
                workspace,
                find_read(self._options, workspace.broker),
                self._schema,
                members=self._options.members or workspace.config.stream_members,
                start=start,
            )
            if not self._options_limit.is_none:
                self._session.take_ahead()  # Also while a batch from before comes again.
        return self._session

    def _limit(self, limit: ReadLimit) -> BatchLimit:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimit()
        return self._options_limit

    @property
    def _options_limit(self) -> BatchLimit:
        return BatchLimit(self._options.rows_max, self._options.bytes_max)


class _Available:
    """Reads up to the ends of journals at the first call, and then reports no more rows.

    No checkpoint is split: the last one may have rows that came later.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] | None = None
        self._last: int | None = None
        """The checkpoint that shows it all."""
        self._offsets: dict[str, int] | None = None
        self._moved_s = 0.0
        """Since when journals have stood at these offsets."""

    def advance(self, session: StreamSession, start: int, limit: BatchLimit) -> int:
        """The next offset; `start` when everything was shown."""
        if self._ends is None:
            self._ends = session.ends()
        while True:
            if self._last is None and self._is_read(session, self._ends):
                self._last = session.settled()
            if self._last is not None and start >= self._last:
                return start
            end = session.advance(start, limit, upto=self._last)
            if end > start:
                return end

    def _is_read(self, session: StreamSession, ends: dict[str, int]) -> bool:
        """Whether journals were read to these ends, or no row came for a while."""
        offsets = session.offsets()
        if all(offsets.get(name, 0) >= end for name, end in ends.items()):
            return True
        if offsets != self._offsets:
            self._offsets, self._moved_s = offsets, time.monotonic()
        return time.monotonic() - self._moved_s > session.quiet_s


def _let_go(session: StreamSession | None, workspace: StreamWorkspace) -> None:
    """Close both; errors of a peer that is gone do not matter here."""
    with contextlib.suppress(MillraceError):
        if session is not None:
            session.close()
    with contextlib.suppress(MillraceError):
        workspace.close()
