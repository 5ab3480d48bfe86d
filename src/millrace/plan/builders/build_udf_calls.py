"""Builds calls of users' functions inside expressions: each becomes a column of a node below.

As in Spark, a call is made for every row, whatever CASE or AND stands around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_rows import check_hashable
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import all_of, keep, project
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import select_only
from millrace.plan.nodes.user_code.grouped_map import GroupedCalls, RowsByKey
from millrace.plan.nodes.user_code.udf_calls import UdfCalls
from millrace.plan.nodes.user_code.user_function import FunctionCall, UserFunction
from millrace.plan.relation import free_columns
from millrace.sql.labels.call_labels import UDF
from millrace.sql.parser import operands
from millrace.sql.typed_sql import ExpressionRefused

_FUNCTION: Final = "user function"
"""The key in `meta` of a call that holds its function. Others have a message, or only a name."""

_GROUP_EVAL_TYPES: Final = frozenset({202, 217, 252, 254})
"""Spark's numbers of functions that make a value of a group: pandas and Arrow, of iterators too."""

NamedCall = tuple[str, UserFunction, Sequence[exp.Expression]]
"""The column of a call's results, the function, and its arguments over columns of the plan."""


def udf_tree(function: UserFunction, arguments: Sequence[exp.Expression]) -> exp.Anonymous:
    """A call of a function as a tree, for trees that are not written as text."""
    call = exp.Anonymous(this=function.name, expressions=list(arguments))
    call.meta[_FUNCTION] = function
    return call


def function_called(context: BuildContext, tree: exp.Expression) -> UserFunction | None:
    """The user's function that a tree calls; None if it calls none."""
    if not isinstance(tree, exp.Anonymous):
        return None
    given: UserFunction | None = tree.meta.get(_FUNCTION)
    if given is not None or context.udfs is None:
        return given
    message = tree.meta.get(UDF)
    if message is not None:
        return context.udfs.of_message(message)
    return context.udfs.registered(str(tree.this))


def is_user_call(tree: exp.Expr) -> bool:
    """Whether a tree is a call of a user's function, as it is noted in it."""
    return UDF in tree.meta or _FUNCTION in tree.meta


def is_group_call(tree: exp.Expression) -> bool:
    """Whether a tree calls a function that makes a value of a group of rows."""
    if not isinstance(tree, exp.Anonymous):
        return False
    given: UserFunction | None = tree.meta.get(_FUNCTION)
    if given is not None:
        return given.shape == "group"
    message = tree.meta.get(UDF)
    return message is not None and message.python_udf.eval_type in _GROUP_EVAL_TYPES


def has_udf(context: BuildContext, tree: exp.Expression) -> bool:
    """Whether a tree calls a user's function."""
    return any(function_called(context, node) is not None for node in tree.find_all(exp.Anonymous))


def with_udf_columns(
    context: BuildContext,
    node: Node,
    trees: Sequence[exp.Expression],
    *,
    taken: Sequence[str] = (),
) -> tuple[Node, list[exp.Expression]]:
    """A plan with a column for each call of resolved trees, and the trees over these columns.

    New columns have none of the names that are `taken`.

    Calls inside arguments of calls come first, in nodes of their own below. A call over windows
    stays: their columns come first, and then it is called here a second time. A call that is a
    window's own function is the window's.
    """
    trees = [tree.copy() for tree in trees]
    while True:
        innermost = [
            call
            for tree in trees
            for call in tree.find_all(exp.Anonymous)
            if function_called(context, call) is not None
            and not call.find(exp.Window)
            and not _is_over_window(call)
            and not any(has_udf(context, argument) for argument in call.expressions)
        ]
        if not innermost:
            return node, trees
        columns = free_columns(["udf"] * len(innermost), [*node.schema.names, *taken])
        calls: list[NamedCall] = []
        for column, call in zip(columns, innermost, strict=True):
            function = function_called(context, call)
            assert function is not None, "only calls were gathered"
            calls.append((column, function, call.expressions))
        node = append_calls(context, node, calls)
        by_call = {id(call): column for column, call in zip(columns, innermost, strict=True)}
        trees = [_replaced(tree, by_call) for tree in trees]


def project_calls(
    context: BuildContext, node: Node, columns: Sequence[tuple[str, exp.Expression]]
) -> Node:
    """Columns calculated from those of a plan, with calls of users' functions in them."""
    below, trees = with_udf_columns(context, node, [tree for _, tree in columns])
    return project(context, below, list(zip([name for name, _ in columns], trees, strict=True)))


def keep_calls(context: BuildContext, node: Node, condition: exp.Expression) -> Node:
    """The rows for which a condition is true, with calls of users' functions in it.

    As in Spark, parts without calls come first: no call is made for rows that they drop.
    """
    parts = operands(condition, exp.And, through_brackets=True)
    plain = [part for part in parts if not has_udf(context, part)]
    if len(plain) == len(parts):
        return keep(context, node, condition)
    if plain:
        node = keep(context, node, all_of(plain))
    rest = all_of([part for part in parts if has_udf(context, part)])
    below, (tree,) = with_udf_columns(context, node, [rest])
    return select_only(keep(context, below, tree), node.schema.names)


