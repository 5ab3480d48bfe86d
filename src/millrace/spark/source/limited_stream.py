"""Offsets of a stream since Spark 4.2, which says where a batch begins and how much it may have."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.spark.source.available_rows import AvailableRows
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.stream_reader import CHECKPOINT, CoordinatedStreamReader
from millrace.spark.source.stream_session import BatchLimit, StreamStart


class LimitedStreamReader(CoordinatedStreamReader, SupportsTriggerAvailableNow):
    """Gives the end of the next batch within a limit."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._available: AvailableRows | None = None

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
        self._available = AvailableRows()

    def _limit(self, limit: ReadLimit) -> BatchLimit:
        if isinstance(limit, ReadAllAvailable):
            return BatchLimit()
        return self._options_limit
