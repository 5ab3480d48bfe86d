"""All rows of several children."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.project import Project, pass_columns


@dataclass(frozen=True, slots=True, eq=False)
class Union(Node):
    """All rows of all children. All have these columns, of equal types."""

    inputs: tuple[Node, ...]
    columns: tuple[str, ...]

    def make_schema(self) -> pa.Schema:
        """The columns, as the first child has them."""
        first = self.inputs[0].schema
        return pa.schema([first.field(name) for name in self.columns])

    @property
    def children(self) -> tuple[Node, ...]:
        """The inputs."""
        return self.inputs

    def with_children(self, *children: Node) -> Node:
        """A union of others."""
        return replace(self, inputs=children)

    @property
    def output_placement(self) -> Placement | None:
        """The placement of the children, if all have the same one."""
        first = self.inputs[0].output_placement
        alike = all(side.output_placement == first for side in self.inputs[1:])
        return renamed(first, {name: name for name in self.columns}) if alike else None

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Any filter, on every side."""
        return tuple({name: name for name in columns} for _ in self.inputs)

    @property
    def branches(self) -> tuple[Node, ...]:
        """Its sides, each with just the columns of the union."""
        return tuple(Project(side, pass_columns(side.schema, self.columns)) for side in self.inputs)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns, of each child."""
        kept = tuple(name for name in self.columns if name in needed) or self.columns[:1]
        return replace(self, columns=kept), tuple(set(kept) for _ in self.inputs)

    def describe(self) -> str:
        """The number of inputs."""
        return f"union of {len(self.inputs)}"
