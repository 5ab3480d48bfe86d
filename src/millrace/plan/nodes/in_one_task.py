"""A part of a plan that is so small that one task makes all its rows."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement, ToOne


@dataclass(frozen=True, slots=True, eq=False)
class InOneTask(UnaryNode):
    """The child's rows, all made by one task, because its inputs are small."""

    child: Node

    @property
    def output_placement(self) -> Placement:
        """In one task."""
        return ToOne(broadcast=False)

    def describe(self) -> str:
        """What it means."""
        return "in one task"


def needs_rows_of_many_tasks(node: Node) -> bool:
    """Whether an operator in a tree needs rows of more than one task."""
    return node.requires_shuffle() or any(map(needs_rows_of_many_tasks, node.children))
