"""Which keys a journal can hold, from its labels alone, and which rows have a key. Pure.

A label that has a column's name says what that column is in every row of the journal: labels
`{"region": "eu"}` promise that `region` is "eu" throughout. Labels are texts; they become values of
the column's type before they are hashed or compared.

Invariant: if labels keep that promise, no journal is skipped that holds a requested row. A
label that is no value of its column's type skips nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import UserError
from millrace.journal.core.values import JournalInfo
from millrace.keys.key_columns import key_names
from millrace.keys.key_ranges import KeyRange, unsigned
from millrace.keys.spark_hash import hash32

_KNOWN_MAX: Final = 4096


def fixed_values(info: JournalInfo, keys: Sequence[str]) -> dict[str, pa.Array]:
    """The key columns that labels fix, each with its one value."""
    fixed = {}
    for name in keys:
        if name in info.labels and name in info.schema.names:
            value = _value(info.labels[name], info.schema.field(name).type)
            if value is not None:
                fixed[name] = value
    return fixed


def fixed_place(info: JournalInfo, keys: Sequence[str]) -> int | None:
    """The key hash of all rows of a journal, if labels fix every key column."""
    if not keys or any(name not in info.labels or name not in info.schema.names for name in keys):
        return None
    return _key_hash(
        tuple(info.labels[name] for name in keys),
        tuple(info.schema.field(name).type for name in keys),
    )


def can_hold(
    info: JournalInfo, keys: Sequence[str], key_range: KeyRange, key: pa.RecordBatch | None = None
) -> bool:
    """Whether a journal can hold rows of a range, and of this very key if one is given."""
    key_hash = fixed_place(info, keys)
    if key_hash is not None and not key_range.contains(key_hash):
        return False
    if key is None:
        return True
    fixed = fixed_values(info, keys)
    return all(
        _equal(value, key[name][0]).to_pylist() == [True]
        for name, value in fixed.items()
        if name in key.schema.names
    )


def place_of(key: pa.RecordBatch) -> int:
    """The hash of a key, given as a batch of one row."""
    return int(unsigned(hash32(key, key.schema.names))[0])


def key_of(info: JournalInfo, given: pa.RecordBatch) -> pa.RecordBatch:
    """A key in the types of a journal's columns; a key that does not fit is refused."""
    names = key_names(info.schema, given.schema.names)
    columns = []
    for name in names:
        kind = info.schema.field(name).type
        value = _cast(given[name], kind)
        if value is None:
            raise UserError(
                f"key {name}={given[name][0].as_py()!r} is no value of journal {info.name!r}\n"
                f"  column {name!r} there is {kind}\n  to fix: give a value of this type"
            )
        columns.append(value)
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def with_key(batch: pa.RecordBatch, key: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that have this key: other keys may have the same hash."""
    mask = np.ones(batch.num_rows, np.bool_)
    for name in key.schema.names:
        mask &= _equal(batch[name], key[name][0]).to_numpy(zero_copy_only=False)
    return batch if mask.all() else batch.filter(pa.array(mask))


def _equal(column: pa.Array, value: pa.Scalar) -> pa.Array:
    """Equal as keys are: null to null, NaN to NaN, -0.0 to 0.0."""
    if not value.is_valid:
        return column.is_null()
    is_nan = pa.types.is_floating(value.type) and np.isnan(value.as_py())
    return pc.fill_null(pc.is_nan(column) if is_nan else pc.equal(column, value), fill_value=False)


# Very many journals have the same few labels.
@lru_cache(maxsize=_KNOWN_MAX)
def _key_hash(texts: tuple[str, ...], kinds: tuple[pa.DataType, ...]) -> int | None:
    values = [_value(text, kind) for text, kind in zip(texts, kinds, strict=True)]
    if any(value is None for value in values):
        return None
    return place_of(pa.RecordBatch.from_arrays(values, names=[str(n) for n in range(len(values))]))


@lru_cache(maxsize=_KNOWN_MAX)
def _value(text: str, kind: pa.DataType) -> pa.Array | None:
    return _cast(pa.array([text], pa.string()), kind)


def _cast(value: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return value.cast(kind)
    except (pa.ArrowException, ValueError, OverflowError):
        return None
