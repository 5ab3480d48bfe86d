"""What a session does about what happens to it. Pure: times are arguments.

Invariant: a checkpoint that was handed out and not committed is handed out again, exactly, before
anything new is; until then no slice reads beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.errors import DataLost, HintsUnresolved
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.values import JournalInfo
from millrace.keys.key_ranges import tile
from millrace.reads.model.assignment import assign
from millrace.reads.model.checkpoint import (
    BEGINNING,
    Checkpoint,
    CheckpointNumber,
    ShownClock,
    merge,
    resume_offsets,
    without_done,
)
from millrace.reads.model.column_checks import ColumnChecks
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.frontier import Frontier, UnmetHint
from millrace.reads.model.journal_catalog import JournalCatalog, catalog_of, is_read
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.session_messages import (
    CatalogUpdate,
    Continue,
    StartReads,
    Starts,
    StopReads,
    ToSlice,
)
from millrace.reads.model.slice_progress import SliceProgress
from millrace.reads.model.tags import Tag, binding_of, journal_of, journals_of, tag_of

_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a slice."""

    slice: int
    message: ToSlice


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a session begins."""

    committed: Checkpoint
    """Whole."""
    prepared: tuple[Checkpoint, ...] = ()
    """Deltas that were handed out and not committed, in order."""
    last_number: CheckpointNumber = BEGINNING
    """The highest number ever given out."""


class SessionState:
    """One session over its slices."""

    def __init__(self, read: CoordinatedRead, members: int, resumed: Resumed) -> None:
        self.coordinated_read = read
        self._ranges = tile(members)
        self._frontier = Frontier(read.cohorts(), resumed.committed)
        self.before = resumed.committed
        """What was handed out up to the checkpoint before the last, as one."""
        self.whole = resumed.committed
        """What was handed out, as one, with every rolled-back range that its rows need."""
        self._prepared = list(resumed.prepared)
        self._number = resumed.last_number
        self._resume = resume_offsets(resumed.committed)
        self._until = _read_offsets(merge(resumed.committed, *resumed.prepared))
        self._replayed: list[Checkpoint] = []
        self.catalog = JournalCatalog(
            read.cohorts(), tuple(np.empty(0, np.int64) for _ in read.bindings), JournalId(0)
        )
        self._columns = ColumnChecks()
        self._names: dict[Tag, str] = {}
        self._reader: dict[Tag, int] = {}
        self._started: dict[Tag, Offset] = {}
        self._pushed_back: set[int] = set()
        self._stalled_since_ms: int | None = None

    def schema(self) -> pa.Schema:
        """The columns of the rows that members read, as far as journals are there."""
        return self._columns.schema()

    @property
    def members(self) -> int:
        """How many members there are, and slices, and queues."""
        return len(self._ranges)

    @property
    def is_recovering(self) -> bool:
        """Whether a prepared checkpoint has yet to be handed out again."""
        return bool(self._prepared)

    # Journals.
    def on_journals(
        self, journals: Sequence[JournalInfo], highest: int, starts: Mapping[str, Offset]
    ) -> list[Send]:
        """The journals there are now; `starts` has the first offset of those never read before."""
        catalog = catalog_of(self.coordinated_read, journals, highest)
        by_id = {each.id: each for each in journals}
        wanted = [Tag(tag) for tag in catalog.tags().tolist()]
        gone = [tag for tag in self._names if tag not in set(wanted)]
        self.catalog = catalog
        sends = [Send(number, CatalogUpdate(catalog)) for number in range(len(self._ranges))]
        sends += self._stop(gone)
        fresh: dict[int, list[Tag]] = {}
        for tag in wanted:
            if tag not in self._names:
                journal = by_id[journal_of(tag)]
                binding = self.coordinated_read.bindings[binding_of(tag)]
                self._columns.check(binding, journal)
                reader = assign(journal, binding, self._ranges)
                self._names[tag], self._reader[tag] = journal.name, reader
                fresh.setdefault(reader, []).append(tag)
        sends += [Send(reader, self._start(tags, starts)) for reader, tags in fresh.items()]
        return sends

    def unread(self, journals: Sequence[JournalInfo]) -> list[str]:
        """Those of these journals that are to be read and that no checkpoint knows."""
        bindings = self.coordinated_read.bindings
        return [
            each.name
            for each in journals
            if any(
                is_read(binding, each) and tag_of(number, each.id) not in self._resume
                for number, binding in enumerate(bindings)
            )
        ]

    def check_prepared(self) -> None:
        """Refuse to replay a checkpoint over journals that are gone."""
        for prepared in self._prepared:
            there = np.isin(prepared.shown.tag, self.catalog.tags())
            if not there.all():
                lost = sorted({int(each) for each in journals_of(prepared.shown.tag[~there])})
                raise DataLost(
                    f"checkpoint {prepared.number} of coordinated read "
                    f"{self.coordinated_read.name} cannot be replayed\n"
                    f"  journals that are gone: ids {', '.join(map(str, lost[:10]))}\n"
                    "  to fix: begin anew under another name"
                )

    # Progress.
    def on_reported(self, progress: SliceProgress, now_ms: int) -> None:
        """Take a slice's report; the catalog must know every journal that it names."""
        assert not self.misses_journals(progress)
        self._frontier.apply(progress, self.catalog, now_ms)

    def misses_journals(self, progress: SliceProgress) -> bool:
        """Whether a report names a journal that was made after the catalog."""
        return bool((progress.hints.journal > self.catalog.highest).any())

    def on_pressure(self, slice_: int, *, is_pushed_back: bool) -> None:
        """Note whether a slice waits for room in queues."""
        if is_pushed_back:
            self._pushed_back.add(slice_)
        else:
            self._pushed_back.discard(slice_)

    # Checkpoints.
    def next_checkpoint(self) -> Checkpoint | None:
        """The next delta; None if there is nothing to show.

        A replayed one is in the store already; any other must be stored before it is handed out.
        """
        if self._prepared:
            if not self._frontier.reaches(self._prepared[0]):
                return None
            delta = self._prepared.pop(0)
            self._frontier.hand_out(delta)
            self._replayed.append(delta)
        else:
            found = self._frontier.next_delta(CheckpointNumber(self._number + 1))
            if found is None:
                return None
            delta = found
            self._number = delta.number
        self.before = without_done(self.whole)
        self.whole = merge(self.before, delta)
        return delta

    def after_replay(self) -> list[Send]:
        """What to send once the last prepared checkpoint has been handed out."""
        if self._prepared or not self._replayed:
            return []
        self._replayed = []
        self._until = {}
        return [Send(number, Continue()) for number in range(len(self._ranges))]

    # What it waits for.
    def check_stall(self, now_ms: int, limit_ms: int, *, is_wanted: bool) -> None:
        """Fail if hints stay unmet for longer than the limit.

        The time counts while a checkpoint is wanted and nobody is pushed back.
        """
        unmet = self._frontier.unmet()
        if not unmet or not is_wanted or self._pushed_back:
            self._stalled_since_ms = None
            return
        if self._stalled_since_ms is None:
            self._stalled_since_ms = now_ms
        since = max(self._stalled_since_ms, unmet[0].since_ms)
        if now_ms - since >= limit_ms:
            raise self._unresolved(unmet, now_ms - since)

    def unmet(self) -> tuple[UnmetHint, ...]:
        """Transactions that wait for a journal, oldest first."""
        return self._frontier.unmet()

    def release(self, producer: int | None = None) -> tuple[UnmetHint, ...]:
        """Let unmet hints go, of one producer or of all."""
        return self._frontier.release(producer)

    def name_of(self, tag: int) -> str:
        """A tag in words."""
        binding = self.coordinated_read.bindings[binding_of(tag)].name
        return f"{self._names.get(Tag(tag), f'journal {journal_of(tag)}')} ({binding})"

    @property
    def frontier(self) -> Frontier:
        """For looking at."""
        return self._frontier

    def names(self) -> Mapping[Tag, str]:
        """The journal of each tag that is read."""
        return self._names

    def started(self) -> Mapping[Tag, Offset]:
        """Where this session began to read each tag."""
        return self._started

    def readers(self) -> Mapping[Tag, int]:
        """Which slice reads what."""
        return self._reader

    # Inside.
    def _stop(self, tags: Sequence[Tag]) -> list[Send]:
        by_reader: dict[int, list[Tag]] = {}
        for tag in tags:
            by_reader.setdefault(self._reader.pop(tag), []).append(tag)
            del self._names[tag], self._started[tag]
        if tags:
            self._frontier.forget(np.array(tags, np.int64))
        return [
            Send(reader, StopReads(np.array(some, np.int64))) for reader, some in by_reader.items()
        ]

    def _start(self, tags: Sequence[Tag], starts: Mapping[str, Offset]) -> StartReads:
        rows: list[tuple[int, ...]] = []
        for tag in tags:
            offset = self._resume.get(tag)
            if offset is None:
                # One that is gone again by now has nothing to read, wherever one begins.
                offset = starts.get(self._names[tag], Offset(0))
            self._started[tag] = offset
            until = NONE
            if self._prepared:
                until = self._until.get(tag, offset)
            rows.append((tag, offset, until))
        shown = self.whole.shown
        mine = np.isin(shown.tag, np.array(tags, np.int64))
        return StartReads(
            starts=Starts.of(rows),
            names=tuple(self._names[tag] for tag in tags),
            shown=ShownClock.concat([shown.take(mine)]),
        )

    def _unresolved(self, unmet: Sequence[UnmetHint], waited_ms: int) -> HintsUnresolved:
        lines = [
            f"  producer {each.producer:012x} committed clock {each.clock} in "
            f"{self.name_of(each.source)}, not yet in {self.name_of(each.target)}\n"
            for each in unmet[:_NAMED_MAX]
        ]
        if len(unmet) > _NAMED_MAX:
            lines.append(f"  and {len(unmet) - _NAMED_MAX} more\n")
        return HintsUnresolved(
            f"coordinated read {self.coordinated_read.name} waited {waited_ms // 1000} s for "
            f"transactions over several journals to become whole\n{''.join(lines)}"
            "  to fix: let their producers recover, or release them with session.release(producer)"
        )


def _read_offsets(whole: Checkpoint) -> dict[int, int]:
    return dict(zip(whole.reads.tag.tolist(), whole.reads.offset.tolist(), strict=True))
