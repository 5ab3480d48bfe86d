"""Cuts a plan into stages, at its exchanges.

Invariant: every stage comes after those it reads, and the same plan is always cut alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from millrace.plan.nodes.exchange import Exchange
from millrace.plan.nodes.in_one_task import InOneTask, needs_rows_of_many_tasks
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.placement import Placement
from millrace.plan.nodes.read_stage import ReadStage, leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.union import Union
from millrace.plan.planner.column_pruning import prune
from millrace.plan.planner.exchanges import PlanLimits, fits_one_task, insert_exchanges
from millrace.plan.planner.filter_pushdown import push_filters
from millrace.plan.planner.join_order import order_joins
from millrace.plan.planner.partition_pruning import prune_partitions


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
    ordered = push_filters(order_joins(prune(push_filters(plan))))
    pruned = prune(prune_partitions(ordered, sizes.matching_files))
    return cut(insert_exchanges(pruned, sizes), alone=fits_one_task(pruned, sizes))


def cut(plan: Node, *, alone: bool) -> list[Stage]:
    """The stages of a plan, each after those it reads; the last one makes the result."""
    stages: list[Stage] = []
    root = _cut(plan, stages, alone=alone)
    stages.append(_stage(len(stages), root, None, "the result", alone=alone))
    return stages


def _stage(number: int, root: Node, placement: Placement | None, why: str, *, alone: bool) -> Stage:
    """A stage; alone if it is small and an operator needs rows of many tasks."""
    small, whole = _is_small(root), _without_marks(root)
    many = needs_rows_of_many_tasks(whole) or len(leaves(whole)) > 1
    return Stage(number, whole, placement, why, alone=small or (alone and many))


def _is_small(node: Node) -> bool:
    return isinstance(node, InOneTask) or any(map(_is_small, node.children))


def _without_marks(node: Node) -> Node:
    if isinstance(node, InOneTask):
        return _without_marks(node.child)
    return with_new_children(node, [_without_marks(child) for child in node.children])


def _cut(node: Node, stages: list[Stage], *, alone: bool) -> Node:
    children = [_cut(child, stages, alone=alone) for child in node.children]
    if not isinstance(node, Exchange):
        return with_new_children(node, children)
    (root,) = children
    stage = _stage(len(stages), root, node.placement, node.why, alone=alone)
    stages.append(stage)
    return ReadStage(stage.number, node.schema, node.placement)


def _branches(node: Node) -> list[Node]:
    if isinstance(node, Union) and node.output_placement is None:
        return [branch for side in node.branches for branch in _branches(side)]
    below = [_branches(child) for child in node.children]
    return [with_new_children(node, children) for children in product(*below)]
