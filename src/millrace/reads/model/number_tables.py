"""Small tables of numbers, as arrays and as bytes. Pure.

Reports of slices and checkpoints are a few tables of integers each. They are sent and stored as
Arrow: one record batch for each table, in the order in which the tables are declared.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import DataLost
from millrace.reads.model.tags import Ints

NONE: Final = -1
"""In a column of offsets: there is none. Offsets are never negative."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length, all of them numpy arrays of integers; subclasses declare them."""

    TYPES: ClassVar[dict[str, Any]] = {}
    """The type of a column, where it is not int64."""

    def __post_init__(self) -> None:
        """Check that every column has its type, and that all have one length."""
        lengths = set()
        for field in fields(self):
            column = getattr(self, field.name)
            dtype = self.TYPES.get(field.name, np.int64)
            assert column.dtype == dtype, (type(self).__name__, field.name, column.dtype)
            lengths.add(len(column))
        assert len(lengths) == 1, (type(self).__name__, lengths)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    @classmethod
    def empty(cls) -> Self:
        """No rows."""
        return cls.of([])

    @classmethod
    def of(cls, rows: list[tuple[int, ...]]) -> Self:
        """From rows, for the few that are made one by one."""
        names = [field.name for field in fields(cls)]
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        typed = zip(names, columns, strict=True)
        return cls(*(np.array(column, cls.TYPES.get(name, np.int64)) for name, column in typed))

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """The rows of several tables, one after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, which: Ints | npt.NDArray[np.bool_]) -> Self:
        """Some of the rows, by index or by mask."""
        return type(self)(*(getattr(self, field.name)[which] for field in fields(self)))

    def rows(self) -> list[tuple[int, ...]]:
        """As rows, for tests and for people."""
        columns = [getattr(self, field.name).tolist() for field in fields(self)]
        return list(zip(*columns, strict=True))

    def batch(self) -> pa.RecordBatch:
        """As Arrow."""
        names = [field.name for field in fields(self)]
        return pa.RecordBatch.from_arrays([pa.array(getattr(self, n)) for n in names], names)

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Self:
        """From Arrow; columns that are missing or of another type are refused."""
        columns = []
        for field in fields(cls):
            dtype = np.dtype(cls.TYPES.get(field.name, np.int64))
            index = batch.schema.get_field_index(field.name)
            if index < 0 or batch.schema.field(index).type != pa.from_numpy_dtype(dtype):
                raise DataLost(
                    f"{cls.__name__} has no column {field.name} of {dtype}\n"
                    "  to fix: open it with the version of Millrace that wrote it"
                )
            if batch.column(index).null_count:
                raise DataLost(
                    f"{cls.__name__} has nulls in its column {field.name}\n"
                    "  to fix: go back to an earlier checkpoint"
                )
            columns.append(batch.column(index).to_numpy())
        return cls(*columns)


def pack(tables: list[Table]) -> bytes:
    """Several tables as bytes."""
    sink = pa.BufferOutputStream()
    for table in tables:
        batch = table.batch()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack(content: bytes | pa.Buffer, kinds: list[type[Any]]) -> list[Any]:
    """The tables of these bytes, of these kinds in this order."""
    source = pa.BufferReader(content)
    tables = []
    try:
        for kind in kinds:
            with pa.ipc.open_stream(source) as reader:
                batches = list(reader)
            tables.append(kind.from_batch(batches[0]))
    except (pa.ArrowInvalid, IndexError, OSError) as error:
        raise DataLost(
            f"tables cannot be read: {error}\n  to fix: go back to an earlier checkpoint"
        ) from error
    return tables
