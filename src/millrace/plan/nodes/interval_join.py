"""Interval joins: rows of the right side that lie in an interval around a left one. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.errors import UserError
from millrace.plan.nodes.line_join import Columns, LineJoin, matched
from millrace.plan.nodes.node import Node
from millrace.sql.line_offsets import Given, Offset, OffsetArgument, is_above, read_offset


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IntervalJoin(LineJoin):
    """Pairs of rows; the right value lies within the left one plus `lower` and plus `upper`."""

    lower: Offset
    upper: Offset
    within: str

    def whole_sides(self) -> tuple[bool, ...]:
        """Either side, unless rows of the left are kept: each pair is looked at by itself."""
        return (self.how == "inner", True)

    def passes(self, columns: frozenset[str]) -> tuple[dict[str, str] | None, ...]:
        """Filters on the left side and, unless its rows are kept, on the right side."""
        theirs = {c.name: c.source for c in self.columns if c.side == "right"}
        if self.how == "inner" and columns and columns <= theirs.keys():
            return (None, {name: theirs[name] for name in columns})
        return LineJoin.passes(self, columns)

    def describe(self) -> str:
        """Kind, values, bounds and keys."""
        return f"{self.how} interval join of {self.right_on} {self.within}{self.by()}"


def plan_interval(
    left: Node,
    right: Node,
    *,
    on: Columns,
    by: Columns,
    lower: Given,
    upper: Given,
    how: str,
) -> IntervalJoin:
    """An interval join, checked. Columns are given for both sides, for the left, for the right."""
    call = f"join_interval(lower={lower!r}, upper={upper!r}, how={how!r})"
    found = matched((left, right), on, by, how, call)
    ends = [
        read_offset(given, OffsetArgument(call, name, found.line, least=name == "lower"))
        for name, given in (("lower", lower), ("upper", upper))
    ]
    if is_above(*ends):
        raise UserError(
            f"{call}: nothing lies between lower and upper\n"
            f"  found: {lower!r} and {upper!r} for a {found.line}\n"
            "  to fix: exchange them, or give bounds that are further apart"
        )
    return IntervalJoin(
        left=left,
        right=right,
        left_keys=found.keys.left,
        right_keys=found.keys.right,
        left_on=found.left_on,
        right_on=found.right_on,
        how=found.how,
        columns=found.columns,
        lower=ends[0],
        upper=ends[1],
        within=f"from {found.left_on} + ({lower}) to + ({upper})",
    )
