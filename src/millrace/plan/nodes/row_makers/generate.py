"""A row for each element of an array or entry of a map."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millrace.plan.nodes.node import Node, UnaryNode
from millrace.plan.nodes.placement import Placement, renamed
from millrace.sql.expressions import Expression
from millrace.sql.types import INT, SqlType, to_arrow


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Generate(UnaryNode):
    """Each row of the child once for each element of `source`, which is an array or a map.

    `columns` are new: the elements, or a map's keys and values, or with `fields` the fields of
    elements that are structs. `position` is the name of a column with their numbers from 0 on. A
    row without elements is dropped, unless the generator is `outer`: then new columns are null.
    """

    child: Node
    source: Expression
    columns: tuple[str, ...]
    position: str | None
    fields: bool
    outer: bool

    @property
    def kinds(self) -> tuple[SqlType, ...]:
        """The types of the new columns."""
        kind = self.source.type
        if kind.is_map:
            return (kind.key, kind.value)
        if self.fields:
            return tuple(part.type for part in kind.element.parts)
        return (kind.element,)

    def make_schema(self) -> pa.Schema:
        """The child's columns, the position, then the new columns."""
        position = [] if self.position is None else [pa.field(self.position, to_arrow(INT))]
        new = [
            pa.field(name, to_arrow(kind))
            for name, kind in zip(self.columns, self.kinds, strict=True)
        ]
        return pa.schema([*self.child.schema, *position, *new])

    @property
    def new_names(self) -> tuple[str, ...]:
        """The names of all new columns."""
        return (*(() if self.position is None else (self.position,)), *self.columns)

    @property
    def output_placement(self) -> Placement | None:
        """As the child."""
        names = self.child.schema.names
        return renamed(self.child.output_placement, {name: name for name in names})

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on columns of the child."""
        return (None if columns & {*self.new_names} else {name: name for name in columns},)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The needed columns of the child, and those of the array."""
        return self, ((needed - {*self.new_names}) | self.source.columns,)

    def describe(self) -> str:
        """The function and its new columns."""
        kind = "outer rows" if self.outer else "rows"
        return f"{kind} of {self.source.text} as {', '.join(self.new_names)}"
