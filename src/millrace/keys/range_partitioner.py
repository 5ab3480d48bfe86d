"""Partitioning by ranges of keys, with bounds given or sampled.

Invariant: partitions ascend. Every key of partition p is at or below bound p, and above bound
p - 1, in Spark's order of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import UserError
from millrace.keys.key_columns import (
    Bytes,
    Fixed,
    Rows,
    as_names,
    chunks,
    decoded,
    key_names,
    physical,
    plain_type,
    take_rows,
)
from millrace.keys.partitioner import PartitionIds
from millrace.keys.spark_hash import check_partitions
from millrace.keys.spark_order import count_below, even_cuts, first_disorder, sortable


@dataclass(frozen=True, slots=True, init=False)
class RangePartitioner:
    """By ranges of the keys: a row goes to the partition numbered by the bounds below its key.

    `bounds` is a table or batch with the key columns or, for one key, a sequence of values. They
    ascend strictly. A key that equals a bound goes to the left of it, as in Spark.

    Example:
        >>> from millrace.keys import RangePartitioner, split
        >>> low_and_high = RangePartitioner("amount", [15])
        >>> split(rows, low_and_high, first_row=0).part(1)["amount"].to_pylist()
        [20, 30]
    """

    keys: tuple[str, ...]
    bounds: pa.Table

    def __init__(self, keys: str | Sequence[str], bounds: Rows | Sequence[Any]) -> None:
        names = as_names(keys)
        table = _as_table(names, bounds)
        key_names(table.schema, names)
        check_partitions(len(table) + 1)
        object.__setattr__(self, "keys", names)
        object.__setattr__(self, "bounds", table)
        _check_ascending(_columns(table, names))

    @property
    def partitions(self) -> int:
        """How many partitions there are: one more than bounds."""
        return len(self.bounds) + 1

    def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:  # noqa: ARG002
        """The partition of each row."""
        bounds = self._bounds_for(batch.schema)
        if not len(bounds[0]):
            return np.zeros(batch.num_rows, np.uint16)
        below = count_below(
            [physical(name, bound) for name, bound in zip(self.keys, bounds, strict=True)],
            [physical(name, batch.column(name)) for name in self.keys],
        )
        return below.astype(np.uint16)

    def check(self, schema: pa.Schema) -> None:
        """Raise `UserError` if the keys are not columns of the bounds' types."""
        self._bounds_for(schema)

    def describe(self) -> dict[str, object]:
        """All that decides where rows go."""
        columns = _columns(self.bounds, self.keys)
        return {
            "kind": "range",
            "keys": list(self.keys),
            "types": [str(column.type) for column in columns],
            "bounds": [_values(column) for column in columns],
        }

    def _bounds_for(self, schema: pa.Schema) -> list[pa.Array]:
        """The bounds in the types of the rows' columns."""
        names = key_names(schema, self.keys)
        columns = _columns(self.bounds, names)
        return [
            _retyped(name, column, plain_type(schema.field(name).type))
            for name, column in zip(names, columns, strict=True)
        ]


def sample_bounds(sample: Rows, keys: str | Sequence[str], partitions: int) -> pa.Table:
    """Up to `partitions - 1` strictly ascending bounds that cut `sample` into even parts."""
    check_partitions(partitions)
    names = key_names(sample.schema, keys)
    columns = _columns(sample, names)
    cuts = pa.array(even_cuts(columns, partitions))
    return pa.table([take_rows(column, cuts) for column in columns], list(names))


def _as_table(names: tuple[str, ...], bounds: Rows | Sequence[Any]) -> pa.Table:
    if isinstance(bounds, pa.RecordBatch | pa.Table):
        key_names(bounds.schema, names)
        return pa.table([_one_array(bounds.column(name)) for name in names], list(names))
    if len(names) > 1:
        raise UserError(
            f"bounds for {len(names)} keys came as {type(bounds).__name__}"
            f"\n  to fix: give a pyarrow.Table with the columns {', '.join(names)}"
        )
    try:
        array = bounds if isinstance(bounds, pa.Array) else pa.array(list(bounds))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(
            f"bounds of {names[0]!r} are not values of one type\n  found: {error}"
            "\n  to fix: give a sequence of values, or a pyarrow array"
        ) from error
    return pa.table([decoded(array)], list(names))


def _columns(rows: Rows, names: Sequence[str]) -> list[pa.Array]:
    return [_one_array(rows.column(name)) for name in names]


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    arrays = [decoded(array) for array in chunks(column)]
    return pa.concat_arrays(arrays) if arrays else pa.array([], plain_type(column.type))


def _check_ascending(columns: Sequence[pa.Array]) -> None:
    row = first_disorder(columns)
    if row is not None:
        before = ", ".join(str(column[max(row - 1, 0)]) for column in columns)
        bound = ", ".join(str(column[row]) for column in columns)
        raise UserError(
            f"bounds do not ascend\n  found: bound {row} is {bound}, after {before}"
            "\n  to fix: sort them (nulls first, NaN last) and leave out repeated ones"
        )


def _retyped(name: str, bounds: pa.Array, target: pa.DataType) -> pa.Array:
    if bounds.type == target:
        return bounds
    values = bounds.to_pylist()
    shown = f"values that change as {target}"
    try:
        converted = pa.array(values, target)
        if all(_same(old, new) for old, new in zip(values, converted.to_pylist(), strict=True)):
            return converted
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shown = str(error)
    raise UserError(
        f"bounds of {name!r} are {bounds.type}, the column is {target}\n  found: {shown}"
        f"\n  to fix: give bounds of type {target}"
    )


def _same(old: object, new: object) -> bool:
    return old == new or (old != old and new != new)  # noqa: PLR0124 - NaN is not equal to itself


def _values(bounds: pa.Array) -> list[object]:
    """The bounds as JSON values that are equal exactly where the bounds are."""
    column = physical("bound", bounds)
    if isinstance(column, Fixed):
        values: list[object] = sortable(column.values).tolist()
    elif isinstance(column, Bytes):
        values = [
            value.hex() for value in bounds.cast(pa.large_binary()).fill_null(b"").to_pylist()
        ]
    else:
        values = [limbs.tobytes().hex() for limbs in column.limbs]
    nulls = bounds.is_null().to_pylist()
    return [None if null else value for null, value in zip(nulls, values, strict=True)]
