"""Where rows change tasks: as the user asks, or as the planner finds necessary."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import InPlace, Placement, ToOne


@dataclass(frozen=True, slots=True, eq=False)
class Repartition(UnaryNode):
    """Rows placed as the user asks. The planner makes it an exchange."""

    child: Node
    placement: Placement

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Any filter, unless the rows are to be saved as they are."""
        return (None if isinstance(self.placement, InPlace) else {name: name for name in columns},)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns and the keys; all columns of rows that are to be saved."""
        if isinstance(self.placement, InPlace):
            return self, (set(self.schema.names),)
        return self, (needed | set(getattr(self.placement, "keys", ())),)

    def describe(self) -> str:
        """The placement."""
        if isinstance(self.placement, InPlace):
            return "durable"
        return f"repartition {self.placement}"


@dataclass(frozen=True, slots=True, eq=False)
class Exchange(UnaryNode):
    """Rows move to other tasks, for the reason `why`."""

    child: Node
    placement: Placement
    why: str

    @property
    def output_placement(self) -> Placement | None:
        """The placement that it makes."""
        broadcast = isinstance(self.placement, ToOne) and self.placement.broadcast
        return None if broadcast else self.placement

    def describe(self) -> str:
        """The placement and the reason."""
        return f"exchange {self.placement}: {self.why}"
