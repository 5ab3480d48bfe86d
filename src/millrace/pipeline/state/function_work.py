"""A function of the user over the rows of a batch and the states of their keys."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.identity.schemas import conform
from millrace.journal.core.row_format import OFFSET
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    StateOutput,
    WorkFailed,
    WorkSettings,
    found,
    replaced,
)
from millrace.sql.typed_sql import quoted

StateFunction = Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]]


class FunctionWork:
    """Calls the function once for each batch."""

    def __init__(
        self,
        function: Callable[..., Any],
        keys: Sequence[str],
        *,
        name: str,
        state: pa.Schema,
        output: pa.Schema,
        settings: WorkSettings,
    ) -> None:
        self._function, self._name, self._keys = function, name, tuple(keys)
        self._state, self._output = state, output
        numbered = pa.schema([pa.field(KEPT_NUMBER, pa.int64()), *state])
        same = " AND ".join(f"a.{quoted(k)} IS NOT DISTINCT FROM b.{quoted(k)}" for k in keys)
        listed = ", ".join(f"a.{quoted(column)}" for column in state.names)
        # The hash may have given states of other keys, too.
        self._own = settings.engine().prepare(
            f"SELECT a.{KEPT_NUMBER}, {listed} FROM input_0 a SEMI JOIN input_1 b ON {same} "
            f"ORDER BY a.{KEPT_NUMBER}",
            numbered,
        )
        self._strange = settings.engine().prepare(
            f"SELECT a.{quoted(keys[0])} FROM input_0 a ANTI JOIN input_1 b ON {same} LIMIT 1",
            pa.schema([state.field(keys[0])]),
        )
        self._match = settings.engine().prepare(
            f"SELECT b.{KEPT_NUMBER}, {listed} FROM input_0 a LEFT JOIN input_1 b ON {same}",
            numbered,
        )

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        del progress
        old = self._own.run(found(rows, self._keys, kept), rows.select(list(self._keys)))
        made, states = self._called(rows.drop_columns([OFFSET]), old.select(self._state.names))
        matched = self._match.run(states, old)
        numbers = matched.column(KEPT_NUMBER)
        if states.num_rows and self._strange.run(states, rows.select(list(self._keys))).num_rows:
            raise WorkFailed(
                f"{self._name} returned a state for a key of which it got no row\n"
                "  to fix: return states for keys in its first argument alone"
            )
        if matched.num_rows and len(_distinct(states, self._keys)) < states.num_rows:
            raise WorkFailed(
                f"{self._name} returned two states for one key\n"
                "  to fix: return one row for each key that is to be remembered"
            )
        changes = replaced(matched.select(self._state.names), self._keys, numbers, kept)
        gone = old.filter(
            pc.invert(pc.is_in(old.column(KEPT_NUMBER), value_set=numbers.drop_null()))
        )
        if gone.num_rows:
            hashes = hash_rows(gone, self._keys)
            taken = removals_of(self._state, gone.column(KEPT_NUMBER).to_numpy(), hashes)
            changes = pa.concat_batches([changes, taken])
        last = rows.column(OFFSET)[rows.num_rows - 1].as_py()
        offsets = pa.array(np.full(made.num_rows, last, np.int64))
        schema = pa.schema([pa.field(OFFSET, pa.int64()), *self._output])
        return StateOutput(
            pa.RecordBatch.from_arrays([offsets, *made.columns], schema=schema), changes
        )

    def _called(
        self, rows: pa.RecordBatch, states: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        given = pa.Table.from_batches([rows]), pa.Table.from_batches([states])
        try:
            answer = self._function(*given)
        except Exception as error:
            text = f"{self._name} raised {type(error).__name__}: {error}"
            raise WorkFailed(text, traceback.format_exc()) from error
        match answer:
            case (pa.Table() | pa.RecordBatch() as made, pa.Table() | pa.RecordBatch() as after):
                return (
                    self._checked(made, self._output, "rows"),
                    self._checked(after, self._state, "states"),
                )
            case _:
                raise WorkFailed(
                    f"{self._name} returned {type(answer).__name__}\n"
                    "  to fix: return two Arrow tables: rows, and the states of the keys"
                )

    def _checked(
        self, given: pa.Table | pa.RecordBatch, schema: pa.Schema, what: str
    ) -> pa.RecordBatch:
        try:
            table = given if isinstance(given, pa.Table) else pa.Table.from_batches([given])
            parts = table.select(schema.names).combine_chunks().to_batches()
            batch = parts[0] if parts else pa.RecordBatch.from_pylist([], schema)
            return conform(batch, schema, where=f"the {what} of {self._name}")
        except (KeyError, pa.ArrowException) as error:
            raise WorkFailed(
                f"{self._name} returned {what} with other columns\n  found: "
                f"{', '.join(given.schema.names)}\n  to fix: return {', '.join(schema.names)}"
            ) from error

    def close(self) -> None:
        """See `StateWork.close`."""
        self._own.close()
        self._match.close()
        self._strange.close()


def _distinct(states: pa.RecordBatch, keys: Sequence[str]) -> pa.Table:
    return pa.Table.from_batches([states]).group_by(list(keys)).aggregate([])
