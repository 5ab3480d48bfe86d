"""Spark's order of key columns, and the position of keys between bounds.

Nulls come first and NaN last, -0.0 equals 0.0, strings compare by their bytes, and several columns
compare from left to right. Invariant: `count_below`, `first_disorder` and `even_cuts` agree on that
order.

Keys are compared with bounds word by word: a column is one or more integer arrays which, one after
the other, have the column's order. Only rows that equal some bound in all words so far are compared
in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.keys.key_columns import Bytes, Column, Fixed, Wide, decoded, float_bits, physical

_Ints = npt.NDArray[Any]
_Word = Callable[[_Ints], _Ints]
"""Gives the word of the rows whose numbers it is given."""

WORD_BYTES: Final = 8


def count_below(bounds: Sequence[Column], keys: Sequence[Column]) -> npt.NDArray[np.int64]:
    """How many of the strictly ascending `bounds` are strictly below each key."""
    rows, bound_rows = np.arange(len(keys[0])), np.arange(len(bounds[0]))
    below = np.zeros(len(rows), np.int64)
    before: tuple[_Ints, _Ints, _Ints] | None = None
    for bound_word, key_word in _word_pairs(bounds, keys):
        if before is None:
            theirs, ours = bound_word(bound_rows), key_word(rows)
        else:
            theirs, ours, left = before
            tied = left < np.searchsorted(theirs, ours, "right")
            rows = rows[tied]
            if not len(rows):
                break
            group = np.searchsorted(theirs, theirs, "left")
            theirs, ours = _within(group, bound_word(bound_rows), left[tied], key_word(rows))
        left = np.searchsorted(theirs, ours, "left")
        below[rows] = left
        before = theirs, ours, left
    return below


def first_disorder(columns: Sequence[pa.Array]) -> int | None:
    """The first row that is not above the one before it, if any."""
    order, rises = _sorted(columns)
    moved = np.flatnonzero(order != np.arange(len(order)))
    if len(moved):  # the smallest row number that stands too early is the one out of order
        return int(order[moved[0]])
    level = np.flatnonzero(~rises)
    return int(level[0]) + 1 if len(level) else None


def even_cuts(columns: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.int64]:
    """Rows whose keys, as bounds, cut the rows into up to `partitions` parts of even size.

    Rows of equal keys stay together. Each part takes its share of the rest, so that one heavy key
    does not make the parts after it tiny.
    """
    order, rises = _sorted(columns)
    ends = np.append(np.flatnonzero(rises) + 1, len(order))
    cuts: list[int] = []
    done = 0
    for parts in range(partitions, 1, -1):
        share = -((done - len(order)) // parts)
        position = int(np.searchsorted(ends, done + share))
        if position >= len(ends) - 1:
            break
        done = int(ends[position])
        cuts.append(int(order[done - 1]))
    return np.array(cuts, np.int64)


def _within(bound_group: _Ints, theirs: _Ints, group: _Ints, ours: _Ints) -> tuple[_Ints, _Ints]:
    """Put (group, word) into one integer each that orders as the pair does."""
    distinct = np.unique(theirs)

    def rank(words: _Ints) -> _Ints:
        return np.searchsorted(distinct, words, "left") + np.searchsorted(distinct, words, "right")

    span = 2 * len(distinct) + 1
    return bound_group * span + rank(theirs), group * span + rank(ours)


def _word_pairs(bounds: Sequence[Column], keys: Sequence[Column]) -> Iterator[tuple[_Word, _Word]]:
    for bound, key in zip(bounds, keys, strict=True):
        if bound.validity is not None or key.validity is not None:
            yield _valid(bound).__getitem__, _valid(key).__getitem__
        longest = int(np.diff(bound.offsets).max(initial=0)) if isinstance(bound, Bytes) else 0
        yield from zip(_words(bound, longest), _words(key, longest), strict=True)


def _words(column: Column, longest: int) -> Iterator[_Word]:
    """The words of a column whose bounds have up to `longest` bytes. Under a null they are 0."""
    valid = _valid(column)
    if isinstance(column, Fixed):
        yield (sortable(column.values) * valid).__getitem__
    elif isinstance(column, Wide):
        yield (column.limbs[:, -1].view(np.int64) * valid).__getitem__
        for limb in range(column.limbs.shape[1] - 2, -1, -1):
            yield (column.limbs[:, limb] * valid).__getitem__
    else:
        starts = column.offsets[:-1].astype(np.int64)
        sizes = (column.offsets[1:] - starts) * valid
        for ahead in range(0, longest, WORD_BYTES):
            yield partial(_byte_words, column.data, starts + ahead, sizes - ahead)
        yield sizes.__getitem__


def _byte_words(
    data: npt.NDArray[np.uint8], starts: _Ints, sizes: _Ints, rows: _Ints
) -> npt.NDArray[np.uint64]:
    """Eight bytes of each of `rows` as a big-endian number, filled up with zeros."""
    starts, sizes = starts[rows], sizes[rows]
    words = np.zeros((len(rows), WORD_BYTES), np.uint8)
    for byte in range(WORD_BYTES):
        longer = np.flatnonzero(sizes > byte)
        words[longer, byte] = data[starts[longer] + byte]
    return words.view(">u8").ravel().astype(np.uint64)


def _valid(column: Column) -> npt.NDArray[np.bool_]:
    if column.validity is None:
        return np.ones(len(column), np.bool_)
    return column.validity.mask(0, len(column))


def sortable(values: _Ints) -> _Ints:
    """Integers that order as these values do in Spark."""
    if values.dtype.kind != "f":
        return values
    bits = float_bits(values)
    info = np.iinfo(bits.dtype)
    flipped: _Ints = bits ^ ((bits >> (info.bits - 1)) & info.max)
    return flipped


def _sorted(columns: Sequence[pa.Array]) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """Rows in order, and after each but the last of these whether the next one is greater."""
    names = [str(number) for number in range(len(columns))]
    table = pa.table([_comparable(column) for column in columns], names)
    # Nulls come first, by a key of their own: versions of Arrow are told of that in other ways.
    flags = {f"has {n}": pc.is_valid(table[n]) for n in names if table[n].null_count}
    ways = [key for n in names for key in (f"has {n}", n) if key in flags or key == n]
    flagged = pa.table([*table.columns, *flags.values()], [*names, *flags])
    order = pc.sort_indices(flagged, sort_keys=[(key, "ascending") for key in ways])
    table = table.take(order)
    rises = np.zeros(max(len(table) - 1, 0), np.bool_)
    for column in table.columns:
        before, after = column.slice(0, len(rises)), column.slice(1)
        differs = pc.fill_null(pc.not_equal(before, after), fill_value=False)
        rises |= differs.to_numpy() | (before.is_null().to_numpy() != after.is_null().to_numpy())
    return order.to_numpy(), rises


def _comparable(array: pa.Array) -> pa.Array:
    """The same values in a type that Arrow sorts as Spark does."""
    column = physical("bound", array)
    if isinstance(column, Fixed):
        return pa.array(sortable(column.values), mask=~_valid(column))
    return decoded(array) if isinstance(column, Wide) else decoded(array).cast(pa.large_binary())
