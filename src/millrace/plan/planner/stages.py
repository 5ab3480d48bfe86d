"""Cuts a plan into stages, at its exchanges.

Invariant: every stage comes after those it reads, and the same plan is always cut alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from math import inf

from millrace.plan.nodes.exchange import Exchange
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.in_one_task import InOneTask, needs_rows_of_many_tasks
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.placement import ByHash, Placement
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.read_stage import ReadStage, leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import MadeOnce
from millrace.plan.nodes.union import Union
from millrace.plan.planner.column_pruning import prune
from millrace.plan.planner.exchanges import (
    ASKED_FOR,
    TO_BE_KEPT,
    PlanLimits,
    fits_one_task,
    insert_exchanges,
)
from millrace.plan.planner.filter_pushdown import push_filters
from millrace.plan.planner.join_order import order_joins
from millrace.plan.planner.merged_aggregates import merge_aggregates
from millrace.plan.planner.partition_pruning import prune_partitions
from millrace.plan.planner.plan_identity import PlanIdentity
from millrace.plan.planner.row_estimates import RowEstimates
from millrace.plan.planner.shared_parts import optimise_shared


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A tree over scans and earlier stages, and the placement of its rows (None: the result).

    A stage that is `alone` runs as one task, which reads all files.
    """

    number: int
    root: Node
    placement: Placement | None
    why: str
    alone: bool

    @property
    def leaves(self) -> tuple[Scan | ReadStage, ...]:
        """Where its rows come from, left to right."""
        return tuple(leaves(self.root))

    @property
    def reads(self) -> tuple[int, ...]:
        """The stages it reads, in order of its leaves."""
        return tuple(leaf.stage for leaf in self.leaves if isinstance(leaf, ReadStage))

    @property
    def branches(self) -> list[Node]:
        """The trees that its tasks run: each task runs one side of every union.

        If all sides have one placement, or one task reads everything, a task runs all sides.
        """
        return [self.root] if self.alone else _branches(self.root)


def plan_stages(plan: Node, sizes: PlanLimits) -> list[Stage]:
    """The stages that a plan is run in."""

    def optimise(part: Node) -> Node:
        ordered = push_filters(order_joins(prune(push_filters(part))))
        return prune(prune_partitions(ordered, sizes.matching_files))

    optimised = optimise_shared(merge_aggregates(plan), optimise)
    alone = fits_one_task(optimised, sizes)
    return cut(insert_exchanges(optimised, sizes), alone=alone, apart_from=sizes.reduced_rows_min)


def cut(plan: Node, *, alone: bool, apart_from: float = inf) -> list[Stage]:
    """The stages of a plan, each after those it reads; the last one makes the result.

    Equal work is one stage, but for scans of so many rows: each join may need few of them, and
    those that need all find what the first one wrote.
    """
    cutter = _Cutter(alone=alone, apart_from=apart_from)
    root = cutter.cut(plan)
    stages = cutter.stages
    stages.append(_stage(len(stages), root, None, "the result", alone=alone))
    return stages


class _Cutter:
    """Makes stages of a plan; equal work is one stage, which several others read."""

    def __init__(self, *, alone: bool, apart_from: float) -> None:
        self.stages: list[Stage] = []
        self._alone = alone
        self._apart_from = apart_from
        self._identity = PlanIdentity()
        self._equal: dict[Hashable, int] = {}
        self._once: dict[int, Node] = {}

    def cut(self, node: Node) -> Node:
        """The node over reads of the stages below it."""
        if id(node) in self._once:
            return self._once[id(node)]
        rows = with_new_children(node, [self.cut(child) for child in node.children])
        if isinstance(rows, Exchange):
            rows = ReadStage(self._stage_of(rows), rows.schema, rows.placement)
        if isinstance(node, Exchange | MadeOnce):
            self._once[id(node)] = rows
        return rows

    def _stage_of(self, exchange: Exchange) -> int:
        number = len(self.stages)
        root = _stage(number, exchange.child, exchange.placement, exchange.why, alone=self._alone)
        part = None if self._is_apart(root) else self._identity.of(root.root)
        if part is not None:
            asked = exchange.why if exchange.why in (ASKED_FOR, TO_BE_KEPT) else ""
            number = self._equal.setdefault((part, exchange.placement, root.alone, asked), number)
        if number == len(self.stages):
            self.stages.append(root)
        return number

    def _is_apart(self, stage: Stage) -> bool:
        rows = stage.root
        while isinstance(rows, Project | Filter):
            rows = rows.child
        is_scan = isinstance(rows, Scan) and isinstance(stage.placement, ByHash)
        return is_scan and RowEstimates().rows(rows) >= self._apart_from


def _stage(number: int, root: Node, placement: Placement | None, why: str, *, alone: bool) -> Stage:
    """A stage; alone if it is small and an operator needs rows of many tasks."""
    small, whole = _is_small(root), _without_marks(root)
    many = needs_rows_of_many_tasks(whole) or len(leaves(whole)) > 1
    return Stage(number, whole, placement, why, alone=small or (alone and many))


def _is_small(node: Node) -> bool:
    return isinstance(node, InOneTask) or any(map(_is_small, node.children))


def _without_marks(node: Node) -> Node:
    if isinstance(node, InOneTask):
        return node.child  # There is none below it.
    return with_new_children(node, [_without_marks(child) for child in node.children])


def _branches(node: Node) -> list[Node]:
    if isinstance(node, Union) and node.output_placement is None:
        return [branch for side in node.branches for branch in _branches(side)]
    below = [_branches(child) for child in node.children]
    return [with_new_children(node, children) for children in product(*below)]
