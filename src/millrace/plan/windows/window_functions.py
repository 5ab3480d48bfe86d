"""Types window functions: ranks, offsets, values of the frame, and aggregates over it.

Invariant: a call has Spark's type and value over the rows of a window. Other calls are `NotNative`.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from millrace.plan.nodes.window import WindowCall, WindowFunction, WindowScope
from millrace.sql.aggregates.aggregate_expressions import aggregate_call
from millrace.sql.aggregates.engine_calls import engine_calls
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import AGGREGATES
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, NotNative, TypedSql
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
_WHOLE_PARTITIONS: Final = ("median", "percentile_cont", "percentile_disc")
"""Spark has no order and no frame for these."""
_IN_SPARKS_ORDER: Final = ("covar_pop", "covar_samp", "regr_sxy")
"""Spark adds up products of distances row by row, so an infinity counts by where it comes."""
WINDOW_FUNCTIONS: Final = frozenset({*_RANKS, "ntile", *_OFFSETS, *_VALUES, *AGGREGATES})
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


def function_name(node: exp.Expression) -> str:
    """The name of the function that is called, beneath FILTER and the like; empty if none is."""
    while isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        node = node.this
    return node.name.lower() if isinstance(node, exp.Anonymous) else ""


def window_function(
    node: exp.Expression, inner: ExpressionTyper, *, ordered: bool, framed: bool
) -> WindowCall:
    """A call with its clauses, but without OVER; `inner` types its arguments."""
    name, shown = function_name(node), canonical(node)
    if name not in WINDOW_FUNCTIONS:
        raise NotNative(
            f"{name or shown} is no window function here", found=shown, fix="leave out OVER"
        )
    if name in _ORDERED and not ordered:
        raise ExpressionRefused(
            f"{name} needs an order", found=shown, fix='give order_by=, as in order_by="day DESC"'
        )
    if name in _WHOLE_PARTITIONS and (ordered or framed):
        raise NotNative(
            f"{name} takes no order and no frame, as in Spark",
            found=shown,
            fix="partition the rows only",
        )
    return _FunctionTyper(name, shown, inner).typed(node)


class InsideWindow(ExpressionTyper):
    """Types the arguments of a window function; another window function inside is refused."""

    def typed(self, node: exp.Expression) -> TypedSql:
        """The typed form of a node."""
        inside = function_name(node) in WINDOW_FUNCTIONS
        if inside or isinstance(node, exp.Filter | exp.Window):
            raise ExpressionRefused(
                "a window function inside of another",
                found=node.sql(dialect="spark"),
                fix="calculate the inner one in a window before this one",
            )
        return super().typed(node)


class _FunctionTyper:
    """Types one call of a name; `shown` is the call in messages."""

    def __init__(self, name: str, shown: str, inner: ExpressionTyper) -> None:
        self._name = name
        self._shown = shown
        self._inner = inner

    def typed(self, node: exp.Expression) -> WindowCall:
        """The call."""
        name = self._name
        if name in AGGREGATES and (name not in _VALUES or isinstance(node, exp.Filter)):
            return self._aggregate(node)
        ignore_nulls = isinstance(node, exp.IgnoreNulls)
        while isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
            node = node.this
        if not isinstance(node, exp.Anonymous):
            raise self._refused(f"{name} takes no FILTER in a window", "use CASE WHEN")
        arguments = list(node.expressions)
        if arguments and isinstance(arguments[0], exp.IgnoreNulls | exp.RespectNulls):
            ignore_nulls = ignore_nulls or isinstance(arguments[0], exp.IgnoreNulls)
            arguments[0] = arguments[0].this
        if name in _OFFSETS:
            return self._offset(arguments, ignore_nulls=ignore_nulls)
        if name in _VALUES:
            return self._value(_VALUES[name], arguments, ignore_nulls=ignore_nulls)
        if ignore_nulls:
            raise self._refused(f"{name} does not take IGNORE NULLS", "leave IGNORE NULLS out")
        return self._rank(arguments)

    def _refused(self, what: str, fix: str) -> NotNative:
        return NotNative(what, found=self._shown, fix=fix)

    def _rank(self, arguments: list[exp.Expression]) -> WindowCall:
        if self._name == "ntile":
            self._check_count(arguments, 0, 1)
            buckets = self._number(arguments[0], least=1) if arguments else 1
            return WindowCall.of(WindowFunction("ntile", (str(buckets),), "rows"), INT)
        self._check_count(arguments, 0, 0)
        scope, kind = _RANKS[self._name]
        return WindowCall.of(WindowFunction(self._name, (), scope), kind)

    def _offset(self, arguments: list[exp.Expression], *, ignore_nulls: bool) -> WindowCall:
        self._check_count(arguments, 1, 3)
        value = self._inner.typed(arguments[0])
        by = self._number(arguments[1]) if len(arguments) > 1 else 1
        given, columns = [value.sql, str(by)], value.columns
        if len(arguments) == 3:  # noqa: PLR2004 - the default
            default = self._inner.typed(arguments[2])
            default = default if default.type == value.type else cast(default, value.type)
            given.append(default.sql)
            columns |= default.columns
        function = WindowFunction(self._name, tuple(given), "rows", ignore_nulls)
        return WindowCall.of(function, value.type, columns)

    def _value(
        self, function: str, arguments: list[exp.Expression], *, ignore_nulls: bool
    ) -> WindowCall:
        name = self._name
        least = 2 if name == "nth_value" else 1
        self._check_count(arguments, least, least + 1)
        value = self._inner.typed(arguments[0])
        given = [value.sql]
        if name == "nth_value":
            given.append(str(self._number(arguments[1], least=1)))
        if len(arguments) > least:
            if not isinstance(arguments[-1], exp.Boolean):
                what = f"{name} takes true or false for leaving out nulls"
                raise self._refused(what, f"write {name}(x) or {name}(x, true)")
            ignore_nulls = ignore_nulls or bool(arguments[-1].this)
        call = WindowFunction(function, tuple(given), "values", ignore_nulls)
        return WindowCall.of(call, value.type, value.columns)

    def _aggregate(self, node: exp.Expression) -> WindowCall:
        """An aggregate over the rows of the frame."""
        if isinstance(node, exp.IgnoreNulls) and self._name not in _VALUES:
            what = f"{self._name} does not take IGNORE NULLS"
            raise self._refused(what, "leave IGNORE NULLS out")
        call = aggregate_call(self._name, node, self._inner)
        if call.distinct:
            raise self._refused(
                "DISTINCT has no place in a window, as in Spark", "group_by and join the result"
            )
        if call.function in _IN_SPARKS_ORDER:
            what = f"{self._name} of infinities depends on the order of the rows"
            raise self._refused(what, "use corr, or group_by and join the result")
        if call.function in ("first", "last"):
            raise self._refused(f"{self._name} takes no FILTER in a window", "use CASE WHEN")
        pieces = engine_calls(call.whole())
        functions = tuple(
            WindowFunction(piece.function, (piece.arguments,), "frame", condition=piece.condition)
            for piece in pieces.calls
        )
        return WindowCall(functions, call.type, call.columns, pieces.around, pieces.between)

    def _number(self, node: exp.Expression, least: int | None = None) -> int:
        name = self._name
        value = self._inner.typed(node)
        if value.type != INT or not isinstance(value.literal, int):
            raise NotNative(
                f"{name} needs a number that is written out",
                found=value.label or "",
                fix=f"write a number, as in {name}(x, 1)",
            )
        if least is not None and value.literal < least:
            raise NotNative(
                f"{name} needs a number of at least {least}",
                found=str(value.literal),
                fix=f"give {least} or more",
            )
        return value.literal

    def _check_count(self, arguments: list[exp.Expression], least: int, most: int) -> None:
        if not least <= len(arguments) <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise self._refused(
                f"{self._name} takes {expected} arguments", f"call it with {expected}"
            )
