"""Builds joins from the arguments of a user's call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

import pyarrow as pa

from millrace.errors import UserError
from millrace.plan.nodes.join import KEEPS_LEFT, Join, JoinColumn, JoinKind
from millrace.plan.nodes.node import Node
from millrace.sql.expressions import Expression, parse
from millrace.sql.name_checks import check_keys, distinct_names, name_list
from millrace.sql.types import BOOLEAN, from_arrow

Names = str | Sequence[str] | None

_HOW: Final[dict[str, JoinKind]] = {
    "inner": "inner",
    "cross": "cross",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}


@dataclass(frozen=True, slots=True)
class Pairs:
    """The keys of both sides; `merged` if they have the same names and come once."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    merged: bool


def plan_join(
    left: Node,
    right: Node,
    *,
    on: Names,
    left_on: Names,
    right_on: Names,
    how: str,
    condition: str | None,
) -> Join:
    """A join, checked."""
    call = f"join(on={on!r}, how={how!r})"
    kind = join_kind(how, call)
    pairs = pairs_of(left, right, on, left_on, right_on, call)
    if not pairs.left and kind != "cross" and (condition is None or kind not in KEEPS_LEFT):
        raise UserError(
            f"{call} has no keys\n  to fix: give on=, or left_on= and right_on=; without keys "
            'there are how="cross" and, with condition=, inner, left, semi and anti joins'
        )
    if pairs.left and kind == "cross":
        raise UserError(f'{call}: a cross join has no keys\n  to fix: use how="inner"')
    names = right_names(left.schema, right.schema)
    return Join(
        left=left,
        right=right,
        left_keys=pairs.left,
        right_keys=pairs.right,
        how=kind,
        columns=_columns(left.schema, pairs, names, kind),
        condition=None if condition is None else _condition(condition, left, right, names),
        right_names=tuple(names.items()) if condition is not None else (),
    )


def pairs_of(
    left: Node, right: Node, on: Names, left_on: Names, right_on: Names, call: str
) -> Pairs:
    """The keys of both sides, checked."""
    if on is not None and (left_on is not None or right_on is not None):
        raise UserError(f"{call} has on= and left_on= or right_on=\n  to fix: give one of them")
    ours = name_list(on if on is not None else left_on)
    theirs = name_list(on if on is not None else right_on)
    if len(ours) != len(theirs):
        raise UserError(
            f"{call} has no pairs of keys\n  found: {list(ours)} and {list(theirs)}\n"
            "  to fix: give on=, or left_on= and right_on= of the same length"
        )
    check_keys(left.schema, ours, call)
    check_keys(right.schema, theirs, call)
    for left_key, right_key in zip(ours, theirs, strict=True):
        check_same_type(left.schema, right.schema, left_key, right_key, call)
    return Pairs(ours, theirs, merged=on is not None)


def check_same_type(
    left: pa.Schema, right: pa.Schema, left_name: str, right_name: str, call: str
) -> None:
    """Columns that are compared must have the same type."""
    left_type = from_arrow(left.field(left_name).type)
    right_type = from_arrow(right.field(right_name).type)
    if left_type != right_type:
        raise UserError(
            f"{call}: keys of different types\n"
            f"  found: {left_name!r} is {left_type}, {right_name!r} is {right_type}\n"
            "  to fix: cast one of them with with_columns"
        )


def right_names(left: pa.Schema, right: pa.Schema) -> dict[str, str]:
    """New names of the right side's columns, different from those of the left."""
    return dict(zip(right.names, distinct_names(right.names, left.names), strict=True))


def join_kind(how: str, call: str) -> JoinKind:
    """The kind of a join, under any of Spark's words for it."""
    kind = _HOW.get(str(how).lower().replace("_", ""))
    if kind is None:
        raise UserError(
            f"{call}: unknown kind of join\n  found: how={how!r}\n"
            f"  to fix: use one of {', '.join(get_args(JoinKind))}"
        )
    return kind


def _columns(
    left: pa.Schema, pairs: Pairs, names: dict[str, str], how: JoinKind
) -> tuple[JoinColumn, ...]:
    first = [JoinColumn(name, "key", name) for name in pairs.left] if pairs.merged else []
    rest = [name for name in left.names if not (pairs.merged and name in pairs.left)]
    if how in ("semi", "anti"):
        ours = [*(column.name for column in first), *rest]
        return tuple(JoinColumn(name, "left", name) for name in ours)
    theirs = [name for name in names if not (pairs.merged and name in pairs.right)]
    return (
        *first,
        *(JoinColumn(name, "left", name) for name in rest),
        *(JoinColumn(names[name], "right", name) for name in theirs),
    )


def _condition(text: str, left: Node, right: Node, names: dict[str, str]) -> Expression:
    call = f"join(condition={text!r})"
    theirs = [pa.field(names[field.name], field.type) for field in right.schema]
    parsed = parse(text, pa.schema([*left.schema, *theirs]), call=call)
    if parsed.type != BOOLEAN:
        raise UserError(
            f"{call} is not a condition\n  found: a value of type {parsed.type}\n"
            "  to fix: compare it with something, as in a > 0"
        )
    return parsed
