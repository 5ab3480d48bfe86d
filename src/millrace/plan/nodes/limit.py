"""The first rows, or all but some of them."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class Limit(UnaryNode):
    """The first rows of the child, without those that are skipped; None for all others."""

    child: Node
    rows: int | None
    skipped: int = 0

    @property
    def output_placement(self) -> Placement | None:
        """As the child."""
        return self.child.output_placement

    def requires_shuffle(self) -> bool:
        """The first rows of all tasks are needed."""
        return True

    def describe(self) -> str:
        """The number of rows."""
        if self.rows is None:
            return f"offset {self.skipped}"
        return f"limit {self.rows}" + (f" offset {self.skipped}" if self.skipped else "")
