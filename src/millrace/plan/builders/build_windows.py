"""Builds the window calls inside expressions: each becomes a column of a window below.

Calls over the same partitions, order and frame are calculated by one window. Keys that are
calculated become columns of a projection below all windows. Calls whose answer only Spark has run
there, all of them in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.errors import MillraceError
from millrace.keys import HashPartitioner
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_udf_calls import is_group_call
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import native_or_spark, select_list
from millrace.plan.builders.user_code.build_window_calls import with_window_call
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project, pass_columns, select_only
from millrace.plan.nodes.sort import SortKey
from millrace.plan.nodes.window import Frame, Window, WindowCall, WindowColumn
from millrace.plan.relation import free_columns
from millrace.plan.windows.window_frames import frame_of
from millrace.plan.windows.window_functions import InsideWindow, window_function
from millrace.sql.aggregates.aggregate_input import is_plain
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import Expression, expression_of
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import NotNative
from millrace.sql.types import to_arrow

_MARK: Final = "\x000\x00"
"""The place of a column's only call in its SQL."""


@dataclass(frozen=True, slots=True)
class OrderTerm:
    """An expression that rows of a window are ordered by."""

    by: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The partitions, the order and the frame of a call."""

    keys: tuple[Expression, ...]
    order: tuple[OrderTerm, ...]
    frame: Frame | None

    @property
    def calculated(self) -> tuple[Expression, ...]:
        """The keys and terms that are no columns as they are."""
        return tuple(e for e in (*self.keys, *(t.by for t in self.order)) if not e.is_column)


@dataclass(frozen=True, slots=True)
class CallOver:
    """A call and the window that it is calculated over."""

    call: WindowCall
    spec: WindowSpec
    text: str


def with_window_columns(
    context: BuildContext, node: Node, trees: Sequence[exp.Expression]
) -> tuple[Node, list[exp.Expression]]:
    """A plan with a column for each window call of resolved trees, and the trees over them."""
    windows = list(dict.fromkeys(w for tree in trees for w in tree.find_all(exp.Window)))
    if not windows:
        return node, list(trees)
    names = free_columns([f"__window_{n}" for n in range(len(windows))], node.schema.names)
    by_tree = dict(zip(windows, names, strict=True))
    typer = ExpressionTyper(NameScope(node.schema))
    native: list[tuple[str, CallOver]] = []
    refused: list[tuple[str, exp.Window, NotNative]] = []
    for tree, name in by_tree.items():
        if is_group_call(tree.this):
            continue
        try:
            native.append((name, window_call(tree, typer)))
        except NotNative as reason:
            refused.append((name, tree, reason))
    node = window_nodes(node, native)
    if refused:
        node = _on_spark(context, node, refused)
    for tree, name in by_tree.items():
        if is_group_call(tree.this):
            node = with_window_call(context, node, name, tree, with_window_columns)
    return node, [_over_columns(tree, by_tree) for tree in trees]


def window_call(tree: exp.Window, typer: ExpressionTyper) -> CallOver:
    """A call with its window, typed over the columns of a plan."""
    if tree.args.get("alias"):
        raise NotNative("the window is named elsewhere", found=canonical(tree), fix="write it out")
    keys = tuple(_expression(typer, key) for key in tree.args.get("partition_by") or ())
    given = tree.args["order"].expressions if tree.args.get("order") else []
    order = tuple(_order_term(typer, term) for term in given)
    frame = tree.args.get("spec")
    spec = WindowSpec(
        # The value of a constant orders nothing and parts nothing.
        tuple(dict.fromkeys(key for key in keys if key.columns)),
        tuple(term for term in order if term.by.columns),
        None if frame is None else frame_of(frame, [term.by.type for term in order]),
    )
    _check_keys(spec)
    inner = InsideWindow(typer.columns)
    call = window_function(tree.this, inner, ordered=bool(given), framed=spec.frame is not None)
    return CallOver(call, spec, canonical(tree))


def window_nodes(child: Node, calls: Sequence[tuple[str, CallOver]]) -> Node:
    """Windows one above the other, with a column for each call."""
    specs = list(dict.fromkeys(call.spec for _, call in calls))
    new = list(dict.fromkeys(e for spec in specs for e in spec.calculated))
    used = [*child.schema.names, *(name for name, _ in calls)]
    names = dict(zip(new, free_columns(["__key"] * len(new), used), strict=True))
    plan = child
    if new:
        passed = pass_columns(child.schema, child.schema.names)
        plan = Project(child, (*passed, *((name, e) for e, name in names.items())))

    def column(expression: Expression) -> str:
        return names[expression] if expression in names else next(iter(expression.columns))

    for spec in specs:
        plan = Window(
            child=plan,
            keys=tuple(map(column, spec.keys)),
            order=tuple(
                SortKey(column(term.by), term.descending, term.nulls_first) for term in spec.order
            ),
            frame=spec.frame,
            columns=tuple(_column(name, c) for name, c in calls if c.spec == spec),
        )
    return select_only(plan, [*child.schema.names, *(name for name, _ in calls)])


def _column(name: str, over: CallOver) -> WindowColumn:
    call = over.call
    return WindowColumn(name, Expression(_MARK, call.type, call.columns, over.text), (call,))


def _expression(typer: ExpressionTyper, tree: exp.Expression) -> Expression:
    return expression_of(tree, InsideWindow(typer.columns).typed(tree))


def _order_term(typer: ExpressionTyper, tree: exp.Expression) -> OrderTerm:
    by = _expression(typer, tree.this)
    if by.columns and not is_plain(by.type):
        raise NotNative("a window in the order of this type", found=canonical(tree), fix="")
    return OrderTerm(by, bool(tree.args.get("desc")), bool(tree.args.get("nulls_first")))


def _check_keys(spec: WindowSpec) -> None:
    """Keys that cannot be hashed as Spark does are parted by Spark."""
    if not spec.keys:
        return
    fields = [(f"k{n}", to_arrow(key.type)) for n, key in enumerate(spec.keys)]
    try:
        HashPartitioner(tuple(name for name, _ in fields), 1).check(pa.schema(fields))
    except MillraceError as error:
        raise NotNative("windows by keys of this type", found=str(error), fix="") from None


def _on_spark(
    context: BuildContext, node: Node, refused: Sequence[tuple[str, exp.Window, NotNative]]
) -> Node:
    def fail() -> Node:
        raise refused[0][2]

    listed = select_list([(name, tree) for name, tree, _ in refused])
    return native_or_spark(context, fail, [node], lambda: f"SELECT *, {listed} FROM input_0")


def _over_columns(tree: exp.Expression, names: dict[exp.Window, str]) -> exp.Expression:
    """A tree with the column of each window call in its place."""

    def replaced(node: exp.Expression) -> exp.Expression:
        return plan_column(names[node]) if isinstance(node, exp.Window) else node

    return tree.copy().transform(replaced)
