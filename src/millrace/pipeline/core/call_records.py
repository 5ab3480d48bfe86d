"""The record of expensive calls: written before a call, settled by the committed offset. Pure.

Each unit of an expensive hop has a journal of these rows. A row says which of the unit's rows are
about to be called for, `first` to `next`. It counts only beyond the unit's committed offset: below,
the result is published. If a dead worker left a row beyond that offset, its calls are in doubt.
Each row carries the totals so far, so readers need only the last row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa


class CallRecordKind(StrEnum):
    """What a row of the record says."""

    INTENT = "intent"
    """The calls for these rows are about to be made."""
    RETRY = "retry"
    """Some of them are about to be made once more, since they raised."""
    SETTLED = "settled"
    """They were not made, or raised and were given up: nothing of the intent is in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the calls of one unit, over all runs."""

    calls: int = 0
    """Calls that were made, or are about to be made."""
    in_doubt: int = 0
    """Calls that a dead worker may have made, and that were made again or skipped."""
    errors: int = 0
    """Calls that raised."""
    skipped: int = 0
    """Rows left out, because they raised or were in doubt."""
    dead_letters: int = 0
    """Rows put into the dead-letter journal."""

    def plus(self, **more: int) -> Totals:
        """The totals with these counts added."""
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One row of the record."""

    at_us: int
    epoch: int
    """The epoch of the lease under which the calls are made."""
    kind: CallRecordKind
    first: int
    next: int
    calls: int
    """The number of calls: one for each row, or one for the batch."""
    totals: Totals


_TOTALS: Final = tuple(field.name for field in fields(Totals))
SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
        pa.field("calls", pa.int64(), nullable=False),
        *(pa.field(f"total_{name}", pa.int64(), nullable=False) for name in _TOTALS),
    ]
)

BUDGET_SCHEMA: Final = pa.schema(
    [
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("calls", pa.int64(), nullable=False),
        pa.field("total", pa.int64(), nullable=False),
        pa.field("slot_us", pa.int64(), nullable=False),
    ]
)
"""Shares of all workers of a step: the expected offset keeps two workers from taking the same one.
`slot_us` is when the last of these calls may be made."""


def to_rows(records: Sequence[CallRecord]) -> pa.RecordBatch:
    """Records as rows of their journal."""
    rows = []
    for record in records:
        row = {name: getattr(record, name) for name in SCHEMA.names[:6]} | {
            "kind": record.kind.value
        }
        rows.append(row | {f"total_{name}": getattr(record.totals, name) for name in _TOTALS})
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def from_rows(rows: pa.Table) -> list[CallRecord]:
    """Rows of a journal as records."""
    return [
        CallRecord(
            at_us=row["at_us"],
            epoch=row["epoch"],
            kind=CallRecordKind(row["kind"]),
            first=row["first"],
            next=row["next"],
            calls=row["calls"],
            totals=Totals(**{name: row[f"total_{name}"] for name in _TOTALS}),
        )
        for row in rows.to_pylist()
    ]


def in_doubt(last: CallRecord | None, committed: int | None) -> CallRecord | None:
    """The record whose calls are in doubt, if the last one lies beyond the committed offset."""
    if last is None or last.kind is CallRecordKind.SETTLED or last.first < (committed or 0):
        return None
    return last
