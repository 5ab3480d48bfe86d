"""Which blocks hold rows that are yet to be read. Pure.

The summaries of all blocks are in flat tables, so that a question about ten thousand blocks is a
few operations on arrays. Python loops only over the blocks of the answer.

Invariant: a binding's rows are in its blocks in the order of their lsn, and within a block in the
order they came. So the rows of a tag are always in the order of their offsets.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from millrace.reads.model.checkpoint import ShownClock
from millrace.reads.model.number_tables import Table
from millrace.reads.model.tags import Clocks, Ints
from millrace.reads.queue.blocks import Block, Entries, Lsn
from millrace.reads.queue.visibility import Consumed, VisibilityView


@dataclass(frozen=True, slots=True)
class ListedEntries(Table):
    """Entries of many blocks."""

    TYPES: ClassVar[dict[str, Any]] = {"lowest": np.uint64, "highest": np.uint64}

    lsn: Ints
    tag: Ints
    producer: Ints
    lowest: Clocks
    highest: Clocks
    count: Ints

    @property
    def entries(self) -> Entries:
        """The entries without their blocks."""
        return Entries(self.tag, self.producer, self.lowest, self.highest, self.count)


@dataclass(frozen=True, slots=True)
class Spans(Table):
    """The lowest and the highest clock of blocks."""

    TYPES: ClassVar[dict[str, Any]] = {"lowest": np.uint64, "highest": np.uint64}

    lsn: Ints
    lowest: Clocks
    highest: Clocks


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block that may hold visible rows."""

    block: Block
    is_whole: bool
    """Whether all its rows are visible."""
    floor: int
    """No visible row of it has a clock below this."""


@dataclass(frozen=True, slots=True)
class CommitReview:
    """What a committed checkpoint means for blocks."""

    dead: list[Block]
    suspects: list[Block]
    """So much of them may be dead that their rows are worth a look."""


