"""Rows that a slice has read and not let go yet, in the chunks in which they came. Pure."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core.committed_rows import stamps_of
from millrace.journal.core.row_format import (
    HINTS,
    KEY,
    SYSTEM_COLUMNS,
    TIMESTAMP,
)
from millrace.reads.model.column_checks import STAGED_FIELDS
from millrace.reads.model.governor import RowOrder
from millrace.reads.model.sequence import Stamped
from millrace.reads.model.tags import Ints

_SPARSE: Final = 4
"""If one of so many rows is wanted, the others are not copied."""
_RUN_ROWS_MIN: Final = 64
"""Runs of at least so many rows are copied as slices."""
_PIECE_ROWS_MIN: Final = 256
"""With fewer rows of a chunk in a piece, chunks are joined before pieces are made of them."""
_STAMP_BYTES: Final = 32
"""What tag, producer, clock and offset of a row take."""
_STAGED_TYPES: Final = (np.int64, np.int64, np.uint64, np.int64)
_SMALL: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of one binding as they were read."""

    binding: int
    stamped: Stamped
    pairs: Ints
    """The number of each row's tag and producer."""
    owners: npt.NDArray[np.uint16]
    hints: pa.Array
    rows: pa.RecordBatch
    """What queues get of them behind tag, producer, clock and offset."""

    @property
    def nbytes(self) -> int:
        """The bytes that queues get of it."""
        return int(self.rows.nbytes) + _STAMP_BYTES * len(self.stamped)


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows of one binding for one member."""

    owner: int
    rows: pa.RecordBatch


class Chunks:
    """Holds chunks by number until none of their rows waits."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._next = 0
        self._bytes = 0
        self._all_bytes = self._all_rows = 0

    @property
    def row_bytes(self) -> int:
        """What a row takes, on average of all that came; 1 before the first."""
        return max(1, self._all_bytes // max(1, self._all_rows))

    @property
    def nbytes(self) -> int:
        """The bytes of all chunks."""
        return self._bytes

    def add(self, chunk: Chunk) -> int:
        """Hold a chunk; returns its number."""
        self._next += 1
        self._chunks[self._next] = chunk
        self._bytes += chunk.nbytes
        self._all_bytes += chunk.nbytes
        self._all_rows += len(chunk.stamped)
        return self._next

    def keep(self, numbers: set[int]) -> None:
        """Drop all chunks but these."""
        for number in [known for known in self._chunks if known not in numbers]:
            self._bytes -= self._chunks.pop(number).nbytes

    def binding(self, number: int) -> int:
        """The binding of the rows of a chunk."""
        return self._chunks[number].binding

    def stamped(self, number: int, rows: Ints) -> tuple[Stamped, Ints]:
        """The system fields of rows of a chunk, rising, and the numbers of their pairs."""
        chunk = self._chunks[number]
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):
            return chunk.stamped.slice(first, last), chunk.pairs[first:last]
        return chunk.stamped.take(rows), chunk.pairs.take(rows)

    def hints(self, number: int, rows: Ints) -> tuple[Ints, Ints]:
        """The journals that rows of a chunk name: for each, which of the rows, and the journal."""
        lists = self._chunks[number].hints.take(pa.array(rows))
        lengths = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False))
        which = np.repeat(np.arange(len(rows)), lengths.astype(np.int64))
        return which, lists.flatten().to_numpy()

    def routed(self, places: RowOrder, rows_max: int) -> Iterator[Routed]:
        """Rows by binding and member, each in this order, so many in a batch at most.

        Batches are made one at a time: the memory of one serves the next.
        """
        parts = self._parts(places)
        chunks = [chunk for chunk, _, _ in parts]
        sources = np.zeros(len(places), np.int64)
        owners: npt.NDArray[np.uint16]
        if len(parts) == 1:
            where = parts[0][2]
            owners, stamps = chunks[0].owners.take(where), chunks[0].stamped.staged(where)
        else:
            owners = np.empty(len(places), np.uint16)
            stamps = [np.empty(len(places), kind) for kind in _STAGED_TYPES]
            for number, (chunk, which, where) in enumerate(parts):
                owners[which], sources[which] = chunk.owners.take(where), number
                for column, picked in zip(stamps, chunk.stamped.staged(where), strict=True):
                    column[which] = picked
        bindings = np.array([chunk.binding for chunk in chunks])
        for binding in dict.fromkeys(bindings.tolist()):
            order = None
            if (bindings != binding).any():
                order = np.flatnonzero((bindings == binding)[sources])
            if not (owners == owners[0]).all():
                order = _by_owner(owners, order)
            rows = _OrderedRows(chunks, sources, places.row, stamps, order)
            yield from _cut(rows, owners if order is None else owners[order], rows_max)

    def _parts(self, places: RowOrder) -> list[tuple[Chunk, Ints, Ints]]:
        """By chunk: the chunk, the indexes of its rows in `places`, and their rows in it."""
        if not len(places):
            return []
        if (places.chunk == places.chunk[0]).all():
            every = np.arange(len(places))
            return [(self._chunks[int(places.chunk[0])], every, places.row)]
        order = _digits_order(places.chunk - places.chunk.min())
        cuts = np.flatnonzero(np.diff(places.chunk[order])) + 1
        return [
            (self._chunks[int(places.chunk[indexes[0]])], indexes, places.row[indexes])
            for indexes in np.split(order, cuts)
        ]


