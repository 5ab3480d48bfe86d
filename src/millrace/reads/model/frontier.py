"""Which transactions are complete over all journals, and can be shown. Pure.

Slices report commits, each with the other journals of its transaction as hints. A hint is met when
its target has committed at or above its clock. A producer's commits in a cohort are shown up to,
and not including, its lowest clock with an unmet hint; no other producer waits for it.

Invariant: a shown clock never goes back; a transaction within a cohort is shown whole or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.reads.model.checkpoint import (
    Checkpoint,
    CheckpointNumber,
    ReadOffsets,
    RolledBack,
    ShownClock,
)
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.numbering import UNKNOWN, Numbering, PairNumbering
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress
from millrace.reads.model.tags import Clocks, Ints, Tag, bindings_of
from millrace.reads.model.unmet_hints import UnmetHints

Mask = npt.NDArray[np.bool_]
_NO_BOUND: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetHint:
    """A transaction that waits for a journal to show its part."""

    producer: int
    clock: int
    source: Tag
    target: Tag
    since_ms: int


class Frontier:
    """Gathers the reports of slices, and makes checkpoints of them."""

    def __init__(self, cohorts: tuple[int, ...], base: Checkpoint) -> None:
        """Go on from a whole checkpoint."""
        self._cohorts = np.array(cohorts, np.int64)
        self._pairs = PairNumbering()
        self._producers = PairNumbering()  # of a cohort and a producer
        self._tags = Numbering()
        self._per_pair = _PairState()
        self._read: Ints = np.empty(0, np.int64)
        self._read_handed: Ints = np.empty(0, np.int64)
        self._reported: Mask = np.empty(0, np.bool_)
        self._points: list[Points] = []
        """Commits that are not shown, in the parts in which they came."""
        self._rolled_back = RolledBack.empty()
        self._rolled_back_known = {(t, p, b) for t, p, b, *_ in base.rolled_back.rows()}
        self._waiting = UnmetHints()
        self._adopt(base)

    # What slices say.
    def apply(self, progress: SliceProgress, catalog: JournalCatalog, now_ms: int) -> None:
        """Take a report whole: commits first, then hints."""
        self._first_reports(progress.reads)
        points, opens = progress.points, progress.opens
        if len(points):
            pairs = self._number(points.tag, points.producer)
            np.maximum.at(self._per_pair.committed, pairs, points.clock)
            fresh = points.clock > self._per_pair.shown[pairs]
            self._points.append(points.take(fresh))
        self._open(opens)
        self._roll_back(progress.rolled_back)
        if len(progress.reads):
            tags = self._number_tags(progress.reads.tag)
            self._read[tags] = progress.reads.offset
        self._hint(progress.hints, catalog, now_ms)

    def forget(self, tags: Ints) -> None:
        """Stop waiting for tags that are not read any more: their journals are gone."""
        self._waiting.drop_targets(np.flatnonzero(np.isin(self._pairs.firsts, tags)))

    def release(self, producer: int | None = None) -> tuple[UnmetHint, ...]:
        """Drop hints that are not met, of one producer or of all; returns them."""
        let_go = self.unmet()
        if producer is not None:
            let_go = tuple(hint for hint in let_go if hint.producer == producer)
            pairs = np.flatnonzero(self._pairs.producers == producer)
            self._waiting.drop_sources(pairs)
        else:
            self._waiting = UnmetHints()
        return let_go

    # What is shown.
    def next_delta(self, number: CheckpointNumber) -> Checkpoint | None:
        """The next checkpoint: what has become visible since the last one; None if nothing."""
        shown, begins = self._now()
        state = self._per_pair
        count = len(self._pairs)
        if not (shown > state.shown[:count]).any() and not len(self._rolled_back):
            return None
        changed = (shown > state.shown[:count]) | (begins != state.begin_handed[:count])
        which = np.flatnonzero(changed)
        read = np.flatnonzero(self._read != self._read_handed)
        delta = Checkpoint(
            number=number,
            reads=ReadOffsets(
                self._tags.values[read], self._read[read], np.full(len(read), number, np.int64)
            ),
            shown=ShownClock(
                *self._pairs.parts(which),
                shown[which],
                begins[which],
                np.full(len(which), number, np.int64),
            ),
            rolled_back=self._rolled_back,
        )
        self.hand_out(delta)
        return delta

    def reaches(self, prepared: Checkpoint) -> bool:
        """Whether everything that a checkpoint shows has been committed again."""
        shown = prepared.shown
        if not len(shown):
            return True
        pairs = self._number(shown.tag, shown.producer)
        return bool((self._per_pair.committed[pairs] >= shown.clock).all())

    def hand_out(self, delta: Checkpoint) -> None:
        """Note what a checkpoint shows: one made here, or a prepared one that is replayed."""
        shown = delta.shown
        if len(shown):
            pairs = self._number(shown.tag, shown.producer)
            state = self._per_pair
            state.shown[pairs] = np.maximum(state.shown[pairs], shown.clock)
            state.committed[pairs] = np.maximum(state.committed[pairs], shown.clock)
            state.begin_handed[pairs] = shown.begin
            silent = ~self._has_reported(shown.tag)
            state.begin[pairs[silent]] = shown.begin[silent]
        if len(delta.reads):
            tags = self._number_tags(delta.reads.tag)
            self._read_handed[tags] = delta.reads.offset
            unread = tags[~self._reported[tags]]
            self._read[unread] = self._read_handed[unread]
        handed_out = {(t, p, b) for t, p, b, *_ in delta.rolled_back.rows()}
        self._rolled_back_known |= handed_out
        is_left = [(t, p, b) not in handed_out for t, p, b, *_ in self._rolled_back.rows()]
        self._rolled_back = self._rolled_back.take(np.array(is_left, np.bool_))
        self._drop_shown()

    def unmet(self) -> tuple[UnmetHint, ...]:
        """Hints that are not met, oldest first."""
        self._settle()
        tags, producers = self._pairs.firsts, self._pairs.producers
        return tuple(
            UnmetHint(
                producer=int(producers[source]),
                clock=clock,
                source=Tag(int(tags[source])),
                target=Tag(int(tags[target])),
                since_ms=since,
            )
            for source, target, clock, since in self._waiting.rows()
        )

    def opened(self) -> Opens:
        """Transactions that have begun and are not shown: tag, producer, begin."""
        _, begins = self._now()
        which = np.flatnonzero(begins != NONE)
        return Opens(*self._pairs.parts(which), begins[which])

    def read_offsets(self) -> Reads:
        """How far each tag was read."""
        return Reads(self._tags.values, self._read[: len(self._tags)])

    # Inside.
    def _adopt(self, base: Checkpoint) -> None:
        """Start with what a whole checkpoint shows."""
        shown = base.shown
        if len(shown):
            pairs = self._number(shown.tag, shown.producer)
            state = self._per_pair
            state.shown[pairs], state.committed[pairs] = shown.clock, shown.clock
            state.begin[pairs], state.begin_handed[pairs] = shown.begin, shown.begin
        if len(base.reads):
            tags = self._number_tags(base.reads.tag)
            self._read[tags], self._read_handed[tags] = base.reads.offset, base.reads.offset

    def _first_reports(self, reads: Reads) -> None:
        """The first report of a tag is complete: pairs that it does not name are closed."""
        tags = self._number_tags(reads.tag)
        fresh = tags[~self._reported[tags]]
        if len(fresh):
            self._reported[fresh] = True
            known = self._tags.values[fresh]
            begun = np.flatnonzero(self._per_pair.begin[: len(self._pairs)] != NONE)
            is_of_these = np.isin(self._pairs.parts(begun)[0], known)
            self._per_pair.begin[begun[is_of_these]] = NONE

    def _has_reported(self, tags: Ints) -> Mask:
        numbers = self._tags.find(tags)
        has_reported: Mask = numbers != UNKNOWN
        has_reported[has_reported] = self._reported[numbers[has_reported]]
        return has_reported

    def _open(self, opens: Opens) -> None:
        if len(opens):
            pairs = self._number(opens.tag, opens.producer)
            self._per_pair.begin[pairs] = opens.begin

    def _roll_back(self, gone: RolledBack) -> None:
        if len(gone):
            keys = [(t, p, b) for t, p, b, *_ in gone.rows()]
            fresh = np.array([key not in self._rolled_back_known for key in keys], np.bool_)
            self._rolled_back_known.update(keys)
            self._rolled_back = RolledBack.concat([self._rolled_back, gone.take(fresh)])

    def _hint(self, hints: Hints, catalog: JournalCatalog, now_ms: int) -> None:
        if not len(hints):
            return
        places, targets = catalog.targets(hints)
        if not len(places):
            return
        producers, tags = hints.producer[places], hints.tag[places]
        sources = self._number(tags, producers)
        waits_for = self._number(targets, producers)
        cohorts = self._cohorts[bindings_of(tags)]
        self._waiting.add(
            cohort=self._producers.number(cohorts, producers),
            clock=hints.clock[places],
            source=sources,
            target=waits_for,
            now_ms=now_ms,
        )

    def _now(self) -> tuple[Clocks, Ints]:
        """The clock to which each pair could be shown, and the begin of its first row above it."""
        count = len(self._pairs)
        shown = self._per_pair.shown[:count].copy()
        begins = self._per_pair.begin[:count].copy()
        points = self._joined_points()
        if len(points):
            pairs = self._number(points.tag, points.producer)
            ready = points.clock < self._bounds(pairs)
            np.maximum.at(shown, pairs[ready], points.clock[ready])
            waiting = np.flatnonzero(~ready & (points.clock > shown[pairs]))[::-1]
            # `waiting` runs backwards, so the first point of a pair stays.
            begins[pairs[waiting]] = points.begin[waiting]
        return shown, begins

    def _bounds(self, pairs: Ints) -> Clocks:
        """Of each pair, the lowest clock of its producer that waits for something."""
        tags, producers = self._pairs.parts(pairs)
        numbers = self._producers.number(self._cohorts[bindings_of(tags)], producers)
        self._settle()
        return self._waiting.bounds(len(self._producers), _NO_BOUND)[numbers]

    def _settle(self) -> None:
        """Drop hints that are met by now. Reports only add: there may be very many of them."""
        self._waiting.settle(self._per_pair.committed, self._per_pair.shown)

    def _joined_points(self) -> Points:
        self._points = [Points.concat(self._points)]
        return self._points[0]

    def _drop_shown(self) -> None:
        points = self._joined_points()
        if len(points):
            pairs = self._number(points.tag, points.producer)
            self._points = [points.take(points.clock > self._per_pair.shown[pairs])]

    def _number(self, tags: Ints, producers: Ints) -> Ints:
        pairs = self._pairs.number(tags, producers)
        self._per_pair.grow(len(self._pairs))
        return pairs

    def _number_tags(self, tags: Ints) -> Ints:
        numbers = self._tags.number(tags)
        more = len(self._tags) - len(self._read)
        if more > 0:
            self._read = np.concatenate([self._read, np.zeros(more, np.int64)])
            self._read_handed = np.concatenate([self._read_handed, np.zeros(more, np.int64)])
            self._reported = np.concatenate([self._reported, np.zeros(more, np.bool_)])
        return numbers


class _PairState:
    """The state of each tag and producer, by number."""

    def __init__(self) -> None:
        self.committed: Clocks = np.empty(0, np.uint64)
        self.shown: Clocks = np.empty(0, np.uint64)
        self.begin: Ints = np.empty(0, np.int64)
        """Of the open transaction, as last reported; or what the checkpoint said."""
        self.begin_handed: Ints = np.empty(0, np.int64)

    def grow(self, count: int) -> None:
        """Make room."""
        more = count - len(self.committed)
        if more > 0:
            more = max(more, len(self.committed) // 2)
            self.committed = np.concatenate([self.committed, np.zeros(more, np.uint64)])
            self.shown = np.concatenate([self.shown, np.zeros(more, np.uint64)])
            self.begin = np.concatenate([self.begin, np.full(more, NONE, np.int64)])
            self.begin_handed = np.concatenate([self.begin_handed, np.full(more, NONE, np.int64)])
