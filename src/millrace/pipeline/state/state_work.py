"""What an operator gives for a batch: rows for the next step, and changes of the state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.duckdb_engine import Engine
from millrace.journal.core.row_format import CHANGE_KIND
from millrace.keys.spark_hash import hash_rows
from millrace.limits import MIB
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.skipped_rows import NOTHING_SKIPPED, SkippedRows
from millrace.pipeline.state.state_rows import changes_of
from millrace.pipeline.state.state_table import StateTable

STATE_QUERY_BYTES_MAX: Final = 256 * MIB
"""The memory that the query of an operator over one batch may use before it spills to disk."""


class WorkFailed(Exception):
    """An operator cannot go on: its query or its function failed."""

    def __init__(self, error: str, traceback: str = "") -> None:
        super().__init__(error)
        self.error, self.traceback = error, traceback


@dataclass(frozen=True, slots=True)
class StateOutput:
    """The rows that come out of a batch, and how the state changes."""

    rows: pa.RecordBatch
    changes: pa.RecordBatch
    skipped: SkippedRows = NOTHING_SKIPPED
    """Rows that were left out."""


class StateWork(Protocol):
    """An operator over the rows of one unit. For one thread."""

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """Work on a batch, whose first column is `_mr_offset`; `kept` is as before it."""

    def close(self) -> None:
        """Give back what it has open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """Where and how the queries of operators run."""

    memory_bytes_max: int
    scratch: str
    time_zone: str

    def engine(self) -> Engine:
        """The engine for them."""
        return Engine(
            memory_bytes_max=min(STATE_QUERY_BYTES_MAX, self.memory_bytes_max),
            spill_folder=self.scratch,
            time_zone=self.time_zone,
        )


def found(rows: pa.RecordBatch, keys: tuple[str, ...], kept: StateTable) -> pa.RecordBatch:
    """The rows of the state that may have the keys of some rows."""
    return kept.find(hash_rows(rows, keys))


def replaced(
    rows: pa.RecordBatch,
    keys: tuple[str, ...],
    replaces: pa.Array,
    kept: StateTable,
    first: int | None = None,
) -> pa.RecordBatch:
    """The changes that put rows in place of those of these numbers; `first` is their number."""
    hashes: npt.NDArray[np.int32] = hash_rows(rows, keys)
    return changes_of(rows, hashes, kept.next_number if first is None else first, replaces)


def with_kinds(rows: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
    """Rows that came in place of rows of these numbers, with the kind of change in front."""
    kinds = pc.if_else(pc.is_null(numbers), "insert", "update")
    offset, *others = rows.schema
    return pa.RecordBatch.from_arrays(
        [rows.column(0), kinds, *rows.columns[1:]], schema=pa.schema([offset, *emitted(others)])
    )


def emitted(fields: Iterable[pa.Field]) -> pa.Schema:
    """The columns of rows with the kind of change in front."""
    return pa.schema([pa.field(CHANGE_KIND, pa.string()), *fields])
