"""Pairs of tag and producer, looked up many at a time. Pure.

A few pairs are searched in the sorted list. For many there is a table with open addressing, built
and searched with whole arrays: each round finds nearly all of the pairs that are left.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.tags import Clocks, Ints

Mask = npt.NDArray[np.bool_]

NOWHERE: Final = -1
_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF: Final = np.uint64(32)
_WIDE: Final = 16
"""A small table has so many slots for each pair, so that few lookups need a second round."""
_WIDE_PAIRS_MAX: Final = 4096
_WORTH_A_TABLE: Final = 8
"""A table is built once one pair in this many was looked up."""


def mixed(tags: Ints, producers: Ints) -> Clocks:
    """64 bits of each pair, the high ones well mixed."""
    bits = tags.view(np.uint64) * _FIRST
    bits ^= bits >> _HALF
    bits += producers.view(np.uint64)
    bits *= _SECOND
    return bits


class PairIndex:
    """The index of each pair in a list without duplicates, sorted by tag and producer."""

    def __init__(self, tags: Ints, producers: Ints) -> None:
        self._tags = tags
        self._producers = producers
        bits = max(4, ((_WIDE if len(tags) <= _WIDE_PAIRS_MAX else 4) * len(tags)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._wrap = np.int64((1 << bits) - 1)
        self._slots: Ints | None = None
        self._lookups = 0
        rises = tags[1:] > tags[:-1]
        rises |= (tags[1:] == tags[:-1]) & (producers[1:] > producers[:-1])
        assert rises.all(), "pairs are listed once, in order"

    def find(self, tags: Ints, producers: Ints) -> Ints:
        """The index of each of these pairs; `NOWHERE` if it is not listed."""
        if not len(self._tags):
            return np.full(len(tags), NOWHERE, np.int64)
        self._lookups += len(tags)
        if self._lookups * _WORTH_A_TABLE < len(self._tags):
            return self._search(tags, producers)
        if self._slots is None:
            self._slots = self._built()
        return self._probe(self._slots, tags, producers)

    def _search(self, tags: Ints, producers: Ints) -> Ints:
        low = np.searchsorted(self._tags, tags, side="left")
        high = np.searchsorted(self._tags, tags, side="right")
        places = _bisect(self._producers, low, high, producers) - 1
        is_listed = (places >= low) & (self._producers[places] == producers)
        return np.where(is_listed, places, NOWHERE)

    def _built(self) -> Ints:
        slots = np.full(int(self._wrap) + 1, NOWHERE, np.int64)
        left = np.arange(len(self._tags))
        at = self._homes(self._tags, self._producers)
        while len(left):
            free = slots[at] == NOWHERE
            slots[at[free]] = left[free]  # the last of several wins
            lost = slots[at] != left
            left, at = left[lost], (at[lost] + 1) & self._wrap
        return slots

    def _probe(self, slots: Ints, tags: Ints, producers: Ints) -> Ints:
        at = self._homes(tags, producers)
        places = slots[at]
        left = np.flatnonzero(self._is_other(places, tags, producers))
        at = at[left]
        while len(left):
            at = (at + 1) & self._wrap
            next_places = slots[at]
            places[left] = next_places
            other = self._is_other(next_places, tags[left], producers[left])
            left, at = left[other], at[other]
        return places

    def _homes(self, tags: Ints, producers: Ints) -> Ints:
        return (mixed(tags, producers) >> self._shift).view(np.int64)

    def _is_other(self, places: Ints, tags: Ints, producers: Ints) -> Mask:
        """Whether the slot has another pair; False if it is empty."""
        other: Mask = self._tags[places] != tags
        other |= self._producers[places] != producers
        other &= places != NOWHERE
        return other


class OffsetRanges:
    """Rolled-back ranges of pairs, and a test of which rows are in one."""

    def __init__(self, gone: RolledBack) -> None:
        self._begins = gone.begin
        if not len(gone):
            return
        gone = gone.take(np.lexsort((gone.begin, gone.producer, gone.tag)))
        is_first = np.ones(len(gone), np.bool_)
        is_first[1:] = gone.tag[1:] != gone.tag[:-1]
        is_first[1:] |= gone.producer[1:] != gone.producer[:-1]
        self._starts = np.flatnonzero(is_first)
        self._stops = np.append(self._starts[1:], len(gone))
        self._pairs = PairIndex(gone.tag[self._starts], gone.producer[self._starts])
        self._begins = gone.begin
        self._ends = running_max_within(np.cumsum(is_first) - 1, gone.end)
        self._highest = np.maximum.reduceat(gone.highest, self._starts)

    def __bool__(self) -> bool:
        return bool(len(self._begins))

    def highest(self, tags: Ints, producers: Ints) -> Clocks:
        """The highest clock in a pair's ranges; 0 if it has none."""
        if not self:
            return np.zeros(len(tags), np.uint64)
        places = self._pairs.find(tags, producers)
        return np.where(places == NOWHERE, np.uint64(0), self._highest[places])

    def contain(self, tags: Ints, producers: Ints, offsets: Ints) -> Mask:
        """Whether each of these rows was rolled back."""
        inside = np.zeros(len(tags), np.bool_)
        if not self:
            return inside
        places = self._pairs.find(tags, producers)
        concerned = np.flatnonzero(places != NOWHERE)
        places, offsets = places[concerned], offsets[concerned]
        starts = self._starts[places]
        behind = _bisect(self._begins, starts, self._stops[places], offsets)
        inside[concerned] = (behind > starts) & (offsets < self._ends[behind - 1])
        return inside


def running_max_within(group: Ints, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The highest value so far within each group; rows are sorted by group number."""
    distinct, ranks = np.unique(values, return_inverse=True)
    base = group * len(distinct)
    highest: npt.NDArray[Any] = distinct[np.maximum.accumulate(base + ranks) - base]
    return highest


def _bisect(begins: Ints, low: Ints, high: Ints, offsets: Ints) -> Ints:
    """Behind the last begin at or below each offset, within its own range of places."""
    while (is_open := low < high).any():
        middle = (low + high) // 2
        right = begins[np.minimum(middle, len(begins) - 1)] <= offsets
        low = np.where(is_open & right, middle + 1, low)
        high = np.where(is_open & ~right, middle, high)
    return low
