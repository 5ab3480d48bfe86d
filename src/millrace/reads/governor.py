"""The order in which a slice lets rows go. Pure.

Rows of one tag keep their order. Across tags, those of higher priority go first, then those with
the lower clock plus read delay, as far as rows have arrived: a row waits while a tag that has more
to read could still bring an earlier one. A row under its delay waits for the time and blocks
nobody. The key of a row is the highest clock plus delay of its tag so far, so that a tag's own
order holds: that is a merge of the tags by their heads.

Invariant: the keys that are let go within a priority never fall, as long as no tag brings a key
below one that was let go already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.reads.numbering import Numbering
from millrace.reads.tags import Clocks, Ints

Mask = npt.NDArray[np.bool_]
_LAST: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Rows in the order in which they go: each by the chunk it came in and its place there."""

    chunk: Ints
    place: Ints

    def __len__(self) -> int:
        return len(self.chunk)


@dataclass(slots=True)
class _Class:
    """The tags of one priority and what is buffered of them."""

    tags: Numbering = field(default_factory=Numbering)
    last_key: Clocks = field(default_factory=lambda: np.empty(0, np.uint64))
    """The key of the last row that arrived, by tag."""
    has_more: Mask = field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether more can be read of a tag at once."""
    parts: list[_Part] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a chunk that wait."""

    chunk: int
    tags: Ints
    """Numbers in the class."""
    keys: Clocks
    places: Ints


class Governor:
    """Holds rows that were read and says which go next."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}

    def start(self, tag: int, priority: int) -> None:
        """Expect rows of a tag: until it has been read once, it may bring anything."""
        of = self._classes.setdefault(priority, _Class())
        number = int(of.tags.number(np.array([tag], np.int64))[0])
        if number >= len(of.last_key):
            more = number + 1 - len(of.last_key) + len(of.last_key) // 2
            of.last_key = np.concatenate([of.last_key, np.zeros(more, np.uint64)])
            of.has_more = np.concatenate([of.has_more, np.zeros(more, np.bool_)])
        of.last_key[number], of.has_more[number] = 0, True

    def stop(self, tag: int, priority: int) -> None:
        """Forget a tag and what is buffered of it."""
        of = self._classes[priority]
        number = int(of.tags.find(np.array([tag], np.int64))[0])
        of.has_more[number] = False
        kept = []
        for part in of.parts:
            mask = part.tags != number
            if mask.any():
                kept.append(_Part(part.chunk, part.tags[mask], part.keys[mask], part.places[mask]))
        of.parts = kept

    def add(self, priority: int, chunk: int, tags: Ints, due: Clocks) -> None:
        """Take rows that were read, of tags of one priority; `due` is clock plus delay.

        Rows of one tag stand together and in order.
        """
        if not len(tags):
            return
        of = self._classes[priority]
        numbers = of.tags.find(tags)
        keys = _running_max(numbers, np.maximum(due, of.last_key[numbers]))
        of.last_key[numbers] = keys  # The last row of a tag is written last.
        of.parts.append(_Part(chunk, numbers, keys, np.arange(len(tags))))

    def set_more(self, priority: int, tags: Ints, more: Mask) -> None:
        """Say of tags whether more can be read of them at once."""
        of = self._classes[priority]
        of.has_more[of.tags.find(tags)] = more

    def next_rows(self, now: int) -> Places:
        """The rows that can go at this clock, in order; those of one priority at most."""
        for priority in sorted(self._classes, reverse=True):
            of = self._classes[priority]
            horizon = self._horizon(of, now)
            found = self._take(of, horizon)
            if len(found):
                return found
            if self._blocks(of, now):
                break
        return Places(chunk=np.empty(0, np.int64), place=np.empty(0, np.int64))

    def wanted(self, count: int, now: int) -> Ints:
        """Tags that should be read next: those that hold the others back come first.

        A tag that already has rows under their delay is not read on.
        """
        found: list[Ints] = []
        for priority in sorted(self._classes, reverse=True):
            of = self._classes[priority]
            numbers = np.flatnonzero(of.has_more & (of.last_key <= np.uint64(now)))
            order = np.argsort(of.last_key[numbers], kind="stable")
            found.append(of.tags.values[numbers[order[:count]]])
            count -= len(found[-1])
            if count <= 0:
                break
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def next_due(self) -> int | None:
        """The lowest key that is buffered: when nothing else happens, wait until then."""
        keys = [int(part.keys.min()) for of in self._classes.values() for part in of.parts]
        return min(keys, default=None)

    def chunks(self) -> set[int]:
        """The chunks of which rows wait."""
        return {part.chunk for of in self._classes.values() for part in of.parts}

    def _horizon(self, of: _Class, now: int) -> np.uint64:
        """Rows up to this key can go."""
        lowest = of.last_key[of.has_more].min(initial=_LAST)
        return min(np.uint64(now), lowest)

    def _blocks(self, of: _Class, now: int) -> bool:
        """Whether lower priorities wait for tags of this one that have more to read.

        A tag whose rows are all under their delay blocks nobody.
        """
        return bool((of.has_more & (of.last_key <= np.uint64(now))).any())

    def _take(self, of: _Class, horizon: np.uint64) -> Places:
        taken: list[_Part] = []
        kept: list[_Part] = []
        for part in of.parts:
            mask = part.keys <= horizon
            if mask.all():
                taken.append(part)
                continue
            kept.append(part)
            if mask.any():
                taken.append(_Part(part.chunk, part.tags[mask], part.keys[mask], part.places[mask]))
                rest = ~mask
                kept[-1] = _Part(part.chunk, part.tags[rest], part.keys[rest], part.places[rest])
        of.parts = kept
        return _in_order(taken)


def _in_order(parts: list[_Part]) -> Places:
    """By key, then tag, then as they came."""
    if not parts:
        return Places(chunk=np.empty(0, np.int64), place=np.empty(0, np.int64))
    chunk = np.concatenate([np.full(len(part.places), part.chunk, np.int64) for part in parts])
    place = np.concatenate([part.places for part in parts])
    keys = np.concatenate([part.keys for part in parts])
    tags = np.concatenate([part.tags for part in parts])
    if (keys[1:] < keys[:-1]).any() or ((keys[1:] == keys[:-1]) & (tags[1:] < tags[:-1])).any():
        order = np.lexsort((tags, keys))  # Stable: rows of one tag and key stay as they came.
        chunk, place = chunk[order], place[order]
    return Places(chunk=chunk, place=place)


def _running_max(groups: Ints, values: Clocks) -> Clocks:
    """The highest value so far within each run of equal groups."""
    falls = (values[1:] < values[:-1]) & (groups[1:] == groups[:-1])
    if not falls.any():
        return values
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    ends = np.append(starts[1:], len(values))
    out = values.copy()
    for odd in np.unique(np.searchsorted(starts, np.flatnonzero(falls), side="right") - 1).tolist():
        run = slice(int(starts[odd]), int(ends[odd]))
        np.maximum.accumulate(values[run], out=out[run])
    return out
