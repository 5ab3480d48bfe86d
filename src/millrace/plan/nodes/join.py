"""Joins on equal keys, with or without a further condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.read_stage import is_broadcast
from millrace.sql.expressions import Expression

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "cross"]
KEEPS_LEFT: Final = frozenset({"inner", "left", "semi", "anti", "cross"})
"""Joins that can be done with a part of the left side and the whole right side."""
KEEPS_RIGHT: Final = frozenset({"inner", "right", "cross"})
"""Joins that can be done with a part of the right side and the whole left side."""


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of a join's result. Side "key": the left key, or else the right one."""

    name: str
    side: Literal["left", "right", "key"]
    source: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Node):
    """Rows of both sides whose keys are equal and that meet the condition. Null equals nothing.

    `columns` has the source of each column of the result. The condition names columns of the right
    side as `right_names` does, because both sides may have columns of one name.
    """

    left: Node
    right: Node
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    how: JoinKind
    columns: tuple[JoinColumn, ...]
    condition: Expression | None = None
    right_names: tuple[tuple[str, str], ...] = ()

    def make_schema(self) -> pa.Schema:
        """The columns of the result."""
        # Once for each side: asked for by column, joins of joins of joins would never end.
        left, right = self.left.schema, self.right.schema
        sides = [(c, right if c.side == "right" else left) for c in self.columns]
        return pa.schema([pa.field(c.name, side.field(c.source).type) for c, side in sides])

    @property
    def children(self) -> tuple[Node, ...]:
        """Both sides."""
        return (self.left, self.right)

    def condition_schema(self) -> pa.Schema:
        """The columns that the condition can name."""
        theirs = self.right.schema
        known = [(source, name) for source, name in self.right_names if source in theirs.names]
        renamed = [pa.field(name, theirs.field(source).type) for source, name in known]
        return pa.schema([*self.left.schema, *renamed])

    def with_children(self, *children: Node) -> Join:
        """The same join of other sides."""
        left, right = children
        return replace(self, left=left, right=right)

    @property
    def output_placement(self) -> Placement | None:
        """As the side that is not broadcast; of outer joins the side that is kept."""
        if is_broadcast(self.left):
            names = {c.source: c.name for c in reversed(self.columns) if c.side == "right"}
            names |= {
                right: column.name
                for left, right in zip(self.left_keys, self.right_keys, strict=True)
                for column in self.columns
                if column.side == "key" and column.source == left
            }
            return renamed(self.right.output_placement, names)
        if self.how not in KEEPS_LEFT:
            return None
        names = {c.source: c.name for c in reversed(self.columns) if c.side != "right"}
        return renamed(self.left.output_placement, names)

    def requires_shuffle(self) -> bool:
        """Rows with equal keys must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys of each side."""
        return (self.left_keys, self.right_keys)

    def broadcast_sides(self) -> tuple[bool, ...]:
        """Sides whose rows without a partner are dropped."""
        return (self.how in KEEPS_RIGHT, self.how in KEEPS_LEFT)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on one side that the join keeps, and on keys, of which the other side has equals.

        A filter on a key goes to both sides where rows without a partner are dropped.
        """
        chosen = [column for column in self.columns if column.name in columns]
        left, right = self._sources(chosen, "left"), self._sources(chosen, "right")
        match self.how:
            case "inner" | "cross":
                return left, right
            case "left" | "semi" | "anti" if all(column.side != "right" for column in chosen):
                return left, right
            case "right" if all(column.side != "left" for column in chosen):
                return left, right
            case _:
                return None, None

    def _sources(
        self, columns: Sequence[JoinColumn], side: Literal["left", "right"]
    ) -> dict[str, str] | None:
        """The columns of one side that have the values of these columns; None if one has none."""
        pairs = list(zip(self.left_keys, self.right_keys, strict=True))
        equal = dict(pairs) if side == "right" else {right: left for left, right in pairs}
        sources = {}
        for column in columns:
            own = column.side == side or (column.side == "key" and side == "left")
            source = column.source if own else equal.get(column.source)
            if source is None or (not own and column.side != "key" and self._is_float(column)):
                return None
            sources[column.name] = source
        return sources

    def _is_float(self, column: JoinColumn) -> bool:
        """Whether keys can be equal and not the same: 0.0 and -0.0."""
        side = self.right if column.side == "right" else self.left
        return bool(pa.types.is_floating(side.schema.field(column.source).type))

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """The keys, the needed columns, and those of the condition."""
        some = tuple(c for c in self.columns if c.name in needed) or self.columns[:1]
        about = self.condition.columns if self.condition is not None else frozenset()
        named = {name for _, name in self.right_names}
        left = {c.source for c in some if c.side != "right"} | {*self.left_keys} | (about - named)
        right = {c.source for c in some if c.side == "right"} | {*self.right_keys}
        right |= {source for source, name in self.right_names if name in about}
        return replace(self, columns=some), (left, right)

    def describe(self) -> str:
        """Kind, keys and condition."""
        pairs = [
            f"{left} = {right}" for left, right in zip(self.left_keys, self.right_keys, strict=True)
        ]
        pairs += [self.condition.text] if self.condition is not None else []
        return f"{self.how} join on {', '.join(pairs)}" if pairs else f"{self.how} join"
