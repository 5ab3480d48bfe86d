"""The rows that a step with state left out, and why: totals of a partition, beside its state.

Invariant: a total is published in the transaction that moves the offset past the rows that it
counts, so it counts each of them once.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Final

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """How many rows were left out."""

    late: int = 0
    """Too far behind an earlier row of their own journal."""
    closed: int = 0
    """In time, but all their windows had closed: their journal counted as idle, or was new."""
    without_time: int = 0
    """Rows whose time is null."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.late + self.closed + self.without_time

    def plus(self, more: SkippedRows) -> SkippedRows:
        """Both together."""
        sums = (a + b for a, b in zip(astuple(self), astuple(more), strict=True))
        return SkippedRows(*sums)

    def to_rows(self) -> pa.RecordBatch:
        """The row that is published."""
        return pa.RecordBatch.from_pylist([asdict(self)], SKIPPED_SCHEMA)

    @classmethod
    def from_row(cls, row: dict[str, int] | None) -> SkippedRows:
        """The totals of a published row; none were left out where there is no row."""
        if row is None:
            return NOTHING_SKIPPED
        return cls(**{name: row[name] for name in SKIPPED_SCHEMA.names})


SKIPPED_SCHEMA: Final = pa.schema([pa.field(name, pa.int64()) for name in SkippedRows.__slots__])
NOTHING_SKIPPED: Final = SkippedRows()
