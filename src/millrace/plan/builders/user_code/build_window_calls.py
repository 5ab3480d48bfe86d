"""Builds calls of users' functions over windows.

The engine's own windows find each row's place in its partition and the bounds of its frame, with
every kind of order and frame. The function gets the rows between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_rows import check_hashable
from millrace.plan.builders.build_udf_calls import (
    argument_columns,
    call_of,
    function_called,
    why_on_spark,
)
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import project
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import select_only
from millrace.plan.nodes.sort import SortKey
from millrace.plan.nodes.user_code.grouped_map import RowsByKey
from millrace.plan.nodes.user_code.user_function import FrameBounds
from millrace.plan.nodes.user_code.window_calls import WindowCalls
from millrace.plan.relation import free_columns
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_EVAL_TYPES: Final = frozenset({202, 252})
"""Spark's numbers of functions that windows call: pandas and Arrow."""
_UNBOUNDED: Final = ("UNBOUNDED", "UNBOUNDED")
WithWindows = Callable[
    [BuildContext, Node, Sequence[exp.Expression]], tuple[Node, list[exp.Expression]]
]
"""Adds a column for each window call of trees, as the builder of windows does."""


def with_window_call(
    context: BuildContext, node: Node, name: str, tree: exp.Window, native: WithWindows
) -> Node:
    """The plan with a column of this name: a user's function over the window of each row."""
    function = function_called(context, tree.this)
    assert function is not None, "the builder of windows saw it"
    if function.eval_type not in _EVAL_TYPES:
        raise ExpressionRefused(
            f"{function.name} gets iterators, and is for groups alone, as in Spark",
            found=canonical(tree),
            fix="write it as a function of Series or arrays",
        )
    if (why := why_on_spark(context)) is not None:
        raise NotNative(
            f"{function.name} is called over a window",
            found=why,
            fix="register it and write the query as SQL, or use a later version of Spark",
        )
    before = list(node.schema.names)
    given = tree.args.get("partition_by") or []
    node, (arguments, keys) = argument_columns(context, node, [tree.this.expressions, given])
    key_names = tuple(column for _, column in keys)
    check_hashable(node, key_names)
    partition = [plan_column(key) for key in key_names]
    bounds = FrameBounds()
    then: tuple[SortKey, ...] = ()
    if not _is_whole(tree):
        node, bounds, then = _framed(context, node, tree, partition, native)
    passed = tuple(node.schema.names)
    call = call_of(name, function, arguments)
    plan = WindowCalls(RowsByKey(node, key_names, then), passed, key_names, call, bounds)
    return select_only(plan, [*before, name])


def _framed(
    context: BuildContext,
    node: Node,
    tree: exp.Window,
    partition: Sequence[exp.Expression],
    native: WithWindows,
) -> tuple[Node, FrameBounds, tuple[SortKey, ...]]:
    """The rows with their places and the bounds of their frames, counted from 0."""
    frame = tree.args.get("spec")
    order = tree.args.get("order") or exp.Order(
        expressions=[exp.Ordered(this=exp.Literal.number(1), nulls_first=True)]
    )
    place, begin, end = free_columns(["__place", "__begin", "__end"], node.schema.names)
    numbered = _window("row_number", [], partition, order, None)
    node, (number,) = native(context, node, [numbered])
    columns = [(name, plan_column(name)) for name in node.schema.names]
    node = project(context, node, [*columns, (place, number)])
    by_rows = frame is not None and str(frame.args.get("kind")).upper() == "ROWS"
    if by_rows:  # Rows that are equal in the order have places of their own.
        order = exp.Order(expressions=[exp.Ordered(this=plan_column(place), nulls_first=True)])
    ends = [_window(f, [plan_column(place)], partition, order, frame) for f in ("min", "max")]
    node, (least, most) = native(context, node, ends)
    one, zero = exp.Literal.number(1), exp.Literal.number(0)
    columns = [(name, plan_column(name)) for name in node.schema.names]
    node = project(
        context,
        node,
        [
            *columns,
            (begin, _coalesced(exp.Sub(this=least, expression=one), zero)),
            (end, _coalesced(most, zero)),
        ],
    )
    then = (SortKey(place, descending=False, nulls_first=True),)
    return node, FrameBounds((begin, end)), then


def _is_whole(tree: exp.Window) -> bool:
    """Whether the frame of every row is its whole partition."""
    frame = tree.args.get("spec")
    if frame is None:
        return tree.args.get("order") is None
    ends = tuple(str(frame.args.get(key)).upper() for key in ("start", "end"))
    sides = tuple(str(frame.args.get(key)).upper() for key in ("start_side", "end_side"))
    return ends == _UNBOUNDED and sides == ("PRECEDING", "FOLLOWING")


def _window(
    function: str,
    arguments: Sequence[exp.Expression],
    partition: Sequence[exp.Expression],
    order: exp.Expression,
    frame: exp.Expression | None,
) -> exp.Window:
    call = exp.Anonymous(this=function, expressions=[part.copy() for part in arguments])
    spec = {} if frame is None else {"spec": frame.copy()}
    keys = [key.copy() for key in partition]
    return exp.Window(this=call, partition_by=keys, order=order.copy(), over="OVER", **spec)


def _coalesced(value: exp.Expression, other: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this="coalesce", expressions=[value, other.copy()])
