"""Makes inner joins of outer joins whose unmatched rows a filter drops.

Invariant: the rows that the filter keeps are the same.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.plan.nodes.join import Join, JoinKind
from millrace.sql.condition_parts import is_lost_with
from millrace.sql.expressions import Expression


def without_lost_rows(join: Join, condition: Expression) -> Join:
    """The join without the unmatched rows for which a condition above it is not true."""
    how = _stricter(join, condition)
    return join if how == join.how else replace(join, how=how)


def _stricter(join: Join, condition: Expression) -> JoinKind:
    if join.how not in ("left", "right", "full"):
        return join.how
    filled_left = frozenset(c.name for c in join.columns if c.side == "left")
    filled_right = frozenset(c.name for c in join.columns if c.side == "right")
    keeps_left = join.how in ("left", "full") and not is_lost_with(condition, filled_right)
    keeps_right = join.how in ("right", "full") and not is_lost_with(condition, filled_left)
    if keeps_left and keeps_right:
        return "full"
    if keeps_left:
        return "left"
    return "right" if keeps_right else "inner"
