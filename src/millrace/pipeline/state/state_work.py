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
from millrace.journal.core.row_format import CHANGE_KIND, OFFSET
from millrace.keys.spark_hash import hash_rows
from millrace.limits import MIB
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.skipped_rows import NOTHING_SKIPPED, SkippedRows
from millrace.pipeline.state.state_operators import Emit
from millrace.pipeline.state.state_rows import KEPT_NUMBER, changes_of
from millrace.pipeline.state.state_table import StateTable

STATE_QUERY_BYTES_MAX: Final = 256 * MIB
"""The memory that the query of an operator over one batch may use before it spills to disk."""


INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
"""Kinds of changes. In order: what goes comes before what takes its place."""


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


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows that came in place of others, with their offsets in front."""

    rows: pa.RecordBatch
    numbers: pa.Array
    """The numbers of the rows of the state that they replace, or null."""
    known: pa.RecordBatch
    """Rows of the state, these among them."""
    is_gone: pa.Array | None = None
    """Where the row goes and none takes its place."""

    def emitted(self, emit: Emit) -> pa.RecordBatch:
        """The rows that come out."""
        gone = self.is_gone
        if gone is None:
            gone = pa.repeat(pa.scalar(False), self.rows.num_rows)  # noqa: FBT003 - of a column
        if emit == "upserts":
            return self.rows
        if emit == "changes":
            new = pc.if_else(pc.is_null(self.numbers), INSERT, UPDATE)
            kinds = pc.if_else(gone, DELETE, new)
            if not pc.any(gone).as_py():
                return with_kinds(self.rows, kinds)
            olds = pa.concat_batches([self._old(gone), self.rows.filter(pc.invert(gone))])
            return in_order(
                with_kinds(
                    olds, pa.concat_arrays([kinds.filter(gone), kinds.filter(pc.invert(gone))])
                )
            )
        old = self._old(pc.is_valid(self.numbers))
        new = self.rows.filter(pc.invert(gone))
        kinds = pa.concat_arrays([pa.repeat(DELETE, old.num_rows), pa.repeat(INSERT, new.num_rows)])
        return in_order(with_kinds(pa.concat_batches([old, new]), kinds))

    def _old(self, some: pa.Array) -> pa.RecordBatch:
        """The rows of the state that some rows replace, at the offsets of these."""
        fields = list(self.rows.schema)[1:]
        numbers = self.numbers.filter(some)
        at = pc.index_in(numbers, value_set=self.known.column(KEPT_NUMBER))
        old = self.known.select([field.name for field in fields]).take(at)
        offsets = self.rows.column(0).filter(some)
        return pa.RecordBatch.from_arrays([offsets, *old.columns], schema=self.rows.schema)


def with_kinds(rows: pa.RecordBatch, kinds: pa.Array) -> pa.RecordBatch:
    """Rows with the kind of change behind their offset."""
    offset, *others = rows.schema
    return pa.RecordBatch.from_arrays(
        [rows.column(0), kinds, *rows.columns[1:]], schema=pa.schema([offset, *emitted(others)])
    )


def in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """By offset; what goes before what comes."""
    keys = [(OFFSET, "ascending"), (CHANGE_KIND, "ascending")]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))


def refuse_updates(rows: pa.RecordBatch, who: str) -> None:
    """Refuse changes that do not say which row goes."""
    kinds = pc.unique(rows.column(CHANGE_KIND)).to_pylist()
    if unknown := [kind for kind in kinds if kind not in (INSERT, DELETE)]:
        raise WorkFailed(
            f"{who}: a change of kind {unknown[0]!r} does not say which row it replaces\n"
            "  to fix: let the step that makes the changes emit='retractions'"
        )


def emitted(fields: Iterable[pa.Field]) -> pa.Schema:
    """The columns of rows with the kind of change in front."""
    return pa.schema([pa.field(CHANGE_KIND, pa.string()), *fields])
