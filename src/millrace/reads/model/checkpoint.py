"""The content of a checkpoint, and how checkpoints are merged. Pure.

A checkpoint says for each tag how far its journal was read, and for each tag and producer up to
which clock its rows are shown and where its first row that is not shown yet begins. A session hands
out sparse deltas; `merge` adds them to the checkpoint before.

Invariant: each row carries the number of the checkpoint that set it, and a merge keeps the one with
the higher number: so merging is order-free and repeat-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NewType, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.journal.core.journal_names import Offset
from millrace.reads.model.number_tables import NONE, Table, pack, unpack
from millrace.reads.model.tags import Clocks, Ints

CheckpointNumber = NewType("CheckpointNumber", int)
"""Counts the checkpoints of a coordinated read, from 1; never given out twice."""

BEGINNING = CheckpointNumber(0)
"""Before the first checkpoint: nothing was read."""


@dataclass(frozen=True, slots=True)
class ReadOffsets(Table):
    """How far each tag was read: its next offset."""

    tag: Ints
    offset: Ints
    number: Ints
    """Of the checkpoint that set this row."""


@dataclass(frozen=True, slots=True)
class ShownClock(Table):
    """The clock up to which a producer's rows of a tag are shown, and the begin of later rows."""

    TYPES: ClassVar[dict[str, Any]] = {"clock": np.uint64}

    tag: Ints
    producer: Ints
    clock: Clocks
    begin: Ints
    """Where its first row that is not shown yet begins; `NONE` if all it has is shown."""
    number: Ints


@dataclass(frozen=True, slots=True)
class RolledBack(Table):
    """Rows that never count: a producer's CONTINUE rows with offsets in [begin, end)."""

    TYPES: ClassVar[dict[str, Any]] = {"highest": np.uint64}

    tag: Ints
    producer: Ints
    begin: Ints
    end: Ints
    highest: Clocks
    """The highest clock among them: when more than that is shown, this row has done its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint, or what changed since the one before.

    Example:
        >>> checkpoint.number, checkpoint.reads.offset.tolist()
        (1, [3])
    """

    number: CheckpointNumber = BEGINNING
    reads: ReadOffsets = field(default_factory=ReadOffsets.empty)
    shown: ShownClock = field(default_factory=ShownClock.empty)
    rolled_back: RolledBack = field(default_factory=RolledBack.empty)

    def to_bytes(self) -> bytes:
        """For the ledger and the wire."""
        return pack([self.reads, self.shown, self.rolled_back])

    @classmethod
    def from_bytes(cls, number: int, content: bytes) -> Checkpoint:
        """From the ledger or the wire."""
        reads, shown, gone = unpack(content, [ReadOffsets, ShownClock, RolledBack])
        return cls(number=CheckpointNumber(number), reads=reads, shown=shown, rolled_back=gone)


def merge(*parts: Checkpoint) -> Checkpoint:
    """Merge checkpoints, in any order; the same one may come several times."""
    if not parts:
        return Checkpoint()
    reads = ReadOffsets.concat([part.reads for part in parts])
    reads = _newest(reads, (reads.number, reads.tag), (reads.tag,))
    shown = ShownClock.concat([part.shown for part in parts])
    shown = _newest(shown, (shown.number, shown.producer, shown.tag), (shown.tag, shown.producer))
    gone = RolledBack.concat([part.rolled_back for part in parts])
    order = (gone.highest, gone.end, gone.begin, gone.producer, gone.tag)
    gone = _newest(gone, order, (gone.tag, gone.producer, gone.begin))
    number = max(part.number for part in parts)
    return Checkpoint(number=number, reads=reads, shown=shown, rolled_back=gone)


def resume_offsets(checkpoint: Checkpoint) -> dict[int, Offset]:
    """Where each tag is read on: at the lower of its read offset and its earliest begin."""
    offsets = dict(
        zip(checkpoint.reads.tag.tolist(), checkpoint.reads.offset.tolist(), strict=True)
    )
    is_open = checkpoint.shown.begin != NONE
    tags, begins = checkpoint.shown.tag[is_open], checkpoint.shown.begin[is_open]
    for tag, begin in zip(tags.tolist(), begins.tolist(), strict=True):
        offsets[tag] = min(offsets.get(tag, begin), begin)
    return {tag: Offset(offset) for tag, offset in offsets.items()}


def shown_to(shown: ShownClock, tags: Ints, producers: Ints) -> Clocks:
    """The clock up to which each of these pairs is shown; 0 if it is not shown at all.

    `shown` is in the order that `merge` gives: by tag, then producer, each pair once.
    """
    places, is_known = find_pairs(shown.tag, shown.producer, tags, producers)
    if not len(shown):
        return np.zeros(len(tags), np.uint64)
    return np.where(is_known, shown.clock[places], np.uint64(0))


def find_pairs(
    sorted_tags: Ints, sorted_producers: Ints, tags: Ints, producers: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The index of each pair among sorted ones (0 if missing), and whether it is there."""
    if not len(sorted_tags) or not len(tags):
        return np.zeros(len(tags), np.int64), np.zeros(len(tags), np.bool_)
    known = np.unique(sorted_producers)
    code = np.searchsorted(known, producers)
    exists = known[np.minimum(code, len(known) - 1)] == producers
    known_tags = np.unique(sorted_tags)
    tag_code = np.searchsorted(known_tags, tags)
    exists &= known_tags[np.minimum(tag_code, len(known_tags) - 1)] == tags
    width = np.int64(len(known) + 1)
    sorted_codes = np.searchsorted(known_tags, sorted_tags) * width
    sorted_codes += np.searchsorted(known, sorted_producers)
    pair_codes = tag_code * width + code
    places = np.minimum(np.searchsorted(sorted_codes, pair_codes), len(sorted_codes) - 1)
    exists &= sorted_codes[places] == pair_codes
    return np.where(exists, places, 0), exists


def without_done(checkpoint: Checkpoint) -> Checkpoint:
    """Leave out rolled-back ranges whose rows are below the shown clocks anyway.

    Later windows do not need them; the one that ends at this checkpoint does.
    """
    gone = checkpoint.rolled_back
    if not len(gone):
        return checkpoint
    shown = shown_to(checkpoint.shown, gone.tag, gone.producer)
    return Checkpoint(
        number=checkpoint.number,
        reads=checkpoint.reads,
        shown=checkpoint.shown,
        rolled_back=gone.take(shown < gone.highest),
    )


def without_silent(checkpoint: Checkpoint, number: int) -> Checkpoint:
    """Leave out producers of which nothing has changed since the checkpoint of this number.

    Only of tags in which nothing is open: of others, rows of theirs could be read again.
    """
    shown = checkpoint.shown
    still_open = np.isin(shown.tag, shown.tag[shown.begin != NONE])
    return Checkpoint(
        number=checkpoint.number,
        reads=checkpoint.reads,
        shown=shown.take(still_open | (shown.number > number)),
        rolled_back=checkpoint.rolled_back,
    )


T = TypeVar("T", bound=Table)


def _newest(table: T, order: tuple[npt.NDArray[Any], ...], key: tuple[Ints, ...]) -> T:
    """The last row of each key in this order; `order` names its least important column first."""
    if not len(table):
        return table
    places = np.lexsort(order)
    last = np.ones(len(places), np.bool_)
    same = np.ones(len(places) - 1, np.bool_)
    for column in key:
        sorted_column = column[places]
        same &= sorted_column[1:] == sorted_column[:-1]
    last[:-1] = ~same
    return table.take(places[last])