def append_calls(context: BuildContext, node: Node, calls: Sequence[NamedCall]) -> Node:
    """The rows of a plan with the results of calls as new columns behind its own."""
    passed = tuple(node.schema.names)
    for column, function, _ in calls:
        if function.shape == "group":
            raise UserError(
                f"{function.name} makes one value of a group of rows\n  found: {column}\n"
                "  to fix: call it in agg() of a groupBy()"
            )
    below, arguments = argument_columns(context, node, [given for _, _, given in calls])
    built = [
        call_of(column, function, given)
        for (column, function, _), given in zip(calls, arguments, strict=True)
    ]
    names = [*passed, *(column for column, _, _ in calls)]
    if (why := why_on_spark(context)) is not None:
        return select_only(_on_spark(context, below, built, None, why), names)
    streams = [call for call in built if call.function.shape == "stream"]
    others = tuple(call for call in built if call.function.shape != "stream")
    plan = below
    for group in [others, *((call,) for call in streams)]:
        if group:
            plan = UdfCalls(plan, tuple(plan.schema.names), group)
    return select_only(plan, names)


def why_on_spark(context: BuildContext) -> str | None:
    """Why Spark has to call users' functions itself; None if tasks call them."""
    return None if context.udfs is None else context.udfs.why_on_spark


def _on_spark(
    context: BuildContext,
    node: Node,
    calls: Sequence[FunctionCall],
    keys: Sequence[str] | None,
    why: str,
) -> Node:
    assert context.on_spark is not None, "where functions are, Spark is"
    assert context.udfs is not None, "asked for before"
    passed = node.schema.names if keys is None else keys
    code = context.udfs.calls_on_spark(calls, passed=passed, keys=keys)
    return context.on_spark([("input_0", node)], code, why)


def aggregate_calls(
    context: BuildContext, node: Node, keys: Sequence[str], calls: Sequence[NamedCall]
) -> Node:
    """A row for each group: its keys, and results of functions that make a value of a group."""
    kinds = {function.eval_type for _, function, _ in calls}
    if len(kinds) > 1 or any(function.shape != "group" for _, function, _ in calls):
        raise ExpressionRefused(
            "functions of several kinds make values of one group",
            found=", ".join(function.name for _, function, _ in calls),
            fix="write them all with pandas_udf, or all with arrow_udf",
        )
    below, arguments = argument_columns(context, node, [given for _, _, given in calls])
    check_hashable(below, tuple(keys))
    built = tuple(
        call_of(column, function, given)
        for (column, function, _), given in zip(calls, arguments, strict=True)
    )
    if (why := why_on_spark(context)) is not None:
        return _on_spark(context, below, built, keys, why)
    return GroupedCalls(RowsByKey(below, tuple(keys)), tuple(keys), built)


def call_of(
    column: str, function: UserFunction, arguments: Sequence[tuple[str | None, str]]
) -> FunctionCall:
    """A call over columns, some of them by keyword."""
    return FunctionCall(
        column=column,
        function=function,
        arguments=tuple(name for keyword, name in arguments if keyword is None),
        keywords=tuple((keyword, name) for keyword, name in arguments if keyword is not None),
    )


def argument_columns(
    context: BuildContext, node: Node, arguments: Sequence[Sequence[exp.Expression]]
) -> tuple[Node, list[list[tuple[str | None, str]]]]:
    """A plan with a column for each argument; for each call its columns, with their keywords."""
    calculated: list[exp.Expression] = []
    columns: list[list[tuple[str | None, str | int]]] = []
    for given in arguments:
        of_call: list[tuple[str | None, str | int]] = []
        for argument in given:
            keyword = argument.name if isinstance(argument, exp.Kwarg) else None
            value = argument.expression if isinstance(argument, exp.Kwarg) else argument
            if isinstance(value, exp.Column) and value.name in node.schema.names:
                of_call.append((keyword, value.name))
            else:
                of_call.append((keyword, len(calculated)))
                calculated.append(value)
        columns.append(of_call)
    names = free_columns(["argument"] * len(calculated), node.schema.names)
    if calculated:
        kept = [(name, plan_column(name)) for name in node.schema.names]
        node = project(context, node, [*kept, *zip(names, calculated, strict=True)])
    return node, [
        [(keyword, names[at] if isinstance(at, int) else at) for keyword, at in of_call]
        for of_call in columns
    ]


def _is_over_window(call: exp.Expression) -> bool:
    """Whether a call makes a value for each row of the rows of its window."""
    return is_group_call(call) and isinstance(call.parent, exp.Window)


def noted_calls(context: BuildContext, tree: exp.Expression) -> exp.Expression:
    """The tree, in which calls of registered functions hold their functions."""
    for call in tree.find_all(exp.Anonymous):
        function = function_called(context, call)
        if function is not None:
            call.meta[_FUNCTION] = function
    return tree


def _replaced(tree: exp.Expression, by_call: dict[int, str]) -> exp.Expression:
    if id(tree) in by_call:
        return plan_column(by_call[id(tree)])
    for call in list(tree.find_all(exp.Anonymous)):
        if id(call) in by_call and call is not tree:
            call.replace(plan_column(by_call[id(call)]))
    return tree
