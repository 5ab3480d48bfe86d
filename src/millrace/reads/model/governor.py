"""The order in which a slice lets rows go. Pure.

Rows of one tag keep their order. Across tags, those of higher priority go first, then those with
the lower clock plus read delay, as far as rows have arrived: a row waits while a tag that has more
to read could still bring an earlier one. A row under its delay waits for the time and blocks
no other; one without a delay never waits for the time, with any clock. The key of a row is the
highest clock plus delay of its tag so far, so that a tag's own order holds: that is a merge of the
tags by their heads, and of two heads that are equal the tag that was started first goes first.

Invariant: the keys that are let go within a priority never fall, as long as no tag brings a key
below one that was let go already, but for rows that waited for their delay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.reads.model.fetch_plan import Candidates, Floats
from millrace.reads.model.numbering import UNKNOWN, Numbering
from millrace.reads.model.tags import Clocks, Ints

Mask = npt.NDArray[np.bool_]
_LAST: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """Rows in the order in which they go: for each its chunk and its row there."""

    chunk: Ints
    row: Ints

    def __len__(self) -> int:
        return len(self.chunk)

    def pieces(self, rows_max: int) -> Iterator[RowOrder]:
        """The same rows, so many at a time."""
        for begin in range(0, len(self), rows_max):
            some = slice(begin, begin + rows_max)
            yield RowOrder(chunk=self.chunk[some], row=self.row[some])


@dataclass(slots=True)
class _Class:
    """The tags of one priority and their buffered rows."""

    tags: Numbering = field(default_factory=Numbering)
    last_key: Clocks = field(default_factory=lambda: np.empty(0, np.uint64))
    """The key of the last row that arrived, by tag."""
    left: Floats = field(default_factory=lambda: np.empty(0, np.float64))
    """How many rows can be read of a tag at once, as far as is known."""
    rows_per_key: Floats = field(default_factory=lambda: np.empty(0, np.float64))
    """How dense the last rows of a tag were."""
    is_delayed: Mask = field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether rows of a tag wait for the time."""
    parts: list[_Part] = field(default_factory=list)

    def number(self, tags: Ints) -> Ints:
        """The numbers of tags that were started or are now."""
        numbers = self.tags.number(tags)
        more = len(self.tags) - len(self.last_key)
        if more > 0:
            more += len(self.last_key) // 2  # Room to grow, so that this is rare.
            self.last_key = np.concatenate([self.last_key, np.zeros(more, np.uint64)])
            self.left = np.concatenate([self.left, np.zeros(more)])
            self.rows_per_key = np.concatenate([self.rows_per_key, np.ones(more)])
            self.is_delayed = np.concatenate([self.is_delayed, np.zeros(more, np.bool_)])
        return numbers

    def find(self, tags: Ints) -> Ints:
        """The numbers of tags that were started."""
        numbers = self.tags.find(tags)
        assert (numbers != UNKNOWN).all(), "a tag that was not started"
        return numbers

    def holding(self, now: int) -> Ints:
        """The tags that have more to read and could bring a row that goes now, by number."""
        waits = self.is_delayed & (self.last_key > np.uint64(now))
        return np.flatnonzero((self.left > 0) & ~waits)

    def arrived(self, numbers: Ints, keys: Clocks, first: Ints) -> None:
        """Note the last keys of tags whose rows arrived, and how dense the rows are.

        `first` are the places at which the rows of each tag begin.
        """
        last = np.append(first[1:], len(numbers)) - 1
        tags = numbers[last]
        before = np.maximum(self.last_key[tags], keys[first])
        passed = np.maximum((keys[last] - before).astype(np.float64), 1.0)
        self.rows_per_key[tags] = (last - first + 1) / passed
        self.last_key[tags] = keys[last]


class _Part:
    """Rows of a chunk that wait."""

    __slots__ = ("chunk", "highest", "keys", "lowest", "places", "tags")

    def __init__(self, chunk: int, tags: Ints, keys: Clocks, places: Ints) -> None:
        self.chunk = chunk
        self.tags = tags
        """Numbers in the class."""
        self.keys = keys
        self.places = places
        self.lowest, self.highest = keys.min(), keys.max()

    def take(self, which: Mask) -> _Part:
        """Some of its rows."""
        return _Part(self.chunk, self.tags[which], self.keys[which], self.places[which])


