"""The first row of each key, once: for ever, or again when some time has passed.

The state of a key is the time of its row that came out last. A row of the key comes out if its time
is later by at least `within`; rows are taken in the order in which they come. A row without a time
comes out if it is the first of its key, and the next row with a time comes out behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_operators import FirstRow
from millrace.pipeline.state.state_rows import KEPT_NUMBER, changes_schema
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    StateOutput,
    WorkSettings,
    found,
    replaced,
)
from millrace.sql.typed_sql import quoted


class FirstRowWork:
    """Lets one row of each key through."""

    def __init__(
        self, operator: FirstRow, keys: Sequence[str], schema: pa.Schema, settings: WorkSettings
    ) -> None:
        self._keys, self._repeats = tuple(keys), operator.within_us is not None
        self._state = first_row_state(operator, keys, schema)
        self._names = schema.names
        answer = pa.schema(
            [pa.field(OFFSET, pa.int64()), pa.field(KEPT_NUMBER, pa.int64()), *schema]
        )
        self._query = settings.engine().prepare(_query(operator, keys, schema.names), answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        del progress
        out, changes = [], list[pa.RecordBatch]()
        known = found(rows, self._keys, kept)
        first = kept.next_number
        while True:
            answer = self._query.run(rows, known)
            if not answer.num_rows:
                break
            out.append(answer.select([OFFSET, *self._names]))
            state = answer.select(self._state.names)
            change = replaced(state, self._keys, answer.column(KEPT_NUMBER), kept, first)
            changes.append(change)
            first += change.num_rows
            if not self._repeats:
                break
            # A key may have another row in this batch that is late enough: look again.
            numbered = [change.column(0), *state.columns]
            schema = pa.schema([pa.field(KEPT_NUMBER, pa.int64()), *self._state])
            fresh = pa.RecordBatch.from_arrays(numbered, schema=schema)
            gone = pc.is_in(known.column(KEPT_NUMBER), value_set=answer.column(KEPT_NUMBER))
            known = pa.concat_batches([known.filter(pc.invert(gone)).cast(schema), fresh])
        if not out:
            nothing = rows.slice(0, 0)
            return StateOutput(nothing, pa.RecordBatch.from_pylist([], changes_schema(self._state)))
        passed = pa.concat_batches(out)
        order = pc.sort_indices(passed, sort_keys=[(OFFSET, "ascending")])
        return StateOutput(passed.take(order), pa.concat_batches(changes))

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()


def first_row_state(operator: FirstRow, keys: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """The columns of the state."""
    names = [*keys, *([operator.time] if operator.time and operator.time not in keys else [])]
    return pa.schema([schema.field(name) for name in names])


def _query(operator: FirstRow, keys: Sequence[str], names: Sequence[str]) -> str:
    """The first row of each key of `input_0` that the state in `input_1` lets through."""
    by = ", ".join(f"r.{quoted(key)}" for key in keys)
    same = " AND ".join(f"r.{quoted(key)} IS NOT DISTINCT FROM k.{quoted(key)}" for key in keys)
    listed = ", ".join(f"r.{quoted(name)}" for name in names)
    passes = f"k.{KEPT_NUMBER} IS NULL"
    if operator.time is not None:
        time, span = quoted(operator.time), f"INTERVAL {operator.within_us} MICROSECOND"
        later = (
            f"coalesce(r.{time} >= k.{time} + {span}, k.{time} IS NULL AND r.{time} IS NOT NULL)"
        )
        passes = f"({passes} OR {later})"
    return (
        f"SELECT r.{OFFSET}, k.{KEPT_NUMBER}, {listed} FROM input_0 r LEFT JOIN input_1 k "
        f"ON {same} WHERE {passes} "
        f"QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY r.{OFFSET}) = 1 ORDER BY 1"
    )
