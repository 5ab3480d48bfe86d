"""The base of all operators of a plan.

Each operator is a class in a module beside this one; `engine/` writes it as SQL. Invariant: a node
knows its schema without running anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import pyarrow as pa

from millrace.plan.nodes.placement import Placement


class Node(ABC):
    """An operator with its inputs, and the answers that the planner needs of it."""

    __slots__ = ("_schema",)
    _schema: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """Columns of its rows. They are made once: a plan asks for them again and again."""
        try:
            return self._schema
        except AttributeError:
            schema = self.make_schema()
            object.__setattr__(self, "_schema", schema)
            return schema

    @abstractmethod
    def make_schema(self) -> pa.Schema:
        """Columns of its rows, made of those of its children."""

    @property
    @abstractmethod
    def children(self) -> tuple[Node, ...]:
        """The nodes whose rows it works on, left to right."""

    @abstractmethod
    def with_children(self, *children: Node) -> Node:
        """The same operator over other inputs."""

    @abstractmethod
    def describe(self) -> str:
        """The operator in a line."""

    @abstractmethod
    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The operator without unneeded columns, and the columns it then reads of each child."""

    @property
    def output_placement(self) -> Placement | None:
        """How its rows are placed over tasks; None if in no way that can be used."""
        return None

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """For each child, its names of these columns if a filter on them can run below, on it.

        None for a child that must not be filtered. If all are None, the filter stays above.
        """
        del columns
        return tuple(None for _ in self.children)

    def requires_shuffle(self) -> bool:
        """Whether it needs rows of more than one task."""
        return False

    def broadcast_sides(self) -> tuple[bool, ...]:
        """For each child, whether every task may read all of it beside a part of the others."""
        return tuple(False for _ in self.children)

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """For each child the columns whose equal rows must meet in a task; () for all rows."""
        return tuple(() for _ in self.children)


class UnaryNode(Node):
    """An operator over one child."""

    __slots__ = ()
    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """The one child."""
        return (self.child,)

    def with_children(self, *children: Node) -> Self:
        """The same operator over another child."""
        (child,) = children
        return replace(self, child=child)  # type: ignore[type-var]

    def make_schema(self) -> pa.Schema:
        """The child's columns."""
        return self.child.schema

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns."""
        return self, (needed,)


class Leaf(Node):
    """A source of rows."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Node, ...]:
        """None."""
        return ()

    def with_children(self, *children: Node) -> Self:
        """Itself."""
        assert not children
        return self

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Itself, with all columns."""
        del needed
        return self, ()


def with_new_children(node: Node, children: Sequence[Node]) -> Node:
    """The operator over these children; the same object if they are the same ones."""
    same = all(old is new for old, new in zip(node.children, children, strict=True))
    return node if same else node.with_children(*children)
