"""Offsets of a stream before Spark 4.2: Spark asks only for the newest one.

It does not say where its own log stands, unless a batch was begun. So the session shows all
checkpoints that were ever prepared and not committed, and the offset never goes back: Spark's log
is between the last commit and the last of these.

A query with `Trigger.AvailableNow` asks once and then ends. So the newest offset is the one that
shows all rows that are there at the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from millrace.errors import UserError
from millrace.reads.session.checkpoint_store import read_checkpoints
from millrace.spark.source.available_rows import AvailableRows
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.stream_read import find_read
from millrace.spark.source.stream_reader import CHECKPOINT, CoordinatedStreamReader
from millrace.spark.source.stream_session import BatchLimit, StreamStart
from millrace.spark.versions.spark_versions import READ_LIMITS, lacks


class WholeStreamReader(CoordinatedStreamReader):
    """Gives the newest offset, at which all rows of the moment are shown."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if not self._options_limit.is_none:
            raise lacks("a limit on a micro-batch", READ_LIMITS, "leave the option out")
        self._newest: int | None = None

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark 4.0's
        """The checkpoint that shows all rows of the moment."""
        session = self._session or self._running(self._stored())
        rows = AvailableRows()
        newest = session.newest() if self._newest is None else self._newest
        while (end := rows.advance(session, newest, BatchLimit())) > newest:
            newest = end
        self._newest = newest
        return {CHECKPOINT: newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each member. Everything up to `start` is done."""
        made = super().partitions(start, end)
        assert self._session is not None, "it was just used"
        done, begin = int(start[CHECKPOINT]), self._session.begin
        if done < begin or done > int(end[CHECKPOINT]):
            raise UserError(
                f"the query's log is not that of read {self._session.name}\n"
                f"  found: the query is at checkpoint {done}, the read at {begin}\n"
                "  to fix: give the newest checkpointLocation back, or begin with an empty one and "
                "a read of another name"
            )
        self._session.commit(done)
        return made

    def _stored(self) -> StreamStart:
        """What was committed, and what was prepared beyond it."""
        broker = self._opened().broker
        stored = read_checkpoints(broker, find_read(self._options, broker).name)
        last = stored.prepared[-1] if stored.prepared else stored.committed
        return StreamStart(done=stored.committed.number, begun=last.number)