class ReadyRows:
    """Rows that can go: as they came, or in their order."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part.places) for part in self._parts)

    def as_they_came(self, rows_max: int) -> Iterator[tuple[int, Ints]]:
        """A chunk and rows of it, rising, so many at a time: those of a tag are in order."""
        for part in self._parts:
            for begin in range(0, len(part.places), rows_max):
                yield part.chunk, part.places[begin : begin + rows_max]

    def in_order(self, keep: Mask | None = None) -> RowOrder:
        """In the order in which they go, only these of the rows as they came."""
        if keep is None or keep.all():
            return _in_order(self._parts)
        ends = np.cumsum([len(part.places) for part in self._parts])[:-1]
        kept = zip(self._parts, np.split(keep, ends), strict=True)
        return _in_order([part.take(mask) for part, mask in kept if mask.any()])


class Governor:
    """Holds rows that were read and says which go next."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}

    def start(self, tags: int | Ints, priority: int, *, is_delayed: bool = True) -> None:
        """Expect rows of a tag, or of many: until it has been read once, it may bring anything."""
        of = self._classes.setdefault(priority, _Class())
        numbers = of.number(np.atleast_1d(np.asarray(tags, np.int64)))
        of.last_key[numbers], of.left[numbers], of.is_delayed[numbers] = 0, np.inf, is_delayed

    def stop(self, tag: int, priority: int) -> None:
        """Forget a tag and its buffered rows."""
        of = self._classes[priority]
        number = int(of.find(np.array([tag], np.int64))[0])
        of.left[number] = 0
        kept = []
        for part in of.parts:
            mask = part.tags != number
            if mask.all():
                kept.append(part)
            elif mask.any():
                kept.append(part.take(mask))
        of.parts = kept

    def add(self, priority: int, chunk: int, tags: Ints, due: Clocks) -> None:
        """Take rows that were read, of tags of one priority; `due` is clock plus delay.

        Rows of one tag are contiguous and in order.
        """
        if not len(tags):
            return
        of = self._classes[priority]
        numbers = of.find(tags)
        firsts = np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)
        lowest = np.maximum(due[firsts], of.last_key[numbers[firsts]])
        if (lowest != due[firsts]).any():
            due = due.copy()
            due[firsts] = lowest
        keys = _running_max(numbers, due)
        of.arrived(numbers, keys, firsts)
        of.parts.append(_Part(chunk, numbers, keys, np.arange(len(tags))))

    def set_left(self, priority: int, tags: Ints, left: Floats) -> None:
        """Set for each tag how many rows can be read of it at once, as far as is known."""
        of = self._classes[priority]
        of.left[of.find(tags)] = left

    def next_rows(self, now: int) -> ReadyRows:
        """The rows that can go at this clock; those of one priority at most."""
        for priority in sorted(self._classes, reverse=True):
            of = self._classes[priority]
            holding = of.holding(now)
            if of.parts:
                rows = ReadyRows(_take_ready(of, holding, now))
                if len(rows):
                    return rows
            if len(holding):
                break
        return ReadyRows([])

    def candidates(self, count: int, now: int) -> Candidates | None:
        """Tags of the highest priority that should be read next: those that hold back others first.

        A tag that already has rows under their delay is not read on. Lower priorities wait: none of
        their rows could go.
        """
        for priority in sorted(self._classes, reverse=True):
            of = self._classes[priority]
            numbers = of.holding(now)
            holding = len(numbers)
            if holding:
                order = np.argsort(of.last_key[numbers], kind="stable")
                numbers = numbers[order[:count]]
                return Candidates(
                    tags=of.tags.values[numbers],
                    keys=of.last_key[numbers],
                    rows_per_key=of.rows_per_key[numbers],
                    rows_left=of.left[numbers],
                    holding=holding,
                )
        return None

    def next_due(self) -> int | None:
        """The lowest key that waits for the time: when nothing else happens, wait until then."""
        keys = [
            int(part.lowest)
            for of in self._classes.values()
            for part in of.parts
            if of.is_delayed[part.tags].any()
        ]
        return min(keys, default=None)

    def chunks(self) -> set[int]:
        """The chunks of which rows wait."""
        return {part.chunk for of in self._classes.values() for part in of.parts}


def _take_ready(of: _Class, holding: Ints, now: int) -> list[_Part]:
    """Take out the rows that can go: up to the lowest last key of the holding tags."""
    key, tag = _LAST, len(of.tags)
    if len(holding):
        keys = of.last_key[holding]
        first = int(np.argmin(keys))  # Of equal keys the first tag.
        key, tag = keys[first], int(holding[first])
    any_delayed = bool(of.is_delayed.any())
    ready: list[_Part] = []
    kept: list[_Part] = []
    for part in of.parts:
        if part.lowest > key:
            kept.append(part)
        elif part.highest < key and (not any_delayed or part.highest <= np.uint64(now)):
            ready.append(part)
        else:
            mask = (part.keys < key) | ((part.keys == key) & (part.tags <= tag))
            if any_delayed:
                mask &= (part.keys <= np.uint64(now)) | ~of.is_delayed[part.tags]
            if mask.all():
                ready.append(part)
            elif mask.any():
                ready.append(part.take(mask))
                kept.append(part.take(~mask))
            else:
                kept.append(part)
    of.parts = kept
    return ready


def _in_order(parts: list[_Part]) -> RowOrder:
    """By key, then tag, then as they came."""
    if not parts:
        return RowOrder(chunk=np.empty(0, np.int64), row=np.empty(0, np.int64))
    row = _concatenated([part.places for part in parts])
    keys = _concatenated([part.keys for part in parts])
    tags = _concatenated([part.tags for part in parts])
    chunk = np.repeat([part.chunk for part in parts], [len(part.places) for part in parts])
    if (keys[1:] < keys[:-1]).any() or ((keys[1:] == keys[:-1]) & (tags[1:] < tags[:-1])).any():
        order = np.argsort(keys, kind="stable")  # Of runs that are sorted already: fast.
        sorted_keys = keys[order]
        if (sorted_keys[1:] == sorted_keys[:-1]).any():
            order = np.lexsort((tags, keys))  # Stable: rows of one tag and key stay as they came.
        row = row.take(order)
        chunk = chunk if len({part.chunk for part in parts}) == 1 else chunk.take(order)
    return RowOrder(chunk=chunk, row=row)


def _concatenated(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Columns behind each other, without a copy of an only one."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _running_max(groups: Ints, values: Clocks) -> Clocks:
    """The highest value so far within each run of equal groups."""
    falls = (values[1:] < values[:-1]) & (groups[1:] == groups[:-1])
    if not falls.any():
        return values
    # Ranks instead of values: they leave room for the number of the run above them.
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    above = np.zeros(len(values), np.int64)
    np.cumsum(groups[1:] != groups[:-1], out=above[1:])
    above *= len(values)
    return values[order[np.maximum.accumulate(ranks + above) - above]]
