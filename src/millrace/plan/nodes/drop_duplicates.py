"""One row for each value of some columns."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class DropDuplicates(UnaryNode):
    """The first row for each distinct value of the keys.

    It can run before the exchange too. Tasks read rows in the order of the tasks before them, so
    the first row of all is among the first rows of each task.
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
        """Filters on keys, which drop all rows of a key."""
        return ({name: name for name in columns} if columns <= {*self.keys} else None,)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns and the keys."""
        return self, (needed | {*self.keys},)

    def describe(self) -> str:
        """The keys."""
        return f"first row for each {', '.join(self.keys)}"
