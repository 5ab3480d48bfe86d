"""As-of joins: for each row of the left side the nearest row of the right side. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from millrace.errors import UserError
from millrace.plan.nodes.line_join import Columns, LineJoin, matched
from millrace.plan.nodes.node import Node
from millrace.sql.line_offsets import Given, Offset, OffsetArgument, is_negative, read_offset

Direction = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AsOfJoin(LineJoin):
    """Rows of the left side, each with the row of the right side that is nearest on the line.

    Of right rows with equal keys and values the last one counts, in the order they come in. With
    "nearest", of two rows that are equally near the one before counts.
    """

    direction: Direction
    tolerance: Offset | None
    within: str

    def describe(self) -> str:
        """Kind, direction, values, keys and tolerance."""
        on = self.left_on if self.left_on == self.right_on else f"{self.left_on}, {self.right_on}"
        return f"{self.how} as-of join {self.direction} on {on}{self.by()}{self.within}"


def plan_asof(
    left: Node,
    right: Node,
    *,
    on: Columns,
    by: Columns,
    direction: str,
    tolerance: Given | None,
    how: str,
) -> AsOfJoin:
    """An as-of join, checked. Columns are given for both sides, for the left, for the right."""
    call = f"join_asof(direction={direction!r}, tolerance={tolerance!r}, how={how!r})"
    known = {name: name for name in get_args(Direction)}
    if direction not in known:
        raise UserError(
            f"{call}: unknown direction\n  found: {direction!r}\n"
            f"  to fix: use one of {', '.join(known)}"
        )
    found = matched((left, right), on, by, how, call)
    asked = OffsetArgument(call, "tolerance", found.line)
    offset = None if tolerance is None else read_offset(tolerance, asked)
    if offset is not None and is_negative(offset):
        raise asked.refused(tolerance, "is negative", 'give 0 or more; direction="forward" turns')
    return AsOfJoin(
        left=left,
        right=right,
        left_keys=found.keys.left,
        right_keys=found.keys.right,
        left_on=found.left_on,
        right_on=found.right_on,
        how=found.how,
        columns=found.columns,
        direction=known[direction],
        tolerance=offset,
        within="" if tolerance is None else f" within {tolerance}",
    )
