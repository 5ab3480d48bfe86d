"""How far a slice has read each of its tags, in arrays. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from millrace.journal.core.journal_names import Offset
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.numbering import UNKNOWN, Numbering
from millrace.reads.model.tags import Ints, Tag
from millrace.reads.slice.shared_fetches import JournalRead


class ReadPositions:
    """The tags that are read, by number: where each is read from next, and up to where."""

    def __init__(self) -> None:
        self._tags = Numbering()
        self._names: list[str] = []
        self._is_read: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self.next: Ints = np.empty(0, np.int64)
        self.until: Ints = np.empty(0, np.int64)
        """`NONE`: as far as there is something."""
        self.priority: Ints = np.empty(0, np.int64)

    def start(
        self, tags: Ints, names: Sequence[str], offsets: Ints, until: Ints, priorities: Ints
    ) -> None:
        """Read tags, which are not read now."""
        assert (self.find(tags) == UNKNOWN).all(), "a tag that is read already"
        numbers = self._tags.number(tags)
        more = len(self._tags) - len(self.next)
        self._names += [""] * more
        self._is_read = np.append(self._is_read, np.zeros(more, np.bool_))
        self.next, self.until, self.priority = (
            np.append(column, np.zeros(more, np.int64))
            for column in (self.next, self.until, self.priority)
        )
        self._is_read[numbers] = True
        self.next[numbers], self.until[numbers] = offsets, until
        self.priority[numbers] = priorities
        for number, name in zip(numbers.tolist(), names, strict=True):
            self._names[number] = name

    def stop(self, tag: Tag) -> JournalRead | None:
        """Read a tag no longer; None if it is not read."""
        number = int(self.find(np.array([tag], np.int64))[0])
        if number == UNKNOWN:
            return None
        read = self.of(tag)
        self._is_read[number] = False
        return read

    def find(self, tags: Ints) -> Ints:
        """The numbers of tags; `UNKNOWN` of tags that are not read."""
        numbers = self._tags.find(tags)
        if not len(self._is_read):
            return numbers
        return np.where(self._is_read[numbers], numbers, UNKNOWN)

    def tags(self) -> Ints:
        """All tags that are read."""
        return self._tags.values[self._is_read]

    def names(self, tags: Ints) -> list[str]:
        """The journals of tags that are read."""
        return [self._names[number] for number in self.find(tags).tolist()]

    def of(self, tag: Tag) -> JournalRead:
        """The position of a tag that is read."""
        number = int(self.find(np.array([tag], np.int64))[0])
        assert number != UNKNOWN, tag
        return JournalRead(
            self._names[number],
            int(self.priority[number]),
            Offset(int(self.next[number])),
            int(self.until[number]),
        )

    def rows_left(self, tags: Ints, ends: Ints) -> npt.NDArray[np.float64]:
        """How many rows of tags are left to be read, of journals that end there."""
        numbers = self.find(tags)
        until = self.until[numbers]
        stops = np.where(until == NONE, ends, np.minimum(ends, until))
        return np.maximum(0, stops - self.next[numbers]).astype(np.float64)

    def unread(self, tags: Ints, counts: Ints, offsets: Ints) -> npt.NDArray[np.bool_] | None:
        """Which rows are still to be read, of tags with so many rows each; None: all."""
        numbers = self.find(tags)
        begins, until = self.next[numbers], self.until[numbers]
        firsts = np.cumsum(counts) - counts
        is_plain = (numbers != UNKNOWN) & (until == NONE) & (offsets[firsts] >= begins)
        if is_plain.all():
            return None
        until = np.where(until == NONE, np.iinfo(np.int64).max, until)
        until = np.where(numbers == UNKNOWN, -1, until)
        return (offsets >= np.repeat(begins, counts)) & (offsets < np.repeat(until, counts))
