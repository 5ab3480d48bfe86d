"""The events of a job: one journal holds them in order. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from millrace.storage import documents
from millrace.storage.documents import Document


class JobEventKind(StrEnum):
    """The kind of an event."""

    STARTED = "started"
    """A run began; the text holds its graph, and the identity of its sources and steps."""
    TAKEN_IN = "taken_in"
    """The rows of a source were saved, in the same transaction as this event."""
    FAILED = "failed"
    """A step gave up; the text holds error and traceback."""
    HELD = "held"
    """Calls are in doubt, and the step asks the user what to do."""
    SPENT = "spent"
    """A step has used its budget up."""
    WAITING = "waiting"
    """A provider works on a batch of a step; the run leaves the unit alone."""
    STUCK = "stuck"
    """Calls of a step ran into their time limit and never returned: a worker ended for good."""
    DIED = "died"
    """A call ended its worker's process; the text says for which rows, and how often."""
    RESET = "reset"
    """A step, and the steps that depend on it, were set back to the beginning."""
    TRUNCATED = "truncated"
    """Rows that all steps have read are about to be removed; the text holds their number."""
    SOURCES_ENDED = "sources_ended"
    """A step that goes by event time was told that its sources are finished."""
    ENDED = "ended"
    """A run ended; the text holds its report."""


ALONE: Final = "alone"
"""The field of an event `SPENT` that is of one unit: others of its step may have batches that were
paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One event of a job."""

    at_us: int
    run: int
    """The number of the run: the epoch of its lease."""
    happened: JobEventKind
    step: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommit:
    """A commit of a sink to its table or topic.

    It is a row of the sink's journal of commits, and of the report of the run.
    """

    sink: str
    at_us: int
    run: int
    version: int | None
    """The version or snapshot of the table, of PostgreSQL the number of the transaction.

    None for topics, and for a commit of a process that was killed before it noted it.
    """
    files: int
    """0 where rows are no files."""
    rows: int
    bytes: int
    tries: int
    """How often it was tried: others committed in between, if more than once."""


SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("run", pa.int64(), nullable=False),
        pa.field("happened", pa.string(), nullable=False),
        pa.field("step", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


def to_rows(events: list[JobEvent]) -> pa.RecordBatch:
    """Events as rows of their journal."""
    rows = [
        {
            "at_us": event.at_us,
            "run": event.run,
            "happened": event.happened.value,
            "step": event.step,
            "detail": json.dumps(event.detail, sort_keys=True),
        }
        for event in events
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def from_rows(rows: pa.Table) -> list[JobEvent]:
    """Rows of the journal as events."""
    with documents.decoding("the record of a job's runs", "events", "reset the job's steps"):
        return [
            JobEvent(
                at_us=row["at_us"],
                run=row["run"],
                happened=JobEventKind(row["happened"]),
                step=row["step"],
                detail=dict(Document(json.loads(row["detail"])).fields),
            )
            for row in rows.to_pylist()
        ]
