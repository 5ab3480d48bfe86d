"""Rows for which a condition is true."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement
from millrace.sql.expressions import Expression


@dataclass(frozen=True, slots=True, eq=False)
class Filter(UnaryNode):
    """Rows of the child for which the condition is true."""

    child: Node
    condition: Expression

    @property
    def output_placement(self) -> Placement | None:
        """As the child."""
        return self.child.output_placement

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns and those of the condition."""
        return self, (needed | self.condition.columns,)

    def describe(self) -> str:
        """The condition."""
        return f"filter {self.condition.text}"
