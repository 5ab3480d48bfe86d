"""The record of batches: written before a batch is made, and when its id is known. Pure.

Each unit of a step that asks in batches has a journal of these rows, and only the last one counts.
It says for which of the unit's rows a batch is made, `first` to `next`. It is over when the unit's
committed offset has reached `next`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from millrace.storage import documents
from millrace.storage.documents import Document


class BatchRecordKind(StrEnum):
    """What a row of the record says."""

    INTENT = "intent"
    """A batch with this key is about to be made, or was made."""
    MADE = "made"
    """The batch has this id."""
    STOPPED = "stopped"
    """The batch came to nothing more; the next run asks for the rest in a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One row of the record."""

    at_us: int
    kind: BatchRecordKind
    journal: str
    """The unit's journal."""
    first: int
    next: int
    key: str
    """What the batch is found by if its id is not known."""
    batch: str
    """The provider's id; empty until it is known."""
    rows: int
    """How many questions it has."""
    earlier: tuple[str, ...] = ()
    """Batches for rows of this range that ended, oldest first; their results count."""
    attempt: int = 1
    server: str = ""
    """How the provider is reached, as JSON; no key."""

    @property
    def since_us(self) -> int:
        """When its key was made: no batch with it is older."""
        return int(self.key.rpartition("-")[2])


SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("journal", pa.string(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("batch", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("earlier", pa.string(), nullable=False),
        pa.field("attempt", pa.int64(), nullable=False),
        pa.field("server", pa.string(), nullable=False),
    ]
)


def to_rows(records: Sequence[BatchRecord]) -> pa.RecordBatch:
    """Records as rows of their journal."""
    rows = []
    for record in records:
        row: dict[str, Any] = {name: getattr(record, name) for name in SCHEMA.names}
        rows.append(row | {"kind": record.kind.value, "earlier": json.dumps(record.earlier)})
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def from_row(row: dict[str, Any]) -> BatchRecord:
    """A row of a journal as a record."""
    with documents.decoding("the record of a step's batches", "batches", "reset the step"):
        return BatchRecord(
            at_us=row["at_us"],
            kind=BatchRecordKind(row["kind"]),
            journal=row["journal"],
            first=row["first"],
            next=row["next"],
            key=row["key"],
            batch=row["batch"],
            rows=row["rows"],
            earlier=tuple(Document({"earlier": json.loads(row["earlier"])}).fields["earlier"]),
            attempt=row["attempt"],
            server=row["server"],
        )


def outstanding(last: BatchRecord | None, committed: int) -> BatchRecord | None:
    """The record that still counts, behind a unit's committed offset."""
    return None if last is None or last.next <= committed else last
