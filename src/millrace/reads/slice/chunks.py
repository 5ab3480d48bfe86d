"""Rows that a slice has read and not let go yet, in the chunks in which they came. Pure."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core.committed_rows import stamps_of
from millrace.journal.core.row_format import (
    CLOCK,
    HINTS,
    KEY,
    OFFSET,
    PRODUCER,
    SYSTEM_COLUMNS,
    TIMESTAMP,
)
from millrace.reads.model.governor import RowOrder
from millrace.reads.model.sequence import Stamped
from millrace.reads.model.tags import TAG, Ints

_SPARSE: Final = 4
"""If one of so many rows is wanted, the others are not copied."""
_RUN_ROWS_MIN: Final = 64
"""Runs of at least so many rows are copied as slices."""
_PIECE_ROWS_MIN: Final = 256
"""With fewer rows of a chunk in a piece, chunks are joined before pieces are made of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of one binding as they were read."""

    binding: int
    stamped: Stamped
    pairs: Ints
    """The number of each row's tag and producer."""
    owners: Ints
    hints: pa.Array
    rows: pa.RecordBatch
    """As queues get them: tag, producer, clock, offset, then the rest."""


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
        self._bytes += chunk.rows.nbytes
        self._all_bytes += chunk.rows.nbytes
        self._all_rows += chunk.rows.num_rows
        return self._next

    def keep(self, numbers: set[int]) -> None:
        """Drop all chunks but these."""
        for number in [known for known in self._chunks if known not in numbers]:
            self._bytes -= self._chunks.pop(number).rows.nbytes

    def stamped(self, places: RowOrder) -> tuple[Stamped, Ints]:
        """The system fields of rows, in this order, and the numbers of their pairs."""
        parts = self._parts(places)
        if len(parts) == 1:
            chunk, _, where = parts[0]
            return _pick(chunk.stamped, where), chunk.pairs[where]
        pairs = np.empty(len(places), np.int64)
        out = Stamped(
            tags=np.empty(len(places), np.int64),
            offsets=np.empty(len(places), np.int64),
            producers=np.empty(len(places), np.int64),
            clocks=np.empty(len(places), np.uint64),
            flags=np.empty(len(places), np.uint8),
        )
        for chunk, which, where in parts:
            picked = _pick(chunk.stamped, where)
            out.tags[which], out.offsets[which] = picked.tags, picked.offsets
            out.producers[which], out.clocks[which] = picked.producers, picked.clocks
            out.flags[which] = picked.flags
            pairs[which] = chunk.pairs[where]
        return out, pairs

    def hints(self, places: RowOrder) -> tuple[Ints, Ints]:
        """The journals that these rows name: for each, which of the rows, and the journal."""
        rows, journals = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for chunk, which, where in self._parts(places):
            lists = chunk.hints.take(pa.array(where))
            lengths = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False))
            rows.append(np.repeat(which, lengths.astype(np.int64)))
            journals.append(lists.flatten().to_numpy())
        return np.concatenate(rows), np.concatenate(journals)

    def routed(self, places: RowOrder, rows_max: int) -> Iterator[Routed]:
        """Rows by binding and member, each in this order, so many in a batch at most.

        Batches are made one at a time: the memory of one serves the next.
        """
        parts = self._parts(places)
        for binding in dict.fromkeys(chunk.binding for chunk, _, _ in parts):
            yield from _routed([part for part in parts if part[0].binding == binding], rows_max)

    def _parts(self, places: RowOrder) -> list[tuple[Chunk, Ints, Ints]]:
        """By chunk: the chunk, the indexes of its rows in `places`, and their rows in it."""
        if not len(places):
            return []
        if (places.chunk == places.chunk[0]).all():
            every = np.arange(len(places))
            return [(self._chunks[int(places.chunk[0])], every, places.row)]
        order = np.argsort(places.chunk, kind="stable")
        cuts = np.flatnonzero(np.diff(places.chunk[order])) + 1
        return [
            (self._chunks[int(places.chunk[indexes[0]])], indexes, places.row[indexes])
            for indexes in np.split(order, cuts)
        ]


def chunk_of(
    binding: int,
    tags: Ints,
    rows: pa.RecordBatch,
    owners: Ints,
    number: Callable[[Ints, Ints], Ints],
) -> Chunk:
    """Stored rows of one binding, those of a tag together and in order, as a chunk.

    `number` numbers pairs of tag and producer.
    """
    stamps = stamps_of(rows)
    columns = {TAG: pa.array(tags)}
    columns |= {name: rows[name] for name in (PRODUCER, CLOCK, OFFSET)}
    columns |= {n: rows[n] for n in (KEY, TIMESTAMP) if rows[n].null_count < rows.num_rows}
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


