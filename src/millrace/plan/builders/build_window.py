"""Builds the windows of `Dataset.window` from texts: one partitioning, order and frame for all."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.builders.build_join import Names
from millrace.plan.builders.sort_orders import with_order
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import select_only
from millrace.plan.nodes.window import Window, WindowCall, WindowColumn
from millrace.plan.windows.window_frames import read_frame
from millrace.plan.windows.window_functions import (
    WINDOW_FUNCTIONS,
    InsideWindow,
    function_name,
    window_function,
)
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import as_user_error, expression_of
from millrace.sql.name_checks import check_keys, name_list
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import read
from millrace.sql.syntax_errors import refuse_name
from millrace.sql.typed_sql import ExpressionRefused, TypedSql


def plan_window(
    child: Node,
    columns: Mapping[str, str],
    call: str,
    *,
    partition_by: Names,
    order_by: Names,
    frame: str | None,
) -> Node:
    """A window, checked."""
    if not columns:
        raise UserError("window() has nothing to calculate\n  to fix: window(n='row_number()')")
    keys, order = name_list(partition_by), name_list(order_by)
    check_keys(child.schema, keys, f"window(partition_by={partition_by!r})")
    new = tuple(
        _column(name, text, child.schema, call, ordered=bool(order), framed=frame is not None)
        for name, text in columns.items()
    )
    rows, by = with_order(child, order, f"window(order_by={order_by!r})") if order else (child, ())
    given = None if frame is None else read_frame(frame, rows.schema, by)
    names = [*child.schema.names, *(name for name in columns if name not in child.schema.names)]
    return select_only(Window(child=rows, keys=keys, order=by, frame=given, columns=new), names)


def _column(
    name: str, text: str, schema: pa.Schema, call: str, *, ordered: bool, framed: bool
) -> WindowColumn:
    with as_user_error(call):
        tree = read(text)
        refuse_name(tree, text, f"write window({name}=...)")
        typer = _WindowMarks(schema, ordered=ordered, framed=framed)
        term = typer.typed(tree)
        if not typer.calls:
            raise ExpressionRefused(
                "there is no window function",
                found=text,
                fix="use sum, row_number, lag, ..., or with_columns for plain expressions",
            )
        return WindowColumn(name, expression_of(tree, term), tuple(typer.calls))


class _WindowMarks(ExpressionTyper):
    """Types an expression over columns and calls; its SQL has a mark for each call."""

    def __init__(self, schema: pa.Schema, *, ordered: bool, framed: bool) -> None:
        super().__init__(NameScope(schema))
        self._inner = InsideWindow(self.columns)
        self._ordered = ordered
        self._framed = framed
        self.calls: list[WindowCall] = []

    def typed(self, node: exp.Expression) -> TypedSql:
        """The typed form of a node."""
        if isinstance(node, exp.Window):
            raise ExpressionRefused(
                "OVER has no place here",
                found=node.sql(dialect="spark"),
                fix="leave it out, and give partition_by= and order_by=",
            )
        if function_name(node) not in WINDOW_FUNCTIONS:
            return super().typed(node)
        call = window_function(node, self._inner, ordered=self._ordered, framed=self._framed)
        if call not in self.calls:
            self.calls.append(call)
        mark = f"\0{self.calls.index(call)}\0"
        return TypedSql(sql=mark, type=call.type, columns=call.columns)
