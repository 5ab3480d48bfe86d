"""Joins along a line of numbers or times: keys are equal, and values lie near. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from millrace.errors import UserError
from millrace.plan.builders.joins import Names, Pairs, check_same_type, pairs_of, right_names
from millrace.plan.nodes.join import JoinColumn, is_broadcast
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.placement import Placement, renamed
from millrace.sql.line_offsets import TIMES
from millrace.sql.name_checks import check_columns, names_of
from millrace.sql.types import SqlType, from_arrow

LineKind = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LineJoin(Node):
    """Rows of both sides with equal keys, if there are keys, whose values lie near on a line.

    Null equals nothing and lies near nothing. How near is for the kinds of it to say.
    """

    left: Node
    right: Node
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    left_on: str
    right_on: str
    how: LineKind
    columns: tuple[JoinColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        left, right = self.left.schema, self.right.schema
        sides = [(c, right if c.side == "right" else left) for c in self.columns]
        return pa.schema([pa.field(c.name, side.field(c.source).type) for c, side in sides])

    @property
    def line(self) -> SqlType:
        """The type of the values."""
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
    def lies(self) -> Placement | None:
        """As the side that is not read whole, or as the left one."""
        side, child = ("right", self.right) if is_broadcast(self.left) else ("left", self.left)
        return renamed(child.lies, {c.source: c.name for c in self.columns[::-1] if c.side == side})

    def requires_shuffle(self) -> bool:
        """Rows with equal keys must meet."""
        return True

    def partition_keys(self) -> tuple[tuple[str, ...], ...]:
        """The keys of each side."""
        return (self.left_keys, self.right_keys)

    def whole_sides(self) -> tuple[bool, ...]:
        """The right side may be: each row of the left is looked at by itself."""
        return (False, True)

    def passes(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on the left side; if on keys, then on both."""
        names = {c.name: c.source for c in self.columns if c.side == "left"}
        if not columns <= names.keys():
            return (None, None)
        pairs = dict(zip(self.left_keys, self.right_keys, strict=True))
        left = {name: names[name] for name in columns}
        keys = {name: pairs[source] for name, source in left.items() if source in pairs}
        return (left, keys if len(keys) == len(left) else None)

    def reads(self, wanted: set[str]) -> tuple[Node, tuple[set[str], ...]]:
        """Keys, values and wanted columns."""
        some = tuple(c for c in self.columns if c.name in wanted) or self.columns[:1]
        left = {c.source for c in some if c.side == "left"} | {*self.left_keys, self.left_on}
        right = {c.source for c in some if c.side == "right"} | {*self.right_keys, self.right_on}
        return replace(self, columns=some), (left, right)

    def by(self) -> str:
        """The keys, for a description."""
        pairs = [f"{one} = {two}" for one, two in zip(self.left_keys, self.right_keys, strict=True)]
        return f" by {', '.join(pairs)}" if pairs else ""


@dataclass(frozen=True, slots=True)
class Matched:
    """What a user gave, checked: keys, values and the columns of the result."""

    keys: Pairs
    left_on: str
    right_on: str
    how: LineKind
    line: SqlType
    columns: tuple[JoinColumn, ...]


Columns = tuple[Names, Names, Names]
"""Columns as a user gives them: for both sides, for the left, for the right."""


def matched(sides: tuple[Node, Node], on: Columns, by: Columns, how: str, call: str) -> Matched:
    """Keys and values of both sides, and the columns of the result."""
    left, right = sides
    if how not in ("inner", "left"):
        raise UserError(
            f"{call}: unknown kind of join\n  found: {how!r}\n  to fix: use inner or left"
        )
    left_on, right_on = _values(left.schema, right.schema, on, call)
    ours, theirs = _both(by, "by", call)
    if len(ours) != len(theirs):
        raise UserError(
            f"{call} has no pairs of keys\n  found: {list(ours)} and {list(theirs)}\n"
            "  to fix: give by=, or left_by= and right_by= of the same length"
        )
    pairs = pairs_of(left, right, None, ours, theirs, call)
    keys = Pairs(pairs.left, pairs.right, merged=by[0] is not None)
    names = right_names(left.schema, right.schema)
    rest = [name for name in names if not (keys.merged and name in keys.right)]
    return Matched(
        keys,
        left_on,
        right_on,
        "inner" if how == "inner" else "left",
        from_arrow(left.schema.field(left_on).type),
        (
            *(JoinColumn(name, "left", name) for name in left.schema.names),
            *(JoinColumn(names[name], "right", name) for name in rest),
        ),
    )


def _both(given: Columns, word: str, call: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    both, ours, theirs = given
    if both is not None and (ours is not None or theirs is not None):
        raise UserError(
            f"{call} has {word}= and left_{word}= or right_{word}=\n  to fix: give one of them"
        )
    return names_of(ours if both is None else both), names_of(theirs if both is None else both)


def _values(left: pa.Schema, right: pa.Schema, on: Columns, call: str) -> tuple[str, str]:
    ours, theirs = _both(on, "on", call)
    if len(ours) != 1 or len(theirs) != 1:
        raise UserError(
            f"{call} needs one column of numbers or times on each side\n"
            f"  found: {list(ours)} and {list(theirs)}\n"
            "  to fix: give on=, or left_on= and right_on=; keys that must be equal go to by="
        )
    check_columns(left, ours, call)
    check_columns(right, theirs, call)
    check_same_type(left, right, ours[0], theirs[0], call)
    kind = from_arrow(left.field(ours[0]).type)
    if not kind.is_numeric and kind not in TIMES:
        raise UserError(
            f"{call}: values that have no distance\n  found: {ours[0]!r} is {kind.arrow or kind}\n"
            "  to fix: use a number, date or timestamp; keys that must be equal go to by="
        )
    return ours[0], theirs[0]
