"""One row for each value of some columns."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class DropDuplicates(UnaryNode):
    """For each distinct value of the keys its first row. To do it in parts first changes nothing.

    Rows of a task come in the order of the tasks before it, so the first row of all is found also
    among the first rows of each.
    """

    child: Node
    keys: tuple[str, ...]

    @property
    def output_placement(self) -> Placement | None:
        """As the child."""
        return self.child.output_placement

    def requires_shuffle(self) -> bool:
        """Rows with equal keys must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys."""
        return (self.keys,)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on keys: they take out all rows of a key."""
        return ({name: name for name in columns} if columns <= {*self.keys} else None,)

    def prune_columns(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """What is wanted, and the keys."""
        return self, (wanted | {*self.keys},)

    def describe(self) -> str:
        """The keys."""
        return f"first row for each {', '.join(self.keys)}"