def _routed(parts: Sequence[tuple[Chunk, Ints, Ints]], rows_max: int) -> Iterator[Routed]:
    """Rows of one binding, out of one chunk or several."""
    owners = np.concatenate([chunk.owners[where] for chunk, _, where in parts])
    one_owner = bool((owners == owners[0]).all())
    order: Ints | None = None
    if len(parts) > 1:
        ranks = np.concatenate([which for _, which, _ in parts])
        order = np.argsort(ranks) if one_owner else np.lexsort((ranks, owners))
    elif not one_owner:
        order = np.argsort(owners.astype(np.uint16), kind="stable")
    if order is not None:
        owners = owners[order]
    taken = _Taken(parts, order, rows_max)
    edges = [] if one_owner else (np.flatnonzero(np.diff(owners)) + 1).tolist()
    for first in range(0, len(owners), rows_max):
        last = min(first + rows_max, len(owners))
        rows = taken.rows(first, last)
        cuts = [first, *edges[bisect(edges, first) : bisect_left(edges, last)], last]
        for begin, end in pairwise(cuts):
            yield Routed(int(owners[begin]), rows.slice(begin - first, end - begin))


class _Taken:
    """Rows of several chunks in an order, copied a piece at a time."""

    def __init__(
        self, parts: Sequence[tuple[Chunk, Ints, Ints]], order: Ints | None, rows_max: int
    ) -> None:
        self._rows = [chunk.rows for chunk, _, _ in parts]
        where = np.concatenate([where for _, _, where in parts])
        pieces = len(parts) * -(-len(where) // rows_max)
        if len(parts) > 1 and pieces * _PIECE_ROWS_MIN > len(where):
            # A piece has few rows of each chunk: they are joined first.
            self._rows, where = _joined(parts)
        self._where = where if order is None else where[order]
        self._source: Ints | None = None
        if len(self._rows) > 1:
            lengths = [len(places) for _, _, places in parts]
            self._source = np.repeat(np.arange(len(parts)), lengths)[order]

    def rows(self, begin: int, end: int) -> pa.RecordBatch:
        """Some of the rows."""
        where = self._where[begin:end]
        if self._source is None:
            return _take(self._rows[0], where)
        source = self._source[begin:end]
        if (source == source[0]).all():
            return _take(self._rows[int(source[0])], where)
        places = np.empty(len(where), np.int64)
        pieces, before = [], 0
        for number in np.unique(source).tolist():
            which = source == number
            pieces.append(_take(self._rows[number], where[which]))
            places[which] = np.arange(before, before + pieces[-1].num_rows)
            before += pieces[-1].num_rows
        return _take(_concat(pieces), places)


def _joined(parts: Sequence[tuple[Chunk, Ints, Ints]]) -> tuple[list[pa.RecordBatch], Ints]:
    """The rows of all parts behind each other, and where in them the wanted rows are."""
    pieces, places, before = [], [], 0
    for chunk, _, where in parts:
        first, last = int(where.min()), int(where.max())
        if _SPARSE * len(where) < last + 1 - first:
            pieces.append(chunk.rows.take(pa.array(where)))
            places.append(np.arange(before, before + len(where)))
        else:
            pieces.append(chunk.rows.slice(first, last + 1 - first))
            places.append(where + (before - first))
        before += pieces[-1].num_rows
    return [_concat(pieces)], np.concatenate(places)


def _take(rows: pa.RecordBatch, where: Ints) -> pa.RecordBatch:
    """These rows, without a copy if they are contiguous."""
    edges = np.flatnonzero(np.diff(where) != 1) + 1
    if not len(edges):
        return rows.slice(int(where[0]), len(where))
    if (len(edges) + 1) * _RUN_ROWS_MIN > len(where):
        return rows.take(pa.array(where))
    # Runs of rows are copied as they are, which is several times as fast.
    cuts = [0, *edges.tolist(), len(where)]
    return pa.concat_batches(
        [rows.slice(int(where[begin]), end - begin) for begin, end in pairwise(cuts)]
    )


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches; a system column that a batch lacks is null there."""
    if all(batch.schema.equals(batches[0].schema) for batch in batches):
        return pa.concat_batches(batches)
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    together = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return together.to_batches()[0]


def _pick(rows: Stamped, where: npt.NDArray[np.int64]) -> Stamped:
    return Stamped(
        tags=rows.tags[where],
        offsets=rows.offsets[where],
        producers=rows.producers[where],
        clocks=rows.clocks[where],
        flags=rows.flags[where],
    )
