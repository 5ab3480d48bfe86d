"""One fetch for all tags of a journal: it is read once, and routed for each binding. Pure.

Tags of one journal and one priority are read together, from the position of the last of them: the
rows of others wait for its rows in any case. Tags of different priorities share a fetch while they
are at the same position, so that none waits for a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.journal.core.journal_names import Offset
from millrace.reads.model.tags import Tag, journal_of


@dataclass(frozen=True, slots=True)
class JournalRead:
    """A journal that is read, for one binding."""

    name: str
    priority: int
    next: Offset
    until: int
    """`NONE`: as far as there is something."""


def shared_fetches(
    tags: Sequence[Tag], reads: Mapping[Tag, JournalRead]
) -> dict[Tag, tuple[Tag, ...]]:
    """The tags to fetch, each with all tags that its rows are for."""
    last: dict[tuple[int, int], Offset] = {}
    for tag in tags:
        read, place = reads[tag], (journal_of(tag), reads[tag].priority)
        last[place] = min(read.next, last.get(place, read.next))
    sharing: dict[tuple[int, Offset], list[Tag]] = {}
    for tag in tags:
        journal, read = journal_of(tag), reads[tag]
        sharing.setdefault((journal, last[journal, read.priority]), []).append(tag)
    return {
        next(tag for tag in together if reads[tag].next == offset): tuple(together)
        for (_, offset), together in sharing.items()
    }