class Directory:
    """All blocks with rows that are yet to be read."""

    def __init__(self) -> None:
        self._blocks: dict[Lsn, Block] = {}
        self._by_binding: dict[int, list[Lsn]] = {}
        self._pairs = _Growing(ListedEntries)
        self._samples = _Growing(ListedEntries)
        self._spans = _Growing(Spans)
        self.rows = 0
        """In the files, over all blocks."""

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def add(self, block: Block) -> None:
        """Take up a block."""
        assert block.lsn not in self._blocks, block.lsn
        self._blocks[block.lsn] = block
        insort(self._by_binding.setdefault(block.binding, []), block.lsn)
        self.rows += block.rows
        self._list(block)

    def remove(self, blocks: Iterable[Block]) -> None:
        """Drop blocks."""
        gone: set[Lsn] = set()
        for block in blocks:
            gone.add(block.lsn)
            lsns = self._by_binding[block.binding]
            del lsns[bisect_left(lsns, block.lsn)]
            self.rows -= self._blocks.pop(block.lsn).rows
        self._unlist(gone)

    def refresh(self, blocks: list[Block]) -> None:
        """Replace blocks by the same blocks with better summaries."""
        self._unlist({block.lsn for block in blocks})
        for block in blocks:
            assert self._blocks[block.lsn].position == block.position
            self._blocks[block.lsn] = block
            self._list(block)

    def get(self, lsn: Lsn) -> Block | None:
        """A block that is here, by its lsn."""
        return self._blocks.get(lsn)

    def before(self, block: Block) -> Block | None:
        """The block of the same binding that comes before this one."""
        lsns = self._by_binding[block.binding]
        index = bisect_left(lsns, block.lsn)
        return self._blocks[lsns[index - 1]] if index else None

    def candidates(self, view: VisibilityView) -> list[Candidate]:
        """The blocks that may hold visible rows, in the order of their lsn."""
        candidates = self._exact_candidates(view) + self._sampled_candidates(view)
        return sorted(candidates, key=lambda candidate: candidate.block.lsn)

    def _exact_candidates(self, view: VisibilityView) -> list[Candidate]:
        listed = self._pairs.table
        verdict = view.judge(listed.entries)
        touching = np.flatnonzero(verdict.touches)
        if not len(touching):
            return []
        touching = touching[np.argsort(listed.lsn[touching], kind="stable")]
        lsns, starts = np.unique(listed.lsn[touching], return_index=True)
        floors = np.minimum.reduceat(verdict.floor[touching], starts)
        is_whole = ~np.isin(lsns, listed.lsn[~verdict.is_inside])
        rows = zip(lsns.tolist(), is_whole.tolist(), floors.tolist(), strict=True)
        return [
            Candidate(block, whole and block.summary.rows == block.rows, floor)
            for lsn, whole, floor in rows
            for block in [self._blocks[Lsn(lsn)]]
        ]

    def _sampled_candidates(self, view: VisibilityView) -> list[Candidate]:
        spans = self._spans.table
        if not len(spans):
            return []
        hit = (spans.highest > np.uint64(view.above)) & (spans.lowest <= np.uint64(view.upto))
        blocks = [self._blocks[Lsn(lsn)] for lsn in spans.lsn[hit].tolist()]
        above = view.above
        return [Candidate(block, False, max(block.summary.lowest, above + 1)) for block in blocks]  # noqa: FBT003

    def touching(self, shown: ShownClock) -> ShownClock:
        """The clocks that some row in a block may not be above."""
        lowest = min((block.summary.lowest for block in self._blocks.values()), default=None)
        if lowest is None:
            return ShownClock.empty()
        return shown.take(shown.clock >= np.uint64(lowest))

    def review(self, consumed: Consumed) -> CommitReview:
        """Which blocks are dead, and which may have become so for the most part."""
        dead, suspects = self._review_exact(consumed)
        suspects |= self._review_sampled(consumed)
        suspect_blocks = [self._blocks[lsn] for lsn in sorted(suspects)]
        return CommitReview([self._blocks[lsn] for lsn in sorted(dead)], suspect_blocks)

    def _review_exact(self, consumed: Consumed) -> tuple[set[Lsn], set[Lsn]]:
        listed = self._pairs.table
        is_consumed, is_partly_consumed = consumed.judge(listed.entries)
        touched = np.unique(listed.lsn[is_partly_consumed])
        if not len(touched):
            return set(), set()
        is_dead = _sums(touched, listed.lsn[~is_consumed], listed.count[~is_consumed]) == 0
        dead = {Lsn(lsn) for lsn in touched[is_dead].tolist()}
        partly = touched[~is_dead]
        left = _sums(
            partly, listed.lsn[~is_partly_consumed], listed.count[~is_partly_consumed]
        ).tolist()
        rows = zip(map(Lsn, partly.tolist()), left, strict=True)
        return dead, {lsn for lsn, count in rows if count * 2 <= self._blocks[lsn].rows}

    def _review_sampled(self, consumed: Consumed) -> set[Lsn]:
        sampled = self._samples.table
        if not len(sampled):
            return set()
        _, is_partly_consumed = consumed.judge(sampled.entries)
        touched = np.unique(sampled.lsn[is_partly_consumed])
        left = _sums(touched, sampled.lsn[~is_partly_consumed], sampled.count[~is_partly_consumed])
        hit = _sums(touched, sampled.lsn[is_partly_consumed], sampled.count[is_partly_consumed])
        return {Lsn(lsn) for lsn in touched[left <= hit].tolist()}

    def _list(self, block: Block) -> None:
        summary = block.summary
        entries = summary.entries
        listed = ListedEntries(
            np.full(len(entries), block.lsn),
            entries.tag,
            entries.producer,
            entries.lowest,
            entries.highest,
            entries.count,
        )
        if summary.is_exact:
            self._pairs.add(listed)
            return
        self._samples.add(listed)
        self._spans.add(Spans.of([(block.lsn, summary.lowest, summary.highest)]))

    def _unlist(self, lsns: set[Lsn]) -> None:
        for table in (self._pairs, self._samples, self._spans):
            table.remove(lsns)


T = TypeVar("T", ListedEntries, Spans)


class _Growing(Generic[T]):
    """A table that grows by the rows of a block at a time; joined when it is read."""

    def __init__(self, kind: type[T]) -> None:
        self._kind: type[T] = kind
        self._parts: list[T] = []
        self._removed: set[Lsn] = set()
        """Removed, and still in the first of the parts."""

    def add(self, part: T) -> None:
        """Put rows behind."""
        if int(part.lsn[0]) in self._removed:
            self._settle()
        self._parts.append(part)

    def remove(self, lsns: set[Lsn]) -> None:
        """Drop the rows of these blocks."""
        self._removed |= lsns

    @property
    def table(self) -> T:
        """All rows."""
        self._settle()
        return self._parts[0]

    def _settle(self) -> None:
        if len(self._parts) == 1 and not self._removed:
            return
        whole = self._kind.concat(self._parts)
        if self._removed and len(whole):
            whole = whole.take(~np.isin(whole.lsn, np.array(sorted(self._removed), np.int64)))
        self._removed = set()
        self._parts = [whole]


def _sums(keys: Ints, of: Ints, weights: Ints) -> Ints:
    """The sum of weights for each of these sorted keys; 0 for one that has none."""
    places = np.searchsorted(keys, of)
    known = places < len(keys)
    known[known] = keys[places[known]] == of[known]
    return np.bincount(places[known], weights[known], minlength=len(keys)).astype(np.int64)
