"""`spark.readStream.format("millrace")`: coordinated reads as a stream of Spark.

Offsets are numbers of checkpoints. Spark makes a reader in several processes: one plans and gives
offsets for the life of the query, the others are tasks that just read. So nothing is opened before
the first call, which also shows the state of Spark's log: `partitions(a, b)` comes first if the
batch up to b was begun and not committed, otherwise `latestOffset`.

How Spark asks for the next offset differs by its version: `limited_stream.py` since Spark 4.2,
`whole_stream.py` before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from millrace.errors import MillraceError
from millrace.reads.session.checkpoint_store import read_checkpoints
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.stream_end import ProcessEnd
from millrace.spark.source.stream_read import find_read
from millrace.spark.source.stream_rows import columns_of
from millrace.spark.source.stream_session import BatchLimit, StreamSession, StreamStart
from millrace.spark.source.stream_workspace import StreamWorkspace, open_stream_workspace
from millrace.spark.versions.arrow_types import spark_types, utc_schema
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


class CoordinatedStreamReader(DataSourceStreamReader):
    """Reads a coordinated read for one query. Its subclasses tell Spark the next offset."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = utc_schema(schema)
        self._workspace: StreamWorkspace | None = None
        self._session: StreamSession | None = None
        self._end = ProcessEnd()

    # Offsets.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a query without a log of its own begins: after the last commit of the read."""
        broker = self._opened().broker
        checkpoints = read_checkpoints(broker, find_read(self._options, broker).name)
        return {CHECKPOINT: checkpoints.committed.number}

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is done."""
        if self._session is not None:
            self._session.commit(int(end[CHECKPOINT]))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's, since 4.2
        """What `StreamingQueryProgress` shows as the latest offset."""
        # A query does not end because its progress cannot be shown.
        with contextlib.suppress(MillraceError):
            return None if self._session is None else self._session.progress()
        return None

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

    @property
    def _options_limit(self) -> BatchLimit:
        return BatchLimit(self._options.rows_max, self._options.bytes_max)


def _let_go(session: StreamSession | None, workspace: StreamWorkspace) -> None:
    """Close both; errors of a peer that is gone do not matter here."""
    with contextlib.suppress(MillraceError):
        if session is not None:
            session.close()
    with contextlib.suppress(MillraceError):
        workspace.close()
