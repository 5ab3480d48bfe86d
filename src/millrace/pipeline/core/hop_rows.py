"""Rows on their way through a hop, each with the offset of the input row it comes from. Pure.

The idempotency key of a row is a digest of the job, the step, the function and the row.
Law: a row has the same key in a retry, in another worker and in a later run. Any other row, job,
workspace, step or function has another key. The first run of a job makes the job's id and saves it
in the job's record, so the id goes when the job's journals go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core.row_format import OFFSET, OFFSET_FIELD, SYSTEM_COLUMNS
from millrace.journal.core.values import Fetched

Offsets = npt.NDArray[np.int64]
_DIGEST_BYTES: Final = 20
_LENGTH_BYTES: Final = 8


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


# Keys of rows.
def asker_of(job_id: str, job: str, step: str, function: str) -> bytes:
    """The digest that all keys of a step begin with."""
    return _digest(b"asker", *(part.encode() for part in (job_id, job, step, function))).digest()


def row_keys(asker: bytes, journal_id: int, rows: HopRows, begin: int, end: int) -> tuple[str, ...]:
    """The keys of some rows: digests of their content and their position in the journal."""
    offsets = rows.offsets[begin:end]
    # A step in front may have made several rows of one; its first lies where the offset begins.
    repeats = np.arange(begin, end) - np.searchsorted(rows.offsets, offsets)
    batch = rows.batch.slice(begin, end - begin)
    columns = str([(field.name, str(field.type)) for field in batch.schema]).encode()
    numbered_rows = zip(offsets.tolist(), repeats.tolist(), batch.to_pylist(), strict=True)
    return tuple(
        _digest(
            asker, b"%d/%d/%d" % (journal_id, offset, repeat), columns, _content(row)
        ).hexdigest()
        for offset, repeat, row in numbered_rows
    )


def batch_key(keys: Sequence[str]) -> str:
    """The key of a call for several rows."""
    return keys[0] if len(keys) == 1 else _digest(b"batch", *map(str.encode, keys)).hexdigest()


def _digest(*parts: bytes) -> hashlib.blake2b:
    """A digest of the parts with their lengths, so that two lists of parts never give one text."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(_LENGTH_BYTES))
        digest.update(part)
    return digest


def _content(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, default=_in_words).encode()


def _in_words(value: Any) -> str:  # noqa: ANN401 - anything that Arrow gives for a value
    return value.hex() if isinstance(value, bytes) else str(value)
