"""Builds windows from the arguments of a user's call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.builders.build_join import Names
from millrace.plan.builders.sort_orders import with_order
from millrace.plan.builders.window_frames import read_frame
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import select_only
from millrace.plan.nodes.window import Window, WindowCall, WindowColumn, WindowFunction, WindowScope
from millrace.sql.aggregates.aggregate_expressions import aggregate_call
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import as_user_error, expression_of, scope_of
from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import AGGREGATES
from millrace.sql.name_checks import check_keys, name_list
from millrace.sql.parser import read
from millrace.sql.syntax_errors import refuse_name
from millrace.sql.typed_sql import ExpressionRefused, TypedSql, as_type
from millrace.sql.types import DOUBLE, INT, SqlType

_RANKS: Final[dict[str, tuple[WindowScope, SqlType]]] = {
    "row_number": ("rows", INT),
    "rank": ("ranks", INT),
    "dense_rank": ("ranks", INT),
    "percent_rank": ("ranks", DOUBLE),
    "cume_dist": ("ranks", DOUBLE),
}
_OFFSETS: Final = ("lag", "lead")
_VALUES: Final = {
    "first_value": "first_value",
    "first": "first_value",
    "any_value": "first_value",
    "last_value": "last_value",
    "last": "last_value",
    "nth_value": "nth_value",
}
_ORDERED: Final = (*_RANKS, "ntile", *_OFFSETS, "nth_value")
WINDOW_USAGES: Final = (
    "row_number()",
    "rank()",
    "dense_rank()",
    "percent_rank()",
    "cume_dist()",
    "ntile(n)",
    "lag(x, n, default)",
    "lead(x, n, default)",
    "first_value(x), first(x), any_value(x)",
    "last_value(x), last(x)",
    "nth_value(x, n)",
)
_TOGETHER: Final = frozenset(
    {
        *("sum", "count", "count_if", "min", "max", "avg", "mean"),
        *("std", "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"),
        *("bool_and", "every", "bool_or", "some", "any"),
    }
)
_NAMES: Final = frozenset({*_RANKS, "ntile", *_OFFSETS, *_VALUES, *AGGREGATES})


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
        _column(name, text, child.schema, call, ordered=bool(order))
        for name, text in columns.items()
    )
    rows, by = with_order(child, order, f"window(order_by={order_by!r})") if order else (child, ())
    given = None if frame is None else read_frame(frame, rows.schema, by)
    names = [*child.schema.names, *(name for name in columns if name not in child.schema.names)]
    return select_only(Window(child=rows, keys=keys, order=by, frame=given, columns=new), names)


def _column(name: str, text: str, schema: pa.Schema, call: str, *, ordered: bool) -> WindowColumn:
    with as_user_error(call):
        tree = read(text)
        refuse_name(tree, text, f"write window({name}=...)")
        typer = _WindowMarks(schema, ordered=ordered)
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

    def __init__(self, schema: pa.Schema, *, ordered: bool) -> None:
        super().__init__(scope_of(schema))
        self._inner = _Inside(self.columns)
        self._ordered = ordered
        self.calls: list[WindowCall] = []

    def typed(self, node: exp.Expression) -> TypedSql:
        """The typed form of a node."""
        if isinstance(node, exp.Window):
            raise ExpressionRefused(
                "OVER has no place here",
                found=node.sql(dialect="spark"),
                fix="leave it out, and give partition_by= and order_by=",
            )
        ignore_nulls = isinstance(node, exp.IgnoreNulls)
        if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
            node = node.this
        name = _called(node.this if isinstance(node, exp.Filter) else node)
        if name not in _NAMES:
            return super().typed(node)
        if name in _ORDERED and not self._ordered:
            raise ExpressionRefused(
                f"{name} needs an order",
                found=node.sql(dialect="spark"),
                fix='give order_by=, as in order_by="day DESC"',
            )
        call = self._call(name, node, ignore_nulls=ignore_nulls)
        if call not in self.calls:
            self.calls.append(call)
        mark = f"\0{self.calls.index(call)}\0"
        return TypedSql(sql=mark, type=call.type, columns=call.columns)

    def _call(self, name: str, node: exp.Expression, *, ignore_nulls: bool) -> WindowCall:
        shown = node.sql(dialect="spark")
        arguments = list(node.expressions)
        if isinstance(node, exp.Filter) and name not in _TOGETHER:
            raise ExpressionRefused(
                f"{name} takes no FILTER in a window", found=shown, fix="use CASE WHEN"
            )
        if name in _OFFSETS:
            return self._offset(name, arguments, shown, ignore_nulls=ignore_nulls)
        if name in _VALUES:
            return self._value(_VALUES[name], arguments, shown, ignore_nulls=ignore_nulls)
        if ignore_nulls:
            raise ExpressionRefused(
                f"{name} does not take IGNORE NULLS", found=shown, fix="leave IGNORE NULLS out"
            )
        if name in _RANKS:
            _check_count(name, arguments, 0, 0, shown)
            scope, kind = _RANKS[name]
            return WindowCall(name, (WindowFunction(name, (), scope),), kind, frozenset())
        if name == "ntile":
            _check_count(name, arguments, 1, 1, shown)
            buckets = self._number(name, arguments[0], least=1)
            return WindowCall(
                name, (WindowFunction(name, (str(buckets),), "rows"),), INT, frozenset()
            )
        return _aggregate(name, node, self._inner, shown)

    def _offset(
        self, name: str, arguments: list[exp.Expression], shown: str, *, ignore_nulls: bool
    ) -> WindowCall:
        _check_count(name, arguments, 1, 3, shown)
        value = self._inner.typed(arguments[0])
        by = self._number(name, arguments[1]) if len(arguments) > 1 else 1
        given, columns = [value.sql, str(by)], value.columns
        if len(arguments) == 3:  # noqa: PLR2004 - the default
            default = self._inner.typed(arguments[2])
            default = default if default.type == value.type else cast(default, value.type)
            given.append(default.sql)
            columns |= default.columns
        function = WindowFunction(name, tuple(given), "rows", ignore_nulls)
        return WindowCall(name, (function,), value.type, columns)

    def _value(
        self, name: str, arguments: list[exp.Expression], shown: str, *, ignore_nulls: bool
    ) -> WindowCall:
        least = 2 if name == "nth_value" else 1
        _check_count(name, arguments, least, least + 1, shown)
        value = self._inner.typed(arguments[0])
        given = [value.sql]
        if name == "nth_value":
            given.append(str(self._number(name, arguments[1], least=1)))
        if len(arguments) > least:
            if not isinstance(arguments[-1], exp.Boolean):
                raise ExpressionRefused(
                    f"{name} takes true or false for leaving out nulls",
                    found=shown,
                    fix=f"write {name}(x) or {name}(x, true)",
                )
            ignore_nulls = bool(arguments[-1].this)
        function = WindowFunction(name, tuple(given), "values", ignore_nulls)
        return WindowCall(name, (function,), value.type, value.columns)

    def _number(self, name: str, node: exp.Expression, least: int | None = None) -> int:
        value = self._inner.typed(node)
        if value.type != INT or not isinstance(value.literal, int):
            raise ExpressionRefused(
                f"{name} needs a number that is written out",
                found=value.label or "",
                fix=f"write a number, as in {name}(x, 1)",
            )
        if least is not None and value.literal < least:
            raise ExpressionRefused(
                f"{name} needs a number of at least {least}",
                found=str(value.literal),
                fix=f"give {least} or more",
            )
        return value.literal


class _Inside(ExpressionTyper):
    """Types the arguments of a window function; another window function inside is refused."""

    def typed(self, node: exp.Expression) -> TypedSql:
        """The typed form of a node."""
        if _called(node) in _NAMES or isinstance(node, exp.Filter):
            raise ExpressionRefused(
                "a window function inside of another",
                found=node.sql(dialect="spark"),
                fix="calculate the inner one in a window before this one",
            )
        return super().typed(node)


def _called(node: exp.Expression) -> str:
    return node.name.lower() if isinstance(node, exp.Anonymous) else ""


def _check_count(
    name: str, arguments: list[exp.Expression], least: int, most: int, shown: str
) -> None:
    if not least <= len(arguments) <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise ExpressionRefused(
            f"{name} takes {expected} arguments", found=shown, fix=f"call it with {expected}"
        )


def _aggregate(name: str, node: exp.Expression, inner: ExpressionTyper, shown: str) -> WindowCall:
    """An aggregate over the rows of the frame."""
    if name not in _TOGETHER:
        raise ExpressionRefused(
            f"{name} is not known in windows",
            found=shown,
            fix="group_by and join the result, or see docs/functions.md",
        )
    call = aggregate_call(name, node, inner)
    if call.distinct:
        raise ExpressionRefused(
            "DISTINCT has no place in a window, as in Spark",
            found=shown,
            fix="group_by and join the result",
        )
    over = "*" if call.argument is None else call.argument.sql
    columns = frozenset[str]() if call.argument is None else call.argument.columns
    x = as_type(over, DOUBLE)
    match call.function:
        case "sum" | "avg":
            in_double = call.partials("")[0].type == DOUBLE
            functions = [WindowFunction("sum", (x if in_double else over,), "frame")]
            functions += (
                [WindowFunction("count", (over,), "frame")] if call.function == "avg" else []
            )
        case "count" | "min" | "max" | "bool_and" | "bool_or":
            functions = [WindowFunction(call.function, (over,), "frame")]
        case _:
            odd = f"isnan({x}) OR isinf({x})"
            plain = f"CASE WHEN {odd} THEN NULL ELSE {x} END"
            arguments = {"count": x, "bool_or": odd, call.function: plain}
            functions = [
                WindowFunction(function, (argument,), "frame")
                for function, argument in arguments.items()
            ]
    return WindowCall(call.function, tuple(functions), call.type, columns, call)
