"""Columns that are calculated from those of the child."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement, renamed
from millrace.sql.expressions import Expression
from millrace.sql.typed_sql import quoted
from millrace.sql.types import from_arrow, to_arrow


@dataclass(frozen=True, slots=True, eq=False)
class Project(UnaryNode):
    """New columns, each calculated from those of the child."""

    child: Node
    columns: tuple[tuple[str, Expression], ...]

    def make_schema(self) -> pa.Schema:
        """The new columns."""
        return pa.schema([(name, to_arrow(e.type)) for name, e in self.columns])

    @property
    def new_names(self) -> dict[str, str]:
        """Columns of the child that stay as they are, with their new names."""
        bare = [(e.columns, name) for name, e in reversed(self.columns) if e.is_column]
        return {source: name for (source,), name in bare}

    @property
    def output_placement(self) -> Placement | None:
        """As the child, under the new names."""
        return renamed(self.child.output_placement, self.new_names)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on columns that stay as they are."""
        bare = {name: e.columns for name, e in self.columns if e.is_column}
        if not columns <= bare.keys():
            return (None,)
        return ({name: next(iter(bare[name])) for name in columns},)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """What the needed columns are calculated from."""
        some = tuple((name, e) for name, e in self.columns if name in needed) or self.columns[:1]
        return Project(self.child, some), ({name for _, e in some for name in e.columns},)

    def describe(self) -> str:
        """The columns and how they are calculated."""
        return "project " + ", ".join(
            name if e.text == name else f"{e.text} as {name}" for name, e in self.columns
        )


def pass_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[tuple[str, Expression], ...]:
    """Columns of a schema as they are, for a `Project`."""
    return tuple(
        (
            name,
            Expression(quoted(name), from_arrow(schema.field(name).type), frozenset([name]), name),
        )
        for name in names
    )


def select_only(node: Node, names: Sequence[str]) -> Node:
    """These columns of a node alone."""
    if node.schema.names == list(names):
        return node
    return Project(node, pass_columns(node.schema, names))
