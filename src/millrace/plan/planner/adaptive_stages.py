"""Changes the stages of a plan as the sizes of those before them are measured.

- A side of a join that is small once measured is broadcast. The stage of the larger side is
  skipped, and its work moves into the stage of the join.
- A side that has few keys once measured reduces the other side, before that one is exchanged.
- If a stage reads few bytes, it and the stages that only follow it become one stage of one task.

Invariant: the choice depends on measured sizes alone, so the same rows lead to the same stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from millrace.plan.nodes.aggregate import PartialAggregate
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.join import KEEPS_LEFT, KEEPS_RIGHT, Join
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import ByHash
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.read_stage import ReadStage, is_broadcast
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import with_replaced
from millrace.plan.planner.exchanges import (
    ASKED_FOR,
    BROADCAST,
    TO_BE_KEPT,
    scanned_bytes,
)
from millrace.plan.planner.key_reduction import ReducibleSide, reduced
from millrace.plan.planner.stages import Stage

_Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class AdaptableJoin:
    """A join that may change: if its smaller side is small, the larger one is not exchanged."""

    reader: int
    small: int
    large: int
    small_side: _Side


def adaptable_joins(stages: Sequence[Stage]) -> list[AdaptableJoin]:
    """The joins of a plan that may change. The stage `large` waits for the stage `small`."""
    joins = []
    readers = Counter(number for stage in stages for number in stage.reads)
    for stage in stages:
        join = _join_of(stage.root)
        if join is None:
            continue
        left, right = (side for side in join.children if isinstance(side, ReadStage))
        sides: list[tuple[_Side, int, int]] = []
        if join.how in KEEPS_LEFT and _may_shrink(stages, right.stage):
            sides.append(("right", right.stage, left.stage))
        if join.how in KEEPS_RIGHT and _may_shrink(stages, left.stage):
            sides.append(("left", left.stage, right.stage))
        if sides:
            side, small, large = min(sides, key=lambda side: _scanned(stages, side[1]))
            # Work that belongs into one task stays, and so do rows that other stages read too.
            if not stages[large].alone and readers[large] == 1:
                joins.append(AdaptableJoin(stage.number, small, large, side))
    return joins


def adapt_stage(stages: Sequence[Stage], choice: AdaptableJoin) -> Stage:
    """The stage of the join, with the work of the larger side and the smaller one broadcast."""
    reader, large = stages[choice.reader], stages[choice.large]
    join = _join_of(reader.root)
    assert join is not None, "only what was found adaptable is adapted"
    small = join.right if choice.small_side == "right" else join.left
    assert isinstance(small, ReadStage), "as above"
    whole = replace(small, placement=BROADCAST)
    sides = (large.root, whole) if choice.small_side == "right" else (whole, large.root)
    changed = join.with_children(*sides)
    return replace(reader, root=with_replaced(reader.root, {id(join): changed}))


class AdaptiveStages:
    """The stages of a plan while it runs: some change or are skipped as others finish."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        broadcast_bytes_max: int,
        together_bytes_max: int,
        sides: Sequence[ReducibleSide] = (),
    ) -> None:
        """`sides` are those that may be reduced by the keys of others."""
        self._stages = list(stages)
        opposite = {(side.large, side.small) for side in sides}
        self._choices = [
            choice
            for choice in adaptable_joins(stages)
            if (choice.small, choice.large) not in opposite
        ]
        self._broadcast_limit = broadcast_bytes_max
        self._together_limit = together_bytes_max
        self._needs = [
            {n for n in stage.reads if n >= 0}  # Others are saved DataFrames.
            | {c.small for c in self._choices if c.large == stage.number}
            for stage in self._stages
        ]
        self._sides = {side.large: side for side in sides if self._wait_for(side)}
        self.skipped: dict[int, str] = {}
        """Stages that are not run, and why."""

    def dependencies(self) -> list[frozenset[int]]:
        """For each stage, the stages that must be finished or skipped before it."""
        return [frozenset(needs) for needs in self._needs]

    def _wait_for(self, side: ReducibleSide) -> bool:
        """Let a stage wait for the keys that reduce it, unless these wait for the stage."""
        waiting, before = [side.small], {side.small}
        while waiting:
            more = self._needs[waiting.pop()] - before
            before |= more
            waiting += more
        if side.large in before:
            return False
        self._needs[side.large].add(side.small)
        return True

    def stage(
        self, number: int, measured: Mapping[int, int], rows: Mapping[int, int] | None = None
    ) -> Stage | None:
        """The stage as it should run, given the bytes and the rows of those before it.

        None to skip it.
        """
        side = self._sides.get(number)
        if side is not None and rows is not None and side.pays_off(measured, rows):
            self._stages[number] = reduced(self._stages, side)
        limit = self._broadcast_limit
        small = [c for c in self._choices if measured.get(c.small, limit + 1) <= limit]
        for choice in small:
            if choice.reader == number:
                self._stages[number] = adapt_stage(self._stages, choice)
        if any(choice.large == number for choice in small):
            self.skipped[number] = "the other side of the join is small"
        elif number not in self.skipped:
            self._merge_followers(number, measured)
        return None if number in self.skipped else self._stages[number]

    def _merge_followers(self, number: int, measured: Mapping[int, int]) -> None:
        """Merge a stage and those after it into the last one if it reads few bytes."""
        behind = followers(self._stages, number)
        size = _read_bytes(self._stages[number], measured)
        if not behind or size > self._together_limit:
            return
        root = self._stages[number].root
        for before, stage in zip([number, *behind], behind, strict=False):
            read = next(leaf for leaf in self._stages[stage].leaves if _reads(leaf, before))
            root = with_replaced(self._stages[stage].root, {id(read): root})
        last = behind[-1]
        self._stages[last] = replace(self._stages[last], root=root, alone=True)
        for earlier in (number, *behind[:-1]):
            self.skipped[earlier] = f"its rows are few and made in stage {last}"


