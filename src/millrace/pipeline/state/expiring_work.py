"""Forgets keys that were not used for some time, by the clock of the worker, around any operator.

Each row of the state has the time of its last change. Before a batch, the rows that are too old are
taken out; the operator does not see them. So a key that comes again begins anew. Law: with a `ttl`
that never runs out the operator does what it does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_rows import (
    HASH,
    KEPT_NUMBER,
    NUMBER,
    REPLACES,
    ROW,
    changes_schema,
    removals_of,
)
from millrace.pipeline.state.state_table import Hashes, StateTable
from millrace.pipeline.state.state_work import DELETE, StateOutput, StateWork, with_kinds

USED: Final = "_mr_used"
USED_FIELD: Final = pa.field(USED, pa.timestamp("us"))
"""When a row of the state was last changed."""


class _LiveRows(StateTable):
    """A state without the rows that are too old, and without the times of their changes."""

    __slots__ = ("_gone", "_whole")

    def __init__(self, whole: StateTable, gone: pa.Array) -> None:
        names = [field for field in whole.schema if field.name != USED]
        super().__init__(pa.schema(names), whole.next_number)
        self._whole, self._gone = whole, gone

    def find(self, hashes: Hashes) -> pa.RecordBatch:
        found = self._whole.find(hashes).drop_columns([USED])
        if not len(self._gone):
            return found
        return found.filter(pc.invert(pc.is_in(found.column(KEPT_NUMBER), value_set=self._gone)))


class ExpiringWork:
    """An operator whose keys are forgotten."""

    def __init__(
        self,
        work: StateWork,
        keys: tuple[str, ...],
        ttl_us: int,
        clock: Callable[[], int],
        shown: pa.Schema | None,
    ) -> None:
        """`shown`: the columns of rows that say that a key is gone; None: none come out."""
        self._work, self._keys, self._ttl_us = work, keys, ttl_us
        self._clock, self._shown = clock, shown

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        now = self._clock()
        bound = pa.scalar(now - self._ttl_us, pa.int64()).cast(USED_FIELD.type)
        old = kept.due(USED, bound)
        made = self._work.run(rows, _LiveRows(kept, old.column(KEPT_NUMBER)), progress)
        changes = _stamped(made.changes, kept.schema, now)
        if not old.num_rows:
            return StateOutput(made.rows, changes, made.skipped)
        numbers = old.column(KEPT_NUMBER).to_numpy()
        removed = removals_of(kept.schema, numbers, hash_rows(old, self._keys))
        out = made.rows
        if self._shown is not None:
            out = pa.concat_batches([self._deletes(old, rows.column(OFFSET)[0]), out])
        return StateOutput(out, pa.concat_batches([removed, changes]), made.skipped)

    def _deletes(self, old: pa.RecordBatch, offset: pa.Scalar) -> pa.RecordBatch:
        """The rows that say that keys are gone, in front of those of the batch."""
        assert self._shown is not None
        values = old.select(self._shown.names)
        offsets = pa.repeat(offset, old.num_rows)
        schema = pa.schema([pa.field(OFFSET, pa.int64()), *values.schema])
        whole = pa.RecordBatch.from_arrays([offsets, *values.columns], schema=schema)
        return with_kinds(whole, pa.array([DELETE] * old.num_rows, pa.string()))

    def close(self) -> None:
        """See `StateWork.close`."""
        self._work.close()


def _stamped(changes: pa.RecordBatch, state: pa.Schema, now_us: int) -> pa.RecordBatch:
    """Changes whose rows have the time of the change, too."""
    rows = changes.column(ROW)
    used = pa.array(np.full(len(rows), now_us, np.int64)).cast(USED_FIELD.type)
    fields = [*rows.type, USED_FIELD]
    columns = [*(pc.struct_field(rows, [n]) for n in range(rows.type.num_fields)), used]
    whole = pa.StructArray.from_arrays(columns, fields=fields, mask=rows.is_null())
    given = [changes.column(name) for name in (NUMBER, HASH, REPLACES)]
    return pa.RecordBatch.from_arrays([*given, whole], schema=changes_schema(state))
