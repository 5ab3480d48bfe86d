"""How many journals a slice reads next, and how much of each. Pure.

Rows go out in the order of their keys, so a row waits until every journal has been read past it.
What counts is how far the lowest key of all journals rises for the bytes of one call. Journals that
were written at the same time are read together, a little of each. Journals that were written one
after the other are read one after the other, a lot of each: rows of the later ones would only fill
the buffer.

Invariant: the journal that holds the others back is always among those that are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.reads.model.tags import Clocks, Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Tags that may be read, those that hold back the others first."""

    tags: Ints
    keys: Clocks
    """Of the last row that was read, rising; 0 of a tag that was not read yet."""
    rows_per_key: Floats
    """How dense the last rows of each tag were."""
    rows_left: Floats
    """How many rows are known to be there."""
    holding: int
    """How many tags of this priority may be read, also those that are not among these."""


@dataclass(frozen=True, slots=True)
class FetchSize:
    """Read so many of the candidates, and so many rows of each."""

    tags: int
    rows_each: int


def fetch_size(found: Candidates, *, rows: int, rows_least: int, is_full: bool) -> FetchSize:
    """How to spend a call of about `rows`; of each journal at least `rows_least` are read.

    With a full buffer no more is read than brings the lowest key to that of the next journal.
    """
    # Nothing is known of journals that were not read yet: any may hold all others back.
    fresh = int(np.searchsorted(found.keys, np.uint64(0), side="right"))
    if fresh and is_full:
        count = min(fresh, max(1, rows // rows_least))
        return FetchSize(count, max(rows_least, rows // count))
    if fresh == len(found.keys):
        return FetchSize(fresh, max(rows_least, rows // fresh))
    known = _known_size(found, fresh, rows, rows_least, is_full=is_full)
    if not fresh:
        return known
    count = fresh + known.tags
    return FetchSize(count, max(rows_least, rows // count))


def _known_size(
    found: Candidates, first: int, rows: int, rows_least: int, *, is_full: bool
) -> FetchSize:
    """The same for the candidates from `first` on, which were read before."""
    keys = (found.keys[first:] - found.keys[first]).astype(np.float64)
    rows_per_key, rows_left = found.rows_per_key[first:], found.rows_left[first:]
    best, furthest = FetchSize(1, rows_least), -1.0
    for count in _counts(len(keys)):
        each = max(rows_least, rows // count)
        if is_full and count > 1 and each * count > rows:
            break
        is_whole = rows_left[:count] <= each
        reached = np.where(is_whole, np.inf, keys[:count] + each / rows_per_key[:count])
        lowest = min(float(reached.min()), float(keys[count]) if count < len(keys) else np.inf)
        if lowest >= furthest:
            best, furthest = FetchSize(count, each), lowest
    if is_full and np.isfinite(furthest):
        needed = ((furthest - keys[: best.tags]) * rows_per_key[: best.tags]).max()
        return FetchSize(best.tags, int(min(best.rows_each, max(rows_least, needed))))
    return best


def _counts(most: int) -> list[int]:
    """Numbers of tags to be tried: powers of two, and all."""
    return [1 << bit for bit in range((most - 1).bit_length())] + [most]
