"""Notes of what workers committed to tables and topics of others, for the report of the run.

The target has the rows already. The note is a row of the sink's journal of commits, in the
transaction that commits the offset of these rows: so each range of rows is noted once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.journal.transaction import Transaction
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.core.job_model import KafkaSink, PostgresSink
from millrace.pipeline.sinks import table_record
from millrace.pipeline.sinks.sink_port import NothingPrepared, Prepared


@dataclass(frozen=True, slots=True)
class CommitNotes:
    """Makes the notes of one sink, in one run."""

    job: str
    sink: str
    run: int

    @classmethod
    def of(cls, hop: Hop, run: int) -> CommitNotes | None:
        """The notes of a hop's sink, if workers commit its rows elsewhere."""
        if not isinstance(hop.sink, PostgresSink | KafkaSink):
            return None
        return cls(hop.job, hop.name, run)

    def noted(self, batches: Sequence[pa.RecordBatch], version: int | None) -> Prepared:
        """The note of a commit that brought these rows, for the transaction of their offset."""
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return NothingPrepared()
        commit = SinkCommit(
            sink=self.sink,
            at_us=time.time_ns() // 1000,
            run=self.run,
            version=version,
            files=0,
            rows=rows,
            bytes=sum(batch.nbytes for batch in batches),
            tries=1,
        )
        journal = table_record.commits_journal(self.job, self.sink)
        return _Noted(journal, table_record.commit_row(commit))


@dataclass(frozen=True, slots=True)
class _Noted:
    """A note that waits for its transaction; the rows are in the target, whatever becomes of it."""

    journal: str
    row: pa.RecordBatch

    def add_to(self, transaction: Transaction) -> None:
        transaction.append(self.journal, self.row)

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class AppendedBefore:
    """Stands for the writer over rows that a dead worker brought: dead letters are still to do."""

    notes: CommitNotes | None

    def recover(self, journal: str, journal_id: int) -> int | None:
        """See `SinkWriter.recover`."""
        del journal, journal_id
        return None

    def prepare(
        self,
        journal_id: int,
        batches: Sequence[pa.RecordBatch],
        first: int,
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """See `SinkWriter.prepare`."""
        del journal_id, first, next
        return NothingPrepared() if self.notes is None else self.notes.noted(batches, None)

    def close(self) -> None:
        """See `SinkWriter.close`."""
