"""Rows that several parts of a plan read, and that are made once.

`SharedRows` stands for such rows while the plan around them is optimised. Then `MadeOnce` is put in
its place: the same object wherever the rows are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from millrace.plan.nodes.node import Leaf, Node, UnaryNode, with_new_children


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows(Leaf):
    """Some columns of the rows of a plan that is read elsewhere too."""

    number: int
    rows: Node
    columns: tuple[str, ...]

    def make_schema(self) -> pa.Schema:
        """Columns that are read."""
        whole = self.rows.schema
        return pa.schema([whole.field(name) for name in self.columns])

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Only the columns that are needed; at least one, so that rows can be counted."""
        kept = tuple(name for name in self.columns if name in needed)
        return replace(self, columns=kept or self.columns[:1]), ()

    def describe(self) -> str:
        """The rows by their number."""
        return f"read shared rows {self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class MadeOnce(UnaryNode):
    """The child's rows, made once for all parts that read this object."""

    child: Node
    number: int

    def requires_shuffle(self) -> bool:
        """The parts that read it run in one task, or the rows are saved."""
        return True

    def describe(self) -> str:
        """The rows by their number."""
        return f"shared rows {self.number}, made once"


def with_replaced(node: Node, new: Mapping[int, Node]) -> Node:
    """The tree with some nodes replaced, by identity. Shared rows stay one object."""
    made = dict(new)

    def replaced(part: Node) -> Node:
        if id(part) in made:
            return made[id(part)]
        rows = with_new_children(part, [replaced(child) for child in part.children])
        if isinstance(part, MadeOnce):
            made[id(part)] = rows
        return rows

    return replaced(node)
