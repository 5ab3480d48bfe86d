"""Which partition each row belongs to.

Invariant: every row lands in exactly one partition (broadcast: in each), and in the same one
in every process, on every machine and for every cutting of rows into batches. `describe()` names
all that decides this, so that two partitioners with equal descriptions place rows alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import UserError
from millrace.keys.key_columns import as_names, key_names
from millrace.keys.spark_hash import check_partitions, partition_ids16

PartitionIds = npt.NDArray[np.uint16]


class Partitioner(Protocol):
    """Decides where rows go. Its values pickle, because Spark's workers need them."""

    @property
    def partitions(self) -> int:
        """How many partitions there are."""

    def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:
        """The partition of each row; `first_row` rows of the map task came before this batch."""

    def check(self, schema: pa.Schema) -> None:
        """Raise `UserError` if rows of this schema cannot be placed."""

    def describe(self) -> dict[str, object]:
        """All that decides where rows go, as JSON values."""


@dataclass(frozen=True, slots=True, init=False)
class HashPartitioner:
    """By Spark's hash of the keys: where `repartition(n, keys...)` would send the row.

    Example:
        >>> from millrace.keys import HashPartitioner, split
        >>> split(rows, HashPartitioner("cust_id", 4), first_row=0).part(1).num_rows
        2
    """

    keys: tuple[str, ...]
    partitions: int

    def __init__(self, keys: str | Sequence[str], partitions: int) -> None:
        check_partitions(partitions)
        object.__setattr__(self, "keys", as_names(keys))
        object.__setattr__(self, "partitions", partitions)

    def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:  # noqa: ARG002
        """The partition of each row."""
        return partition_ids16(batch, self.keys, self.partitions)

    def check(self, schema: pa.Schema) -> None:
        """Raise `UserError` if the keys are not columns that can be hashed."""
        key_names(schema, self.keys)

    def describe(self) -> dict[str, object]:
        """All that decides where rows go."""
        return {"kind": "hash", "keys": list(self.keys), "partitions": self.partitions}


@dataclass(frozen=True, slots=True)
class RoundRobinPartitioner:
    """In turn: row i of a map task goes to partition i modulo the number of partitions.

    Example:
        >>> from millrace.keys import RoundRobinPartitioner, split
        >>> split(rows, RoundRobinPartitioner(2), first_row=0).part(0)["amount"].to_pylist()
        [10, 30]
    """

    partitions: int

    def __post_init__(self) -> None:
        """Refuse a number of partitions that cannot be."""
        check_partitions(self.partitions)

    def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:
        """The partition of each row."""
        if self.partitions == 1:
            return np.zeros(batch.num_rows, np.uint16)
        first = first_row % self.partitions
        turns = np.arange(first, first + batch.num_rows) % self.partitions
        return turns.astype(np.uint16)

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def describe(self) -> dict[str, object]:
        """All that decides where rows go."""
        return {"kind": "round_robin", "partitions": self.partitions}


@dataclass(frozen=True, slots=True)
class BroadcastPartitioner:
    """Every row to every partition.

    Example:
        >>> from millrace.keys import BroadcastPartitioner, split
        >>> everywhere = split(rows, BroadcastPartitioner(2), first_row=0)
        >>> everywhere.part(0).num_rows, everywhere.part(1).num_rows
        (3, 3)
    """

    partitions: int

    def __post_init__(self) -> None:
        """Refuse a number of partitions that cannot be."""
        check_partitions(self.partitions)

    def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:  # noqa: ARG002
        """Refuse: a row has no one partition here. `split` knows what to do instead."""
        raise UserError(
            "a broadcast puts every row into every partition, so rows have no partition number"
            "\n  to fix: call split(batch, partitioner, first_row)"
        )

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def describe(self) -> dict[str, object]:
        """All that decides where rows go."""
        return {"kind": "broadcast", "partitions": self.partitions}


@dataclass(frozen=True, slots=True)
class CustomPartitioner:
    """By a function of yours, from a RecordBatch to one partition number per row.

    `describe()` leaves the function out; a caller that compares functions uses `function` and
    `version`.

    Example:
        >>> import pyarrow.compute as pc
        >>> from millrace.keys import CustomPartitioner, split
        >>> large = CustomPartitioner(lambda batch: pc.greater(batch["amount"], 15).cast("int8"), 2)
        >>> split(rows, large, first_row=0).part(1)["amount"].to_pylist()
        [20, 30]
    """

    function: Callable[[pa.RecordBatch], Any]
    partitions: int
    version: str | int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be called or counted."""
        check_partitions(self.partitions)
        if not callable(self.function):
            raise UserError(
                f"the partition function is {self.function!r}"
                "\n  to fix: give a function from a RecordBatch to an integer array"
            )

    def ids(self, batch: pa.RecordBatch, first_row: int) -> PartitionIds:
        """The partition of each row, as the function says, checked."""
        ids = self._numbers(self.function(batch))
        if ids.shape != (batch.num_rows,):
            raise self._wrong(f"gave {len(ids)} numbers for {batch.num_rows} rows")
        outside = np.flatnonzero((ids < 0) | (ids >= self.partitions))
        if len(outside):
            row = int(outside[0])
            raise self._wrong(
                f"put row {first_row + row} into partition {ids[row]} of {self.partitions}"
                f" (they count from 0 to {self.partitions - 1})"
            )
        return ids.astype(np.uint16)

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema: only the function knows what it needs."""

    def describe(self) -> dict[str, object]:
        """All that decides where rows go, but for the function itself."""
        return {"kind": "custom", "partitions": self.partitions, "version": self.version}

    def _numbers(self, answer: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - the user's
        if isinstance(answer, pa.ChunkedArray):
            answer = answer.combine_chunks()
        if isinstance(answer, pa.Array):
            if answer.null_count:
                row = answer.is_null().index(value=True).as_py()
                raise self._wrong(f"gave null for row {row} of the batch")
            answer = answer.to_numpy(zero_copy_only=False)
        if not isinstance(answer, np.ndarray) or answer.dtype.kind not in "iu":
            kind = getattr(answer, "dtype", type(answer).__name__)
            raise self._wrong(f"gave {kind}")
        return answer

    def _wrong(self, what: str) -> UserError:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return UserError(
            f"partition function {name} {what}\n  to fix: return one integer per row, as a pyarrow "
            f"or numpy array, each from 0 to {self.partitions - 1}"
        )
