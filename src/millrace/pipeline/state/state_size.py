"""How large the state of a partition is, published with its changes: the last row counts. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa

from millrace.pipeline.state.state_table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSize:
    """The rows of a state, and about how many bytes they take in memory."""

    rows: int
    bytes: int

    @classmethod
    def of(cls, kept: StateTable) -> StateSize:
        """As a state is now."""
        return cls(rows=len(kept), bytes=kept.nbytes)

    def to_rows(self) -> pa.RecordBatch:
        """The row that is published."""
        return pa.RecordBatch.from_pylist([asdict(self)], SIZE_SCHEMA)


SIZE_SCHEMA = pa.schema([("rows", pa.int64()), ("bytes", pa.int64())])
