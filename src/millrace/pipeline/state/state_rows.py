"""The form of a state's changes in journals, and of the record of its snapshots. Pure.

A change adds a row, takes one out, or puts one in place of another. Rows have numbers, which rise
within the state of one unit. Law: the rows that changes added, without those that changes took out,
are the state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NUMBER: Final = "number"
HASH: Final = "hash"
REPLACES: Final = "replaces"
ROW: Final = "row"
KEPT_NUMBER: Final = "_mr_number"
"""The number of a row of the state, beside its columns."""


def changes_schema(state: pa.Schema) -> pa.Schema:
    """The columns of the journal of a state's changes."""
    row = pa.struct([pa.field(field.name, field.type) for field in state])
    return pa.schema(
        [
            pa.field(NUMBER, pa.int64()),
            pa.field(HASH, pa.int32()),
            pa.field(REPLACES, pa.int64()),
            pa.field(ROW, row),
        ]
    )


def changes_of(
    rows: pa.RecordBatch,
    hashes: npt.NDArray[np.int32],
    first: int,
    replaces: pa.Array,
) -> pa.RecordBatch:
    """Changes that add rows, each in place of the row whose number `replaces` has, if any."""
    count = rows.num_rows
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(first, first + count)), pa.array(hashes), replaces, _struct(rows)],
        schema=changes_schema(rows.schema),
    )


def removals_of(
    state: pa.Schema, numbers: npt.NDArray[np.int64], hashes: npt.NDArray[np.int32]
) -> pa.RecordBatch:
    """Changes that take rows out."""
    schema, count = changes_schema(state), len(numbers)
    nothing = pa.nulls(count, schema.field(ROW).type)
    return pa.RecordBatch.from_arrays(
        [pa.nulls(count, pa.int64()), pa.array(hashes), pa.array(numbers), nothing], schema=schema
    )


def added(changes: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], pa.Array]:
    """The rows that changes add, their numbers, and the hashes of their keys."""
    some = changes.filter(pc.is_valid(changes.column(NUMBER)))
    rows = pa.RecordBatch.from_struct_array(some.column(ROW))
    return rows, some.column(NUMBER).to_numpy(), some.column(HASH)


def _struct(rows: pa.RecordBatch) -> pa.StructArray:
    fields = [pa.field(field.name, field.type) for field in rows.schema]
    return pa.StructArray.from_arrays(rows.columns, fields=fields)
