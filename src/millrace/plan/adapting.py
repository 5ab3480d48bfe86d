"""Changes a join when its smaller side was measured: one that came out small is read by all tasks.

The larger side then stays where it is: its stage is not run, and its work moves into the join's
stage. Invariant: the choice follows from measured sizes alone, so that the same rows always lead to
the same stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from millrace.plan.aggregate import PartialAggregate
from millrace.plan.exchanges import EVERYWHERE, scanned_bytes
from millrace.plan.join import KEEPS_LEFT, KEEPS_RIGHT, Join, is_broadcast
from millrace.plan.nodes import Filter, Node, Project, ReadStage, Scan
from millrace.plan.placement import ByHash
from millrace.plan.stages import Stage

_Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Adaptable:
    """A join whose smaller side, once measured, may spare the larger side its exchange."""

    reader: int
    small: int
    large: int
    small_side: _Side


def adaptable(stages: Sequence[Stage]) -> list[Adaptable]:
    """The joins of a plan that may change. The stage `large` is to wait for the stage `small`."""
    found = []
    for stage in stages:
        join = _join_of(stage.root)
        if join is None:
            continue
        left, right = (side for side in join.children if isinstance(side, ReadStage))
        sides: list[tuple[_Side, int, int]] = []
        if join.how in KEEPS_LEFT and _leaves_out(stages, right.stage):
            sides.append(("right", right.stage, left.stage))
        if join.how in KEEPS_RIGHT and _leaves_out(stages, left.stage):
            sides.append(("left", left.stage, right.stage))
        if sides:
            side, small, large = min(sides, key=lambda one: _scanned(stages, one[1]))
            found.append(Adaptable(stage.number, small, large, side))
    return found


def adapt(stages: Sequence[Stage], choice: Adaptable) -> Stage:
    """The stage of the join, with the larger side's work in it and the small side read by all."""
    reader, large = stages[choice.reader], stages[choice.large]
    join = _join_of(reader.root)
    assert join is not None, "only what was found adaptable is adapted"
    small = join.right if choice.small_side == "right" else join.left
    assert isinstance(small, ReadStage), "as above"
    whole = replace(small, placement=EVERYWHERE)
    sides = (large.root, whole) if choice.small_side == "right" else (whole, large.root)
    return replace(reader, root=_replaced(reader.root, join, join.with_children(*sides)))


class Course:
    """The stages of a plan as they are run: some change, some are left out, as others come out."""

    def __init__(self, stages: Sequence[Stage], *, broadcast_bytes_max: int) -> None:
        self._stages = list(stages)
        self._choices = adaptable(stages)
        self._limit = broadcast_bytes_max

    def waits(self) -> list[frozenset[int]]:
        """For each stage, those that have to be finished or left out before it is looked at."""
        return [
            frozenset(n for n in stage.reads if n >= 0)  # Others were taken in before.
            | {c.small for c in self._choices if c.large == stage.number}
            for stage in self._stages
        ]

    def stage(self, number: int, measured: Mapping[int, int]) -> Stage | None:
        """The stage as it is to be run, given the bytes of those before it; None to leave out."""
        small = [c for c in self._choices if measured.get(c.small, self._limit + 1) <= self._limit]
        for choice in small:
            if choice.reader == number:
                self._stages[number] = adapt(self._stages, choice)
        if any(choice.large == number for choice in small):
            return None
        return self._stages[number]


def _join_of(node: Node) -> Join | None:
    """The join of two exchanged sides, if nothing above it relies on how its rows lie."""
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


def _replaced(node: Node, old: Node, new: Node) -> Node:
    if node is old:
        return new
    return node.with_children(*(_replaced(child, old, new) for child in node.children))


def _leaves_out(stages: Sequence[Stage], number: int) -> bool:
    """Whether a stage may write less than is read: if not, waiting for its size is in vain."""
    stage = stages[number]
    return _has_more_than_columns(stage.root) or any(_leaves_out(stages, n) for n in stage.reads)


def _has_more_than_columns(node: Node) -> bool:
    if not isinstance(node, Scan | ReadStage | Project):
        return True
    return any(_has_more_than_columns(child) for child in node.children)


def _scanned(stages: Sequence[Stage], number: int) -> int:
    """How many bytes of files a stage and all below it read."""
    stage = stages[number]
    below = [number for number in stage.reads if number >= 0]  # Not what was taken in before.
    return scanned_bytes(stage.root) + sum(_scanned(stages, number) for number in below)
