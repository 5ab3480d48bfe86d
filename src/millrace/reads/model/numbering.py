"""Dense numbers for sparse ones, many at a time. Pure.

State that belongs to tags and producers is kept in arrays; a numbering says where in them.

Invariant: a number, once given, stays; numbers count from 0 without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from millrace.reads.model.tags import Ints

UNKNOWN: Final = -1
_PRODUCER_BITS: Final = 32
_OLD_SHARE: Final = 8
"""New values join the old ones when they are more than such a part of them."""
_RUNS_FROM: Final = 64
"""From this many on, a run of equal values or pairs is looked up once."""


@dataclass(slots=True)
class _SortedValues:
    """Values in order, and the number of each."""

    values: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    numbers: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def find(self, values: Ints) -> Ints:
        """The numbers of values; `UNKNOWN` for others."""
        if not len(self.values):
            return np.full(len(values), UNKNOWN, np.int64)
        places = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return np.where(self.values[places] == values, self.numbers[places], UNKNOWN)

    def insert(self, other: _SortedValues) -> None:
        """Take in others, none of which is here."""
        places = np.searchsorted(self.values, other.values)
        self.values = np.insert(self.values, places, other.values)
        self.numbers = np.insert(self.numbers, places, other.numbers)


class Numbering:
    """Numbers values in the order in which they first appear."""

    def __init__(self) -> None:
        self._old, self._new = _SortedValues(), _SortedValues()
        """The last values are apart: so a few more do not cost as much as all that are there."""
        self._values: Ints = np.empty(0, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Ints:
        """The values, by number."""
        return self._values[: self._count]

    def find(self, values: Ints) -> Ints:
        """The numbers of values; `UNKNOWN` for a value without a number."""
        if len(values) >= _RUNS_FROM:
            heads = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
            if 2 * len(heads) <= len(values):
                numbers = self._search(values[heads])
                return np.repeat(numbers, np.diff(heads, append=len(values)))
        return self._search(values)

    def _search(self, values: Ints) -> Ints:
        numbers = self._old.find(values)
        if len(self._new.values) and (is_left := numbers == UNKNOWN).any():
            numbers[is_left] = self._new.find(values[is_left])
        return numbers

    def number(self, values: Ints) -> Ints:
        """The numbers of values; new values get the next numbers."""
        numbers = self.find(values)
        if not (numbers == UNKNOWN).any():
            return numbers
        fresh, first = np.unique(values[numbers == UNKNOWN], return_index=True)
        ranks = np.empty(len(fresh), np.int64)
        ranks[np.argsort(first, kind="stable")] = np.arange(len(fresh))
        self._add(_SortedValues(fresh, self._count + ranks))
        return self.find(values)

    def _add(self, fresh: _SortedValues) -> None:
        self._count += len(fresh.values)
        if self._count > len(self._values):
            room = np.empty(self._count + self._count // 2, np.int64)
            room[: len(self._values)] = self._values
            self._values = room
        self._values[fresh.numbers] = fresh.values
        self._new.insert(fresh)
        if _OLD_SHARE * len(self._new.values) > len(self._old.values):
            self._old.insert(self._new)
            self._new = _SortedValues()


class PairNumbering:
    """Numbers pairs of a value and a producer, such as a tag's or a cohort's."""

    def __init__(self) -> None:
        self._firsts = Numbering()
        self._producers = Numbering()
        self._pairs = Numbering()

    def __len__(self) -> int:
        return len(self._pairs)

    def number(self, firsts: Ints, producers: Ints) -> Ints:
        """The numbers of pairs; new pairs get the next numbers."""
        if len(firsts) < _RUNS_FROM:
            return self._number(firsts, producers)
        is_head = np.ones(len(firsts), np.bool_)
        np.not_equal(firsts[1:], firsts[:-1], out=is_head[1:])
        is_head[1:] |= producers[1:] != producers[:-1]
        heads = np.flatnonzero(is_head)
        if 2 * len(heads) > len(firsts):
            return self._number(firsts, producers)
        numbers = self._number(firsts[heads], producers[heads])
        return np.repeat(numbers, np.diff(heads, append=len(firsts)))

    def _number(self, firsts: Ints, producers: Ints) -> Ints:
        first = self._firsts.number(firsts)
        second = self._producers.number(producers)
        assert len(self._producers) < 2**_PRODUCER_BITS
        return self._pairs.number(first << np.int64(_PRODUCER_BITS) | second)

    @property
    def firsts(self) -> Ints:
        """The first of each pair, by number."""
        numbers: Ints = self._pairs.values >> np.int64(_PRODUCER_BITS)
        return self._firsts.values[numbers]

    @property
    def producers(self) -> Ints:
        """The producer of each pair, by number."""
        numbers: Ints = self._pairs.values & np.int64(2**_PRODUCER_BITS - 1)
        return self._producers.values[numbers]

    def parts(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The first and the producer of the pairs with these numbers."""
        pairs = self._pairs.values[numbers]
        second: Ints = pairs & np.int64(2**_PRODUCER_BITS - 1)
        first: Ints = pairs >> np.int64(_PRODUCER_BITS)
        return self._firsts.values[first], self._producers.values[second]
