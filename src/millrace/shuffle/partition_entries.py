"""Where the rows of a partition are in a map output: entries of a fixed width.

Invariant: an entry has a file if and only if it names a range of bytes with a checksum, and it
names no file outside its attempt's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from millrace.ids import ReducePartition
from millrace.storage import layout

ENTRY: Final = np.dtype(
    [
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("rows", "<u8"),
        ("checksum", "<u8"),
        ("batches", "<u4"),
        ("form", "<u4"),
    ]
)
"""An entry as it is written to files: 40 bytes."""

EntryArray: TypeAlias = npt.NDArray[np.void]

NO_FILE: Final = 0
DATA_FILE: Final = 1
"""The range is one of the attempt's `data.ipc`."""
PART_FILE: Final = 2
"""The range is one of `part-{partition}.ipc`, as attempts before version 2 of the index have it."""

_CHECKSUM: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMeta:
    """The bytes of one partition and what is in it. `file` is None exactly when it is empty."""

    reduce_partition: ReducePartition
    file: str | None
    offset: int
    bytes: int
    rows: int
    batches: int
    checksum: str | None


class PartitionEntries(Sequence[PartitionMeta]):
    """The entries of one map output, partition after partition; a few bytes each."""

    __slots__ = ("array",)

    def __init__(self, array: EntryArray) -> None:
        self.array = array

    @classmethod
    def of(cls, metas: Iterable[PartitionMeta]) -> PartitionEntries:
        """Entries from their fields."""
        return cls(np.array([_packed(meta) for meta in metas], ENTRY))

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> PartitionMeta: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[PartitionMeta, ...]: ...

    def __getitem__(self, at: int | slice) -> PartitionMeta | tuple[PartitionMeta, ...]:
        numbers = range(len(self.array))[at]
        if isinstance(numbers, range):
            return tuple(self[number] for number in numbers)
        return meta_of(self.array[numbers].item(), numbers)

    def __iter__(self) -> Iterator[PartitionMeta]:
        for number, entry in enumerate(self.array.tolist()):
            yield meta_of(entry, number)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, PartitionEntries) and np.array_equal(self.array, other.array)
        return bool(same)

    def __hash__(self) -> int:
        return hash(self.array.tobytes())

    def __repr__(self) -> str:
        return f"PartitionEntries({list(self)!r})"


def check(array: EntryArray) -> None:
    """Raise `ValueError` unless these entries are such as a writer makes."""
    form, has_file = array["form"], array["form"] != NO_FILE
    usable = (array["bytes"] > 0) & (array["rows"] > 0)
    wrong = (form > PART_FILE) | (has_file & ~usable)
    wrong |= ~has_file & ((array["rows"] > 0) | (array["bytes"] > 0))
    if wrong.any():
        number = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"partition {number} has the entry {array[number].item()}")


def meta_of(entry: tuple[Any, ...], partition: int) -> PartitionMeta:
    """The fields of an entry of a partition."""
    offset, size, rows, checksum, batches, form = entry
    file = None
    if form != NO_FILE:
        number = ReducePartition(partition)
        file = layout.DATA_FILE if form == DATA_FILE else layout.part_file(number)
    return PartitionMeta(
        reduce_partition=ReducePartition(partition),
        file=file,
        offset=offset,
        bytes=size,
        rows=rows,
        batches=batches,
        checksum=None if file is None else f"{checksum:016x}",
    )


def _packed(meta: PartitionMeta) -> tuple[int, ...]:
    form, checksum = NO_FILE, 0
    if meta.file is not None:
        form = DATA_FILE if meta.file == layout.DATA_FILE else PART_FILE
        if form == PART_FILE and meta.file != layout.part_file(meta.reduce_partition):
            raise ValueError(f"partition {meta.reduce_partition} names the file {meta.file!r}")
        if meta.checksum is None or not _CHECKSUM.fullmatch(meta.checksum):
            raise ValueError(f"partition {meta.reduce_partition} has checksum {meta.checksum!r}")
        checksum = int(meta.checksum, 16)
    return (meta.offset, meta.bytes, meta.rows, checksum, meta.batches, form)
