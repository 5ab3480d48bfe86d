"""Builds calls of users' functions in conditions of joins.

As in Spark, a call over columns of one side is made there, before the join. A condition with a call
over both sides is a filter above an inner join; no other join has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import function_called, has_udf, with_udf_columns
from millrace.plan.builders.operators import all_of
from millrace.plan.nodes.join import JoinKind
from millrace.plan.nodes.node import Node
from millrace.sql.parser import canonical, operands
from millrace.sql.typed_sql import ExpressionRefused


@dataclass(frozen=True, slots=True)
class JoinCalls:
    """Both sides with columns for calls, and the conditions of the join and of the filter above."""

    left: Node
    right: Node
    condition: exp.Expression | None
    above: exp.Expression | None


def with_join_calls(
    context: BuildContext,
    left: Node,
    right: Node,
    condition: exp.Expression,
    how: JoinKind,
) -> JoinCalls:
    """The calls of a condition, made where their columns are; the sides share no names."""
    parts = operands(condition, exp.And, through_brackets=True)
    ours, theirs = set(left.schema.names), set(right.schema.names)
    on: list[exp.Expression] = []
    above: list[exp.Expression] = []
    for part in parts:
        crossing = [call for call in _outermost(context, part) if not _is_of(call, ours, theirs)]
        (above if crossing else on).append(part)
    if above and how not in ("inner", "cross"):
        raise ExpressionRefused(
            f"a {how} join cannot call a function over both of its sides; Spark has none either",
            found=canonical(above[0]),
            fix="join by other conditions, and filter after that",
        )
    calls = [call for part in on for call in _outermost(context, part)]
    of_left = [call for call in calls if _columns(call) <= ours]
    of_right = [call for call in calls if not _columns(call) <= ours]
    left, left_columns = with_udf_columns(context, left, of_left)
    right, right_columns = with_udf_columns(context, right, of_right, taken=left.schema.names)
    columns = {
        id(call): column
        for call, column in zip([*of_left, *of_right], [*left_columns, *right_columns], strict=True)
    }
    made = [_with_columns(part, columns) for part in on]
    return JoinCalls(left, right, all_of(made) if made else None, all_of(above) if above else None)


def _outermost(context: BuildContext, tree: exp.Expression) -> Sequence[exp.Anonymous]:
    """The calls of users' functions that stand in no other one."""
    if isinstance(tree, exp.Anonymous) and function_called(context, tree) is not None:
        return [tree]
    if not has_udf(context, tree):
        return []
    return [call for part in tree.iter_expressions() for call in _outermost(context, part)]


def _is_of(call: exp.Expression, ours: set[str], theirs: set[str]) -> bool:
    return _columns(call) <= ours or _columns(call) <= theirs


def _columns(tree: exp.Expression) -> set[str]:
    return {column.name for column in tree.find_all(exp.Column)}


def _with_columns(tree: exp.Expression, columns: dict[int, exp.Expression]) -> exp.Expression:
    if id(tree) in columns:
        return columns[id(tree)]
    for call in list(tree.find_all(exp.Anonymous)):
        if id(call) in columns:
            call.replace(columns[id(call)].copy())
    return tree