def followers(stages: Sequence[Stage], number: int) -> list[int]:
    """The stages after one up to the last, if each reads only the one before it.

    None of them if rows are saved on the way, or partitioned as the user asked.
    """
    behind: list[int] = []
    at = number
    while True:
        if any(stages[read].why == ASKED_FOR for read in stages[at].reads if read >= 0):
            return []
        if at == stages[-1].number:
            return behind
        readers = [stage for stage in stages if at in stage.reads]
        if stages[at].why == TO_BE_KEPT or len(readers) != 1 or len(readers[0].leaves) != 1:
            return []
        at = readers[0].number
        behind.append(at)


def _reads(leaf: Scan | ReadStage, number: int) -> bool:
    return isinstance(leaf, ReadStage) and leaf.stage == number


def _read_bytes(stage: Stage, measured: Mapping[int, int]) -> float:
    """The bytes that a stage reads; infinite if unknown."""
    read = [measured.get(number, inf) for number in stage.reads]
    return scanned_bytes(stage.root) + sum(read)


def _join_of(node: Node) -> Join | None:
    """The join of two exchanged sides, if nothing above it relies on the placement."""
    match node:
        case Join(left=ReadStage(placement=ByHash()), right=ReadStage(placement=ByHash())):
            return node
        case Project(child=child) | Filter(child=child) | PartialAggregate(child=child):
            return _join_of(child)
        case Join(left=left, right=right) if is_broadcast(right):
            return _join_of(left)
        case Join(left=left, right=right) if is_broadcast(left):
            return _join_of(right)
        case _:
            return None


def _may_shrink(stages: Sequence[Stage], number: int) -> bool:
    """Whether a stage may write less than is read. If not, its size is known before it runs."""
    stage = stages[number]
    return _has_more_than_columns(stage.root) or any(_may_shrink(stages, n) for n in stage.reads)


def _has_more_than_columns(node: Node) -> bool:
    if not isinstance(node, Scan | ReadStage | Project):
        return True
    return any(_has_more_than_columns(child) for child in node.children)


def _scanned(stages: Sequence[Stage], number: int) -> int:
    """The bytes of files that a stage and all below it read."""
    stage = stages[number]
    below = [number for number in stage.reads if number >= 0]  # Not saved DataFrames.
    return scanned_bytes(stage.root) + sum(_scanned(stages, number) for number in below)
