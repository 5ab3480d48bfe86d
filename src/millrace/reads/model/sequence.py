"""Sequencing of rows of many journals at once. Pure.

`millrace.journal.core.sequencing` has the table of what a row does to its producer's transaction;
this applies it to rows of any tags and producers together. Rows are grouped by tag and producer and
checked as arrays; a group in which anything is odd (a duplicate, a rollback, an error) goes through
the table row by row.

Invariant: the result is that of the table, applied row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.errors import BrokenTransaction
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.core.sequencing import (
    ERRORS,
    OpenTransaction,
    RowEffect,
    Sequence,
    advance,
    outcome,
)
from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.numbering import PairNumbering
from millrace.reads.model.tags import Clocks, Ints

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_KEPT: Final = (RowEffect.COMMITS_ITSELF, RowEffect.BEGINS, RowEffect.EXTENDS)
_COMMITS: Final = (RowEffect.COMMITS_ITSELF, RowEffect.COMMITS, RowEffect.COMMITS_NOTHING)
_IS_KEPT: Final = np.array([effect in _KEPT for effect in RowEffect])
_IS_COMMIT: Final = np.array([effect in _COMMITS for effect in RowEffect])
_SMALL: Final = 2**16
"""So many pairs are sorted by their digits, several times as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """The system fields of rows of many tags; rows of one tag are in order of offset."""

    tags: Ints
    offsets: Ints
    producers: Ints
    clocks: Clocks
    flags: Bytes

    def __len__(self) -> int:
        return len(self.tags)

    def slice(self, begin: int, end: int) -> Stamped:
        """The rows from `begin` to before `end`, without a copy."""
        return Stamped(
            tags=self.tags[begin:end],
            offsets=self.offsets[begin:end],
            producers=self.producers[begin:end],
            clocks=self.clocks[begin:end],
            flags=self.flags[begin:end],
        )

    def staged(self, places: Ints) -> list[npt.NDArray[Any]]:
        """What queues get of the rows at these places: tags, producers, clocks and offsets."""
        columns = (self.tags, self.producers, self.clocks, self.offsets)
        return [column.take(places) for column in columns]

    def take(self, places: Ints) -> Stamped:
        """The rows at these places."""
        return Stamped(
            tags=self.tags.take(places),
            offsets=self.offsets.take(places),
            producers=self.producers.take(places),
            clocks=self.clocks.take(places),
            flags=self.flags.take(places),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcomes:
    """The effects of rows on their transactions."""

    pairs: Ints
    """The pairs of tag and producer of these rows, each once, by number."""
    tags: Ints
    """Of each pair, its tag, and the offset behind its last row."""
    nexts: Ints
    keep: Mask
    """Rows that may become visible."""
    commits: Ints
    """Places of rows that commit, those of one tag and producer together and in order."""
    begins: Ints
    """Of each of these commits, the offset at which its first row begins."""
    rolled_back: RolledBack


class Sequences:
    """The state of each producer in each tag of a slice."""

    def __init__(self) -> None:
        self.numbering = PairNumbering()
        self._last: Clocks = np.empty(0, np.uint64)
        self._begin: Ints = np.empty(0, np.int64)
        self._highest: Clocks = np.empty(0, np.uint64)

    def start(self, tags: int | Ints, producers: Ints, last_commits: Clocks) -> None:
        """Start tags from a checkpoint: rows that are shown are committed."""
        wide = np.broadcast_to(np.asarray(tags, np.int64), producers.shape)
        pairs = self.number(wide, producers)
        self._last[pairs] = last_commits
        self._begin[pairs] = NONE
        self._highest[pairs] = 0

    def forget(self, tag: int) -> None:
        """Forget a tag; if it is read again, it starts from a checkpoint."""
        pairs = np.flatnonzero(self.numbering.firsts == tag)
        self._last[pairs], self._begin[pairs], self._highest[pairs] = 0, NONE, 0

    def open_begins(self, pairs: Ints) -> Ints:
        """Where the open transactions of these pairs begin, or `NONE`."""
        return self._begin[pairs]

    def abandon(self, producer: int) -> tuple[Ints, Ints, Clocks]:
        """Close what a producer has open: its pairs, where each began, and its highest clock."""
        is_of_producer = self.numbering.producers == producer
        pairs = np.flatnonzero(is_of_producer & (self._begin[: len(is_of_producer)] != NONE))
        begins, highest = self._begin[pairs].copy(), self._highest[pairs].copy()
        self._begin[pairs], self._highest[pairs] = NONE, 0
        return pairs, begins, highest

    def number(self, tags: Ints, producers: Ints) -> Ints:
        """The numbers of pairs. It is fastest for rows as they were read, a tag after the other."""
        pairs = self.numbering.number(tags, producers)
        more = len(self.numbering) - len(self._last)
        if more > 0:
            more = max(more, len(self._last) // 2)  # Room to grow, so that this is rare.
            self._last = np.concatenate([self._last, np.zeros(more, np.uint64)])
            self._begin = np.concatenate([self._begin, np.full(more, NONE, np.int64)])
            self._highest = np.concatenate([self._highest, np.zeros(more, np.uint64)])
        return pairs

    def take(self, rows: Stamped, pairs: Ints | None = None) -> RowOutcomes:
        """Take rows in; an erroneous one raises `BrokenTransaction`.

        `pairs` are the numbers of their pairs, if they are known.
        """
        assert len(rows), "no rows to take"
        if pairs is None:
            pairs = self.number(rows.tags, rows.producers)
        order, groups = None, _PairGroups(pairs, rows)
        if not groups.are_whole:
            small = pairs.astype(np.uint16) if len(self.numbering) <= _SMALL else pairs
            order = np.argsort(small, kind="stable")
            groups = _PairGroups(pairs.take(order), rows.take(order))
        if self._is_all_outside(groups):
            return self._commit_outside(groups, order)
        outcomes, begins, odd = self._whole_groups(groups)
        gone = [self._row_by_row(groups, group, outcomes, begins) for group in odd.tolist()]
        self._store(groups, outcomes, begins, odd)
        keep = _IS_KEPT[outcomes]
        commits = np.flatnonzero(_IS_COMMIT[outcomes])
        commit_begins = begins[commits]
        if order is not None:
            sorted_keep, keep = keep, np.empty(len(rows), np.bool_)
            keep[order] = sorted_keep
            commits = order[commits]
        rolled_back = RolledBack.of([range_ for ranges in gone for range_ in ranges])
        return RowOutcomes(
            pairs=groups.pairs,
            tags=groups.tags(),
            nexts=groups.nexts(),
            keep=keep,
            commits=commits,
            begins=commit_begins,
            rolled_back=rolled_back,
        )

    def _is_all_outside(self, groups: _PairGroups) -> bool:
        """Whether all rows commit themselves, so that no other check is needed."""
        rows, pairs = groups.rows, groups.pairs
        if rows.flags.any() or (self._begin[pairs] != NONE).any():
            return False
        rises = rows.clocks[1:] > rows.clocks[:-1]
        rises[groups.starts[1:] - 1] = True
        return bool(rises.all()) and bool((rows.clocks[groups.starts] > self._last[pairs]).all())

    def _commit_outside(self, groups: _PairGroups, order: Ints | None) -> RowOutcomes:
        self._last[groups.pairs] = groups.rows.clocks[groups.ends - 1]
        return RowOutcomes(
            pairs=groups.pairs,
            tags=groups.tags(),
            nexts=groups.nexts(),
            keep=np.ones(len(groups.rows), np.bool_),
            commits=np.arange(len(groups.rows)) if order is None else order,
            begins=groups.rows.offsets,
            rolled_back=RolledBack.empty(),
        )

    def _whole_groups(self, groups: _PairGroups) -> tuple[Bytes, Ints, Ints]:
        """Outcomes and begins of groups without odd rows, and the numbers of the odd groups."""
        rows = groups.rows
        begin, highest = self._begin[groups.pairs], self._highest[groups.pairs]
        was_open = begin != NONE
        before = np.where(was_open, highest, self._last[groups.pairs])
        clocks, flags = rows.clocks, rows.flags
        previous = np.empty_like(clocks)
        previous[1:] = clocks[:-1]
        previous[groups.starts] = before
        in_open = np.empty(len(flags), np.bool_)
        in_open[1:] = flags[:-1] == Flag.CONTINUE
        in_open[groups.starts] = was_open
        is_ack, is_outside = flags == Flag.ACK, flags == Flag.OUTSIDE
        rises = (clocks > previous) | (is_ack & in_open & (clocks == previous))
        odd = np.logical_or.reduceat(~rises | (is_outside & in_open), groups.starts)
        outcomes = np.where(in_open, np.uint8(RowEffect.EXTENDS), np.uint8(RowEffect.BEGINS))
        outcomes[is_outside] = RowEffect.COMMITS_ITSELF
        outcomes[is_ack] = np.where(
            in_open[is_ack], np.uint8(RowEffect.COMMITS), np.uint8(RowEffect.COMMITS_NOTHING)
        )
        return outcomes, self._begins(groups, outcomes, begin), np.flatnonzero(odd)

    def _begins(self, groups: _PairGroups, outcomes: Bytes, open_begins: Ints) -> Ints:
        """The begin of the transaction of each commit, and of the last row of each group.

        Rows that commit themselves begin at their own offset; values of other rows are not used.
        """
        needs_begin = outcomes == RowEffect.COMMITS
        needs_begin[groups.ends - 1] |= outcomes[groups.ends - 1] == RowEffect.EXTENDS
        inside = np.flatnonzero(needs_begin)
        begins = groups.rows.offsets.copy()
        if len(inside):
            first = np.flatnonzero(outcomes == RowEffect.BEGINS)
            nearest = np.searchsorted(first, inside) - 1
            latest = np.append(first, -1)[nearest]  # -1 where none has begun before.
            group = np.searchsorted(groups.starts, inside, side="right") - 1
            begun_here = latest >= groups.starts[group]
            begins[inside] = np.where(begun_here, groups.rows.offsets[latest], open_begins[group])
        return begins

    def _row_by_row(
        self, groups: _PairGroups, group: int, outcomes: Bytes, begins: Ints
    ) -> list[tuple[int, ...]]:
        """Take an odd group through the table; returns the ranges it rolled back."""
        pair, rows = int(groups.pairs[group]), groups.rows
        state = self._state(pair)
        gone: list[tuple[int, ...]] = []
        for row in range(int(groups.starts[group]), int(groups.ends[group])):
            clock, offset = Clock(int(rows.clocks[row])), Offset(int(rows.offsets[row]))
            effect = outcome(Flag(int(rows.flags[row])), clock, state)
            if effect in ERRORS:
                raise _broken(rows, row, effect, state)
            begins[row] = offset if state.open is None else state.open.begin
            if effect is RowEffect.ROLLS_BACK:
                assert state.open is not None
                where = int(rows.tags[row]), int(rows.producers[row])
                gone.append((*where, state.open.begin, offset, state.open.highest))
            outcomes[row] = effect
            state = advance(state, effect, clock, offset)
        self._last[pair] = state.last_commit
        self._begin[pair] = NONE if state.open is None else state.open.begin
        self._highest[pair] = 0 if state.open is None else state.open.highest
        return gone

    def _state(self, pair: int) -> Sequence:
        begin = int(self._begin[pair])
        pending = None
        if begin != NONE:
            pending = OpenTransaction(Offset(begin), Clock(int(self._highest[pair])))
        return Sequence(Clock(int(self._last[pair])), pending)

    def _store(self, groups: _PairGroups, outcomes: Bytes, begins: Ints, odd: Ints) -> None:
        """Store the state of producers after groups without odd rows."""
        plain = np.ones(len(groups.pairs), np.bool_)
        plain[odd] = False
        latest = _latest(_IS_COMMIT[outcomes], groups.ends)
        committed = plain & (latest >= groups.starts)
        self._last[groups.pairs[committed]] = groups.rows.clocks[latest[committed]]
        last = groups.ends - 1
        is_open = groups.rows.flags[last] == Flag.CONTINUE
        opened, closed = plain & is_open, plain & ~is_open
        self._begin[groups.pairs[opened]] = begins[last[opened]]
        self._highest[groups.pairs[opened]] = groups.rows.clocks[last[opened]]
        self._begin[groups.pairs[closed]] = NONE
        self._highest[groups.pairs[closed]] = 0


class _PairGroups:
    """Rows, in groups of one pair."""

    def __init__(self, pair_of_row: Ints, rows: Stamped) -> None:
        self.rows = rows
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = pair_of_row[1:] != pair_of_row[:-1]
        self.starts = np.flatnonzero(is_first)
        self.ends = np.append(self.starts[1:], len(rows))
        self.pairs = pair_of_row[self.starts]

    @property
    def are_whole(self) -> bool:
        """Whether no pair has two groups."""
        if (self.pairs[1:] > self.pairs[:-1]).all():
            return True
        if 2 * len(self.pairs) > len(self.rows):
            return False
        in_order = np.sort(self.pairs)
        return bool((in_order[1:] != in_order[:-1]).all())

    def tags(self) -> Ints:
        """The tag of each pair."""
        return self.rows.tags[self.starts]

    def nexts(self) -> Ints:
        """The offset behind the last row of each pair."""
        nexts: Ints = self.rows.offsets[self.ends - 1] + 1
        return nexts


def _latest(which: Mask, ends: Ints) -> Ints:
    """The last place before each end that is one of these; -1 where there is none."""
    places = np.flatnonzero(which)
    return np.append(places, -1)[np.searchsorted(places, ends) - 1]


def _broken(rows: Stamped, row: int, effect: RowEffect, state: Sequence) -> BrokenTransaction:
    assert state.open is not None
    what = {
        RowEffect.INTERRUPTS: "commits itself within an open transaction",
        RowEffect.COMMITS_HALF: "is an ACK that would commit half of a transaction",
    }[effect]
    return BrokenTransaction(
        f"a row {what}\n  tag {rows.tags[row]}, producer {rows.producers[row]:012x}, "
        f"offset {rows.offsets[row]}, clock {rows.clocks[row]}\n  last commit "
        f"{state.last_commit}, open up to clock {state.open.highest} from offset "
        f"{state.open.begin}\n  to fix: see who writes under this producer"
    )
