"""Joins by an ordered column: as-of joins and interval joins.

Keys are equal, and the values of a number, date or timestamp column are near each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from millrace.plan.nodes.join import JoinColumn
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import Placement, renamed
from millrace.plan.nodes.read_stage import is_broadcast
from millrace.sql.ordered_offsets import Offset
from millrace.sql.types import SqlType, from_arrow

OrderedJoinKind = Literal["inner", "left"]
Direction = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OrderedJoin(Node):
    """Rows of both sides with equal keys, if there are keys, whose values are near each other.

    Null equals nothing and is near nothing. The subclasses say how near.
    """

    left: Node
    right: Node
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    left_on: str
    right_on: str
    how: OrderedJoinKind
    columns: tuple[JoinColumn, ...]

    def make_schema(self) -> pa.Schema:
        """The columns of the result."""
        left, right = self.left.schema, self.right.schema
        sides = [(c, right if c.side == "right" else left) for c in self.columns]
        return pa.schema([pa.field(c.name, side.field(c.source).type) for c, side in sides])

    @property
    def on_type(self) -> SqlType:
        """The type of the ordered columns."""
        return from_arrow(self.left.schema.field(self.left_on).type)

    @property
    def children(self) -> tuple[Node, ...]:
        """Both sides."""
        return (self.left, self.right)

    def with_children(self, *children: Node) -> Node:
        """The same join of other sides."""
        left, right = children
        return replace(self, left=left, right=right)

    @property
    def output_placement(self) -> Placement | None:
        """As the side that is not broadcast, or as the left one."""
        side, child = ("right", self.right) if is_broadcast(self.left) else ("left", self.left)
        names = {c.source: c.name for c in self.columns[::-1] if c.side == side}
        return renamed(child.output_placement, names)

    def requires_shuffle(self) -> bool:
        """Rows with equal keys must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys of each side."""
        return (self.left_keys, self.right_keys)

    def broadcast_sides(self) -> tuple[bool, ...]:
        """The right side: each row of the left is joined by itself."""
        return (False, True)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on the left side; if on keys, then on both."""
        names = {c.name: c.source for c in self.columns if c.side == "left"}
        if not columns <= names.keys():
            return (None, None)
        pairs = dict(zip(self.left_keys, self.right_keys, strict=True))
        left = {name: names[name] for name in columns}
        keys = {name: pairs[source] for name, source in left.items() if source in pairs}
        return (left, keys if len(keys) == len(left) else None)

    def prune_columns(self, needed: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Keys, values and needed columns."""
        some = tuple(c for c in self.columns if c.name in needed) or self.columns[:1]
        left = {c.source for c in some if c.side == "left"} | {*self.left_keys, self.left_on}
        right = {c.source for c in some if c.side == "right"} | {*self.right_keys, self.right_on}
        return replace(self, columns=some), (left, right)

    def by(self) -> str:
        """The keys, for a description."""
        pairs = [
            f"{left} = {right}" for left, right in zip(self.left_keys, self.right_keys, strict=True)
        ]
        return f" by {', '.join(pairs)}" if pairs else ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AsOfJoin(OrderedJoin):
    """Rows of the left side, each with the nearest row of the right side.

    The last one of right rows with equal keys and values counts, in the order of the input. With
    "nearest", the earlier one of two rows that are equally near counts.
    """

    direction: Direction
    tolerance: Offset | None
    within: str

    def describe(self) -> str:
        """Kind, direction, values, keys and tolerance."""
        on = self.left_on if self.left_on == self.right_on else f"{self.left_on}, {self.right_on}"
        return f"{self.how} as-of join {self.direction} on {on}{self.by()}{self.within}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IntervalJoin(OrderedJoin):
    """Pairs of rows; the right value is between the left one plus `lower` and plus `upper`."""

    lower: Offset
    upper: Offset
    within: str

    def broadcast_sides(self) -> tuple[bool, ...]:
        """Either side of an inner join, as each pair is tested by itself; else the right one."""
        return (self.how == "inner", True)

    def pushdown_columns(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on the left side and, of an inner join, on the right side."""
        theirs = {c.name: c.source for c in self.columns if c.side == "right"}
        if self.how == "inner" and columns and columns <= theirs.keys():
            return (None, {name: theirs[name] for name in columns})
        return OrderedJoin.pushdown_columns(self, columns)

    def describe(self) -> str:
        """Kind, values, bounds and keys."""
        return f"{self.how} interval join of {self.right_on} {self.within}{self.by()}"
