"""Checkpoints that were handed out and are not committed yet. Pure.

Each makes the rows visible between the whole checkpoint before it and the whole one with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from millrace.errors import UserError
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber, resume_offsets
from millrace.reads.model.clock_windows import Visible, between
from millrace.reads.model.tags import Ints, Tag, journal_of, journals_of


@dataclass(frozen=True, slots=True)
class Floor:
    """The first offset of a journal that is still needed."""

    id: JournalId
    name: str
    offset: Offset


@dataclass(frozen=True, slots=True)
class _HandedCheckpoint:
    delta: Checkpoint
    before: Checkpoint
    whole: Checkpoint


class HandedOut:
    """The checkpoints that a session has handed out, by number."""

    def __init__(self) -> None:
        self._by_number: dict[CheckpointNumber, _HandedCheckpoint] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[CheckpointNumber]:
        return iter(self._by_number)

    def add(self, delta: Checkpoint, before: Checkpoint, whole: Checkpoint) -> None:
        """Remember a checkpoint, with the whole checkpoints before it and after it."""
        self._by_number[delta.number] = _HandedCheckpoint(delta, before, whole)

    def remove_upto(self, number: CheckpointNumber) -> None:
        """Forget the checkpoints up to this one: they are committed."""
        self._by_number = {n: handed for n, handed in self._by_number.items() if n > number}

    def visible(self, number: CheckpointNumber) -> Visible:
        """The rows that a checkpoint makes visible."""
        handed = self._by_number.get(number)
        if handed is None:
            numbers = ", ".join(map(str, self._by_number)) or "none"
            raise UserError(
                f"checkpoint {number} is not there to be read\n  handed out and not "
                f"committed: {numbers}\n  to fix: read a checkpoint before it is committed"
            )
        return between(handed.before, handed.whole)

    def floors(
        self,
        number: CheckpointNumber,
        names: Mapping[Tag, str],
        started: Mapping[Tag, Offset],
    ) -> list[Floor]:
        """The floors of the journals that moved up to a checkpoint.

        `names` and `started` have the journal of each tag that is read, and its first offset.
        """
        if number not in self._by_number:
            return []
        deltas = [handed.delta for n, handed in self._by_number.items() if n <= number]
        moved = [tags for delta in deltas for tags in (delta.reads.tag, delta.shown.tag)]
        journals = np.unique(journals_of(np.concatenate(moved)))
        offsets = resume_offsets(_of_journals(self._by_number[number].whole, journals))
        tags = np.array(list(names), np.int64)
        floors: dict[JournalId, Floor] = {}
        for tag in map(Tag, tags[np.isin(journals_of(tags), journals)].tolist()):
            # Of several bindings the lowest counts, also one of which nothing was shown yet.
            journal, offset = journal_of(tag), offsets.get(tag, started[tag])
            if journal not in floors or offset < floors[journal].offset:
                floors[journal] = Floor(journal, names[tag], offset)
        return list(floors.values())


def _of_journals(whole: Checkpoint, journals: Ints) -> Checkpoint:
    reads, shown = whole.reads, whole.shown
    return Checkpoint(
        number=whole.number,
        reads=reads.take(np.isin(journals_of(reads.tag), journals)),
        shown=shown.take(np.isin(journals_of(shown.tag), journals)),
    )
