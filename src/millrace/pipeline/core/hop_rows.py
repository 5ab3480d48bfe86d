"""Rows on their way through a hop, each with the offset of the input row it comes from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core.row_format import OFFSET, OFFSET_FIELD, SYSTEM_COLUMNS
from millrace.journal.core.values import Fetched

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HopRows:
    """A batch and its rows' offsets, which never fall."""

    batch: pa.RecordBatch
    offsets: Offsets

    def __post_init__(self) -> None:
        assert self.batch.num_rows == len(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, begin: int, end: int) -> HopRows:
        """The rows from one index up to another."""
        return HopRows(self.batch.slice(begin, end - begin), self.offsets[begin:end])

    def before(self, offset: int) -> HopRows:
        """The rows below an offset."""
        return self.slice(0, int(np.searchsorted(self.offsets, offset)))

    def with_offsets(self) -> pa.RecordBatch:
        """The rows as one batch, with the offsets as its first column."""
        schema = pa.schema([OFFSET_FIELD, *self.batch.schema])
        return pa.RecordBatch.from_arrays(
            [pa.array(self.offsets), *self.batch.columns], schema=schema
        )

    @classmethod
    def from_offsets(cls, batch: pa.RecordBatch) -> HopRows:
        """Rows from a batch that `with_offsets` made."""
        offsets = batch.column(OFFSET).to_numpy()
        return cls(batch.drop_columns([OFFSET]), offsets)


def nothing(schema: pa.Schema) -> HopRows:
    """No rows."""
    return HopRows(pa.RecordBatch.from_pylist([], schema), np.empty(0, np.int64))


def together(schema: pa.Schema, some: Sequence[HopRows]) -> HopRows:
    """Several batches of rows as one batch."""
    some = [rows for rows in some if len(rows)]
    if len(some) == 1:
        return some[0]
    if not some:
        return nothing(schema)
    batch = pa.concat_batches([rows.batch for rows in some])
    return HopRows(batch, np.concatenate([rows.offsets for rows in some]))


def fetched_rows(fetched: Fetched, schema: pa.Schema, end: int | None) -> tuple[HopRows, int]:
    """The fetched rows below `end`, and the offset to read next."""
    next_ = int(fetched.next_offset)
    some = [
        HopRows(
            pa.RecordBatch.from_arrays(stored.columns[SYSTEM_COLUMNS:], schema=schema),
            stored.column(OFFSET).to_numpy(),
        )
        for stored in fetched.batches
    ]
    rows = together(schema, some)
    if end is not None and next_ > end:
        rows, next_ = rows.before(end), end
    return rows, next_
