"""Builds as-of joins and interval joins from the arguments of a user's call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import pyarrow as pa

from millrace.errors import UserError
from millrace.plan.builders.build_join import Names, Pairs, check_same_type, pairs_of, right_names
from millrace.plan.nodes.join import JoinColumn
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.ordered_joins import AsOfJoin, Direction, IntervalJoin, OrderedJoinKind
from millrace.sql.name_checks import check_columns, name_list
from millrace.sql.ordered_offsets import (
    TIMES,
    OffsetArgument,
    OffsetValue,
    is_above,
    is_negative,
    read_offset,
)
from millrace.sql.types import SqlType, from_arrow

Columns = tuple[Names, Names, Names]
"""Columns as a user gives them: for both sides, for the left, for the right."""


def plan_asof(
    left: Node,
    right: Node,
    *,
    on: Columns,
    by: Columns,
    direction: str,
    tolerance: OffsetValue | None,
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
    sides = _matched(left, right, on, by, how, call)
    argument = OffsetArgument(call, "tolerance", sides.on_type)
    offset = None if tolerance is None else read_offset(tolerance, argument)
    if offset is not None and is_negative(offset):
        raise argument.refused(
            tolerance, "is negative", 'give 0 or more; direction="forward" turns'
        )
    return AsOfJoin(
        left=left,
        right=right,
        left_keys=sides.keys.left,
        right_keys=sides.keys.right,
        left_on=sides.left_on,
        right_on=sides.right_on,
        how=sides.how,
        columns=sides.columns,
        direction=known[direction],
        tolerance=offset,
        within="" if tolerance is None else f" within {tolerance}",
    )


def plan_interval(
    left: Node,
    right: Node,
    *,
    on: Columns,
    by: Columns,
    lower: OffsetValue,
    upper: OffsetValue,
    how: str,
) -> IntervalJoin:
    """An interval join, checked. Columns are given for both sides, for the left, for the right."""
    call = f"join_interval(lower={lower!r}, upper={upper!r}, how={how!r})"
    sides = _matched(left, right, on, by, how, call)
    ends = [
        read_offset(given, OffsetArgument(call, name, sides.on_type, least=name == "lower"))
        for name, given in (("lower", lower), ("upper", upper))
    ]
    if is_above(*ends):
        raise UserError(
            f"{call}: nothing lies between lower and upper\n"
            f"  found: {lower!r} and {upper!r} for a {sides.on_type}\n"
            "  to fix: exchange them, or give bounds that are further apart"
        )
    return IntervalJoin(
        left=left,
        right=right,
        left_keys=sides.keys.left,
        right_keys=sides.keys.right,
        left_on=sides.left_on,
        right_on=sides.right_on,
        how=sides.how,
        columns=sides.columns,
        lower=ends[0],
        upper=ends[1],
        within=f"from {sides.left_on} + ({lower}) to + ({upper})",
    )


@dataclass(frozen=True, slots=True)
class _Matched:
    """The checked arguments: keys, ordered columns and the columns of the result."""

    keys: Pairs
    left_on: str
    right_on: str
    how: OrderedJoinKind
    on_type: SqlType
    columns: tuple[JoinColumn, ...]


def _matched(left: Node, right: Node, on: Columns, by: Columns, how: str, call: str) -> _Matched:
    """The arguments that both joins share, checked."""
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
    return _Matched(
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
    return name_list(ours if both is None else both), name_list(theirs if both is None else both)


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
