"""Parts of a plan that are so small that one task makes all their rows."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, OverOne
from millrace.plan.nodes.placement import Placement, ToOne


@dataclass(frozen=True, slots=True, eq=False)
class InOneTask(OverOne):
    """The child's rows, all of them made by one task: what it reads is small."""

    child: Node

    @property
    def lies(self) -> Placement:
        """In one place."""
        return ToOne(broadcast=False)

    def describe(self) -> str:
        """What it means."""
        return "in one task"


def looks_at_many(node: Node) -> bool:
    """Whether an operator in a tree looks at rows of more than one task."""
    return node.requires_shuffle() or any(map(looks_at_many, node.children))
