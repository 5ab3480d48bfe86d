"""Which journals a session reads, from which offset, and by which slice. Pure.

Invariant: a journal is read by one slice for all its bindings, for each from the offset at which
the last commit left it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.values import JournalInfo
from millrace.keys.key_ranges import tile
from millrace.reads.model.assignment import assign
from millrace.reads.model.checkpoint import Checkpoint, ShownClock, resume_offsets
from millrace.reads.model.column_checks import ColumnChecks
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.journal_catalog import JournalCatalog, catalog_of, read_under
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.session_messages import (
    CatalogUpdate,
    StartReads,
    Starts,
    StopReads,
    ToSlice,
)
from millrace.reads.model.tags import Ints, Tag, binding_of, journal_of, tags_of

_NO_TAGS: Final[Ints] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message to a slice."""

    slice: int
    message: ToSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class StartContext:
    """The limits for journals that start now."""

    first_offsets: Mapping[str, Offset]
    """Of the journals that no checkpoint knows."""
    shown: ShownClock
    replay_ends: Mapping[int, int] | None
    """While checkpoints are replayed: the offset of each tag up to which they go."""


class JournalReads:
    """The journals of one session."""

    def __init__(self, read: CoordinatedRead, members: int, committed: Checkpoint) -> None:
        self._bindings = read.bindings
        self._read = read
        self._ranges = tile(members)
        self._resume = resume_offsets(committed)
        self._columns = ColumnChecks()
        self.catalog = JournalCatalog(
            read.cohorts(), tuple(np.empty(0, np.int64) for _ in read.bindings), JournalId(0)
        )
        self._new = _NO_TAGS
        """Tags of the catalog that are to be started."""
        self.names: dict[Tag, str] = {}
        """The journal of each tag that is read."""
        self.readers: dict[Tag, int] = {}
        """The slice that reads each tag."""
        self.started: dict[Tag, Offset] = {}
        """The first offset that this session reads of each tag."""

    @property
    def members(self) -> int:
        """How many slices there are."""
        return len(self._ranges)

    def schema(self) -> pa.Schema:
        """The columns of the rows that members read, as far as journals are known."""
        return self._columns.schema()

    def unread(self, journals: Sequence[JournalInfo]) -> list[str]:
        """Those of these journals that are yet to be read and that no checkpoint knows."""
        names: dict[str, None] = {}
        for number, binding in enumerate(self._bindings):
            chosen = read_under(binding, journals)
            tags = tags_of(number, np.array([journal.id for journal in chosen], np.int64)).tolist()
            for tag, journal in zip(tags, chosen, strict=True):
                if tag not in self.names and tag not in self._resume:
                    names[journal.name] = None
        return list(names)

    def gone(self, journals: Sequence[JournalInfo], highest: int) -> list[Tag]:
        """Take in the journals there are; returns the tags whose journals are gone."""
        before = self.catalog.tags()
        self.catalog = catalog_of(self._read, journals, highest)
        listed = self.catalog.tags()
        self._new = listed[~np.isin(listed, before)]
        return [Tag(tag) for tag in before[~np.isin(before, listed)].tolist()]

    def changed(self, made: Sequence[JournalInfo], gone: Sequence[int], highest: int) -> list[Tag]:
        """The same, of the journals that were made and are gone since the last list."""
        went = self.catalog.among(np.sort(np.array(gone, np.int64)))
        more = catalog_of(self._read, made, highest).without(self.catalog)
        self.catalog = self.catalog.changed(more, went)
        self._new = more.tags()
        return [Tag(tag) for tag in went.tags().tolist()]

    def stop(self, tags: Sequence[Tag]) -> list[Send]:
        """Read these tags no longer."""
        by_reader: dict[int, list[Tag]] = {}
        for tag in tags:
            by_reader.setdefault(self.readers.pop(tag), []).append(tag)
            del self.names[tag], self.started[tag]
        return [
            Send(reader, StopReads(np.array(stopped, np.int64)))
            for reader, stopped in by_reader.items()
        ]

    def announce(self) -> list[Send]:
        """Send the catalog to every slice."""
        return [Send(number, CatalogUpdate(self.catalog)) for number in range(self.members)]

    def start(self, journals: Sequence[JournalInfo], context: StartContext) -> list[Send]:
        """Read the journals of the catalog that are not read yet."""
        new_tags: dict[JournalId, list[Tag]] = {}
        for tag in map(Tag, self._new.tolist()):
            new_tags.setdefault(journal_of(tag), []).append(tag)
        self._new = _NO_TAGS
        by_id = {journal.id: journal for journal in journals if journal.id in new_tags}
        bound = [
            (by_id[journal_id], [self._bindings[binding_of(tag)] for tag in tags])
            for journal_id, tags in new_tags.items()
        ]
        for journal, bindings in bound:
            for binding in bindings:
                self._columns.check(binding, journal)
        by_reader: dict[int, list[Tag]] = {}
        readers = assign(bound, self._ranges)
        for (journal, _), tags, reader in zip(bound, new_tags.values(), readers, strict=True):
            by_reader.setdefault(reader, []).extend(tags)
            for tag in tags:
                self.names[tag], self.readers[tag] = journal.name, reader
        shown = self._shown_by_reader(context.shown, new_tags.values())
        nothing = ShownClock.empty()
        return [
            Send(reader, self._start(tags, context, shown.get(reader, nothing)))
            for reader, tags in by_reader.items()
        ]

    def _shown_by_reader(
        self, shown: ShownClock, started: Iterable[Sequence[Tag]]
    ) -> dict[int, ShownClock]:
        """The shown clocks of tags that start now, by the slice that reads them."""
        tags = np.array([tag for some in started for tag in some], np.int64)
        shown = shown.take(np.isin(shown.tag, tags))
        readers = np.array([self.readers.get(Tag(tag), -1) for tag in shown.tag.tolist()], np.int64)
        order = np.argsort(readers, kind="stable")
        edges = np.flatnonzero(np.diff(readers[order])) + 1
        parts = np.split(order, edges) if len(order) else []
        return {int(readers[places[0]]): shown.take(places) for places in parts}

    def name_of(self, tag: int) -> str:
        """The journal and the binding of a tag, for messages."""
        binding = self._bindings[binding_of(tag)].name
        return f"{self.names.get(Tag(tag), f'journal {journal_of(tag)}')} ({binding})"

    def _start(self, tags: Sequence[Tag], context: StartContext, shown: ShownClock) -> StartReads:
        names = [self.names[tag] for tag in tags]
        # One that is gone again by now has nothing to read, wherever one begins.
        first = context.first_offsets
        offsets = [
            self._resume.get(tag, first.get(name, Offset(0)))
            for tag, name in zip(tags, names, strict=True)
        ]
        self.started.update(zip(tags, offsets, strict=True))
        until = [NONE] * len(tags)
        if context.replay_ends is not None:
            ends = context.replay_ends
            until = [ends.get(tag, offset) for tag, offset in zip(tags, offsets, strict=True)]
        of_these = np.isin(shown.tag, np.array(tags, np.int64))
        columns = (np.array(column, np.int64) for column in (tags, offsets, until))
        return StartReads(
            starts=Starts(*columns),
            names=tuple(names),
            shown=shown.take(of_these),
        )
