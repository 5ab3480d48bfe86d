"""A sink that appends rows to a journal of another workspace, which has a broker of its own.

Two brokers have no common transaction. So the progress of a unit is in the other broker, in the
transaction that appends its rows; the committed offset in the job's own broker follows it.

Invariant: rows of a range of offsets are in the journal if and only if the progress is behind that
range. A worker that finds the progress ahead of the committed offset appends nothing below it. Each
append expects the end of the progress as the worker last saw it, so of two workers that append for
one unit, one has a conflict.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import Conflict, LeaseLost, MillraceError, Retriable
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.sinks.sink_port import NothingPrepared

PROGRESS_SCHEMA: Final = pa.schema(
    [
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
        pa.field("append", pa.string(), nullable=False),
    ]
)
"""`next` is the offset behind the input rows whose output is in the journal; `append` names the
transaction, so that a worker whose answer was lost recognises it."""
_ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class OtherJournals:
    """The journals of another workspace, and where a sink keeps its progress there."""

    broker: Broker
    progress: str
    """A prefix; each input journal has a progress journal below it."""


class OtherJournalWriter:
    """Appends rows and progress in one transaction of the other broker. For one unit at a time."""

    def __init__(self, journal: str, others: OtherJournals, config: Config) -> None:
        self._journal, self._others, self._config = journal, others, config
        self._progress = ""
        self._end = 0
        """Where the progress ends, as far as this worker knows."""

    def recover(self, journal: str, journal_id: int) -> int | None:
        """See `SinkWriter.recover`: the offset up to which rows are in the journal."""
        del journal
        self._progress = f"{self._others.progress}/{journal_id}"
        broker = self._others.broker
        patiently(lambda: broker.create(self._progress, PROGRESS_SCHEMA), self._config)
        row, self._end = patiently(lambda: last_row(broker, self._progress), self._config)
        if row is None:
            return None
        # Only the last row counts. One that cannot be removed now goes later.
        with contextlib.suppress(MillraceError):
            broker.truncate_before(self._progress, row[OFFSET])
        return int(row["next"])

    def prepare(
        self,
        journal_id: int,  # noqa: ARG002 - rows do not tell where they come from
        batches: Sequence[pa.RecordBatch],
        first: int,
        next: int,  # noqa: A002 - the word of the record
    ) -> NothingPrepared:
        """See `SinkWriter.prepare`: the rows are in the journal when this returns."""
        rows = pa.Table.from_batches(batches)
        own = {"first": first, "next": next, "append": secrets.token_hex(_ID_BYTES)}
        if rows.num_rows:
            fault("sink.journal.before_append")
            self._end = patiently(lambda: self._append(rows, own), self._config)
            fault("sink.journal.after_append")
        return NothingPrepared()

    def _append(self, rows: pa.Table, own: dict[str, Any]) -> int:
        """Append the rows once; the new end of the progress."""
        broker, progress = self._others.broker, pa.RecordBatch.from_pylist([own], PROGRESS_SCHEMA)
        try:
            with broker.transaction() as t:
                t.append(self._journal, rows)
                t.append(self._progress, progress, expected=self._end)
        except (Conflict, Retriable) as error:
            row, end = patiently(lambda: last_row(broker, self._progress), self._config)
            if row is not None and row["append"] == own["append"]:
                return end  # Only the answer was lost.
            if isinstance(error, Retriable):
                raise
            raise LeaseLost(
                f"rows of {self._progress!r} were appended by another worker\n  {error}\n"
                "  to fix: nothing; the other worker goes on with it"
            ) from error
        assert t.result is not None
        return int(t.result.appended[self._progress].next_offset)

    def close(self) -> None:
        """See `SinkWriter.close`."""
