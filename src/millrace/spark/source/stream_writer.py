"""Stream writes: the micro-batches of a query into journals, each of them once.

Tasks write files, as for a batch. One transaction of the broker then adopts those of a micro-batch
and records its number as the sequence of a producer that is named after the query. Spark tells the
query's id to its tasks alone, so it comes with their commit messages.

Spark writes a micro-batch again if the application died before it noted its end. The broker knows
the sequence then, and adopts nothing: its `tidy` removes the files that are not needed.

Invariant: a producer's sequence and the rows of that micro-batch are recorded together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.errors import Conflict, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import Adopt, Publish, Published, SegmentFile
from millrace.spark.source.journal_writer import (
    JournalFiles,
    Target,
    by_journal,
    ended,
    give_up,
    plan_write,
    store,
    task_context,
)
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry

_QUERY_ID: Final = "sql.streaming.queryId"
"""The local property of Spark's tasks that names their query; the same after a restart."""
_PRODUCER: Final = "spark/{query}"


@dataclass(frozen=True)
class WrittenForQuery(JournalFiles):
    """The files that a task of a streaming query wrote."""

    query: str


class JournalStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query to journals."""

    def __init__(self, entry: WorkspaceEntry, target: Target, *, keep_changed: bool) -> None:
        """`keep_changed`: a batch that was written stays if it comes again with other rows."""
        self._entry = entry
        self._target = target
        self._keep_changed = keep_changed

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenForQuery:
        """In a task: write its rows to files that may be adopted later."""
        context = task_context()
        query = context.getLocalProperty(_QUERY_ID)
        if query is None:
            raise UserError(
                "Spark does not say which query this is, so its batches could not be told apart\n"
                f"  found: no local property {_QUERY_ID}\n"
                "  to fix: use a trigger of micro-batches, or foreachBatch with a batch write"
            )
        files = store(self._entry, self._target, iterator)
        return WrittenForQuery(context.partitionId(), files, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """In the driver, when all tasks have ended: make their rows visible unless they are."""
        written = ended(messages)
        queries = {task.query for task in written if isinstance(task, WrittenForQuery)}
        if not queries:
            return  # No task ran, so there are no rows.
        assert len(queries) == 1, queries
        batch = MicroBatch(queries.pop(), batchId, by_journal(written))
        with self._entry.journals() as broker:
            broker.create_many(self._target.journals, self._target.schema)
            fault("source.commit.before_adopt")
            done = publish(broker, batch)
            fault("source.commit.after_adopt")
        if done.repeated and not self._keep_changed:
            check_same(batch, done)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """In the driver, when a task failed for good: remove what the others wrote."""
        give_up(self._entry, messages)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a query, in files."""

    query: str
    number: int
    files: dict[str, tuple[SegmentFile, ...]]
    """For each journal that gets rows."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        every = [file for files in self.files.values() for file in files]
        return sum(piece.rows for file in every for piece in file.ranges)


def publish(broker: Broker, batch: MicroBatch) -> Published:
    """Adopt the files of a micro-batch, unless it was published before."""
    producer = broker.producer_id(_PRODUCER.format(query=batch.query))
    parts = tuple(Adopt(journal=name, files=files) for name, files in batch.files.items())
    try:
        return broker.publish(Publish(parts=parts, producer=producer, sequence=batch.number))
    except Conflict as error:
        raise UserError(
            f"batch {batch.number} of query {batch.query} was not written\n"
            f"  found: {' '.join(str(error).split())}\n"
            "  if a later batch was, then its checkpointLocation was set back, or two queries use\n"
            "  it: to fix, give the newest one back, or begin with an empty one, which makes it\n"
            "  another query: whatever Spark reads then is written"
        ) from error


def check_same(batch: MicroBatch, done: Published) -> None:
    """Refuse a batch that was written and comes with another number of rows.

    Spark begins a batch of one number at the same offsets, so that if it ends elsewhere it has
    more rows or fewer.
    """
    before = sum(appended.rows for appended in done.appended.values())
    if before != batch.rows:
        where = (
            ", ".join(name for name, appended in done.appended.items() if appended.rows)
            or "no journal"
        )
        raise UserError(
            f"batch {batch.number} of query {batch.query} was written with other rows\n"
            f"  before: {before} into {where}; now: {batch.rows}\n"
            "  so its checkpointLocation was set back, or the query was changed, or gives other\n"
            "  rows each time; nothing was written now\n"
            "  to fix: give the newest checkpointLocation back; or, if what was written is all\n"
            "  that this batch is to write, set option changedBatch to keep until it is through"
        )


def make_writer(
    options: SourceOptions, schema: StructType, *, overwrite: bool
) -> JournalStreamWriter:
    """A writer for rows of these columns; they are checked before any row is made."""
    if overwrite:
        raise UserError(
            "a journal cannot be overwritten: its rows keep their offsets for good\n"
            "  found: outputMode complete\n  to fix: use outputMode('append')"
        )
    entry, target = plan_write(options, schema, overwrite=False)
    return JournalStreamWriter(entry, target, keep_changed=options.keep_changed)