def chunk_of(
    binding: int,
    tags: Ints,
    rows: pa.RecordBatch,
    owners: npt.NDArray[np.uint16],
    number: Callable[[Ints, Ints], Ints],
) -> Chunk:
    """Stored rows of one binding, those of a tag together and in order, as a chunk.

    `number` numbers pairs of tag and producer.
    """
    stamps = stamps_of(rows)
    columns = {n: rows[n] for n in (KEY, TIMESTAMP) if rows[n].null_count < rows.num_rows}
    names = rows.schema.names[SYSTEM_COLUMNS:]
    columns |= {name: rows[name] for name in names}
    stamped = Stamped(
        tags=tags,
        offsets=stamps.offsets,
        producers=stamps.producers,
        clocks=stamps.clocks,
        flags=stamps.flags,
    )
    return Chunk(
        binding=binding,
        stamped=stamped,
        pairs=number(tags, stamps.producers),
        owners=owners,
        hints=rows[HINTS],
        rows=pa.RecordBatch.from_pydict(columns),
    )


def _by_owner(owners: npt.NDArray[np.uint16], order: Ints | None) -> Ints:
    """Rows, or these of them, by owner, and otherwise as they are."""
    if order is None:
        return np.argsort(owners, kind="stable")
    return order[np.argsort(owners[order], kind="stable")]


def _digits_order(values: Ints) -> Ints:
    """A stable order of numbers from 0 on: of 16 bits by their digits, which is fast."""
    return np.argsort(values.astype(np.uint16) if values.max() < _SMALL else values, kind="stable")


def _cut(rows: _OrderedRows, owners: npt.NDArray[np.uint16], rows_max: int) -> Iterator[Routed]:
    """Ordered rows, those of one owner together, in batches."""
    rows.prepare(rows_max)
    edges = (np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist()
    for first in range(0, len(owners), rows_max):
        last = min(first + rows_max, len(owners))
        batch = rows.batch(first, last)
        cuts = [first, *edges[bisect(edges, first) : bisect_left(edges, last)], last]
        for begin, end in pairwise(cuts):
            yield Routed(int(owners[begin]), batch.slice(begin - first, end - begin))


class _OrderedRows:
    """Rows of several chunks of one binding in an order, copied a piece at a time."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        sources: Ints,
        where: Ints,
        stamps: Sequence[npt.NDArray[Any]],
        order: Ints | None,
    ) -> None:
        self._rows = [chunk.rows for chunk in chunks]
        self._sources = sources if order is None else sources[order]
        """The chunk of each row, and where it is there."""
        self._where = where if order is None else where.take(order)
        self._stamps = stamps if order is None else [column.take(order) for column in stamps]

    def prepare(self, rows_max: int) -> None:
        """Join the chunks first, if pieces of so many rows have few of each."""
        numbers = np.flatnonzero(np.bincount(self._sources)).tolist()
        pieces = len(numbers) * -(-len(self._where) // rows_max)
        if len(numbers) > 1 and pieces * _PIECE_ROWS_MIN > len(self._where):
            places = [np.flatnonzero(self._sources == number) for number in numbers]
            parts = [self._where[which] for which in places]
            whole, joined = _joined([self._rows[number] for number in numbers], parts)
            self._rows, self._sources = [whole], np.zeros_like(self._where)
            self._where = np.empty(len(self._where), np.int64)
            self._where[np.concatenate(places)] = joined

    def batch(self, begin: int, end: int) -> pa.RecordBatch:
        """Some of the rows, as queues get them."""
        rows = self._content(self._sources[begin:end], self._where[begin:end])
        stamps = [pa.array(column[begin:end]) for column in self._stamps]
        schema = pa.schema([*STAGED_FIELDS, *rows.schema])
        return pa.RecordBatch.from_arrays([*stamps, *rows.columns], schema=schema)

    def _content(self, sources: Ints, where: Ints) -> pa.RecordBatch:
        is_edge = where[1:] != where[:-1] + 1
        is_edge |= sources[1:] != sources[:-1]
        edges = np.flatnonzero(is_edge) + 1
        cuts = [0, *edges.tolist(), len(where)]
        if len(cuts) * _RUN_ROWS_MIN <= len(where) or len(cuts) == 2:  # noqa: PLR2004 - one run
            # Runs of rows are copied as they are, which is several times as fast.
            return _concat(
                [
                    self._rows[sources[begin]].slice(int(where[begin]), end - begin)
                    for begin, end in pairwise(cuts)
                ]
            )
        if (sources == sources[0]).all():
            return self._rows[sources[0]].take(pa.array(where))
        order = _digits_order(sources)
        pieces = np.split(order, np.flatnonzero(np.diff(sources[order])) + 1)
        together = _concat(
            [self._rows[sources[piece[0]]].take(pa.array(where[piece])) for piece in pieces]
        )
        places = np.empty(len(where), np.int64)
        places[order] = np.arange(len(where))
        return together.take(pa.array(places))


def _joined(rows: Sequence[pa.RecordBatch], parts: Sequence[Ints]) -> tuple[pa.RecordBatch, Ints]:
    """Batches behind each other, and where in them the wanted rows of each are."""
    pieces, places, before = [], [], 0
    for batch, where in zip(rows, parts, strict=True):
        first, last = int(where.min()), int(where.max())
        if _SPARSE * len(where) < last + 1 - first:
            pieces.append(batch.take(pa.array(where)))
            places.append(np.arange(before, before + len(where)))
        else:
            pieces.append(batch.slice(first, last + 1 - first))
            places.append(where + (before - first))
        before += pieces[-1].num_rows
    return _concat(pieces), np.concatenate(places)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches; a system column that a batch lacks is null there."""
    if len(batches) == 1:
        return batches[0]
    if all(batch.schema.equals(batches[0].schema) for batch in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    together = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return together.to_batches()[0]
