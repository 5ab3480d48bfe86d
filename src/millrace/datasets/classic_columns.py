"""Columns of a classic Spark session, as the trees that Spark SQL would give.

Such a column is an object of the JVM: a tree of nodes that is walked here, node by node. Invariant:
every kind of node is named here; any other is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from millrace.sql.connect_expressions import function_tree, name_tree
from millrace.sql.connect_literals import cast_tree
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused

_UNBOUNDED: Final = {"UnboundedPreceding$": "PRECEDING", "UnboundedFollowing$": "FOLLOWING"}


def classic_tree(column: Any) -> exp.Expression:  # noqa: ANN401 - a column of PySpark
    """A column of a classic session as a tree."""
    return _tree(column._jc.node())


def _tree(node: Any) -> exp.Expression:  # noqa: ANN401 - an object of the JVM
    build = _KINDS.get(_kind(node))
    if build is None:
        raise ExpressionRefused(
            "a column of a classic Spark session cannot be read here",
            found=str(node.sql()),
            fix="make it with `from millrace import functions as F`, or write Spark SQL as text",
        )
    return build(node)


def _kind(node: Any) -> str:  # noqa: ANN401 - as above
    return str(node.getClass().getSimpleName())


def _all(values: Any) -> list[Any]:  # noqa: ANN401 - a Seq of Scala
    return [values.apply(number) for number in range(values.size())]


def _inside(some: Any) -> Any:  # noqa: ANN401 - an Option of Scala
    return some.productElement(0)


def _literal(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    value = node.value()
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case str():
            return exp.Literal.string(value)
        case float():
            return cast_tree(exp.Literal.string(repr(value)), "DOUBLE", safe=False)
        case int() | Decimal():
            return read(str(node.sql()) + ("BD" if isinstance(value, Decimal) else ""))
        case bytes() | bytearray():
            return exp.HexString(this=bytes(value).hex())
        case _:
            return _time(node, value)


def _time(node: Any, value: Any) -> exp.Expression:  # noqa: ANN401 - as above
    kind = _kind(value)
    if kind in ("Date", "LocalDate"):
        return cast_tree(exp.Literal.string(str(value.toString())), "DATE", safe=False)
    if kind == "Timestamp":  # Its own text is in the JVM's time zone.
        text = str(value.toInstant().toString())
        return cast_tree(exp.Literal.string(text), "TIMESTAMP", safe=False)
    raise ExpressionRefused(
        "this literal cannot be read here",
        found=str(node.sql()),
        fix="make it with `from millrace import functions as F`",
    )


def _attribute(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    return name_tree(".".join(_quoted(part) for part in _all(node.nameParts())))


def _of_frame(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    """A column that was named through a DataFrame: its name is what is known here."""
    expression = node.expression()
    if _kind(expression) != "AttributeReference":
        raise ExpressionRefused(
            "an expression of a classic DataFrame cannot be read here",
            found=str(node.sql()),
            fix="make it with `from millrace import functions as F`",
        )
    return name_tree(_quoted(str(expression.name())))


def _function(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    arguments = [_tree(argument) for argument in _all(node.arguments())]
    return function_tree(str(node.functionName()), arguments, distinct=bool(node.isDistinct()))


def _alias(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    names = [exp.to_identifier(str(name), quoted=True) for name in _all(node.name())]
    child = _tree(node.child())
    if len(names) > 1:
        return exp.Aliases(this=child, expressions=names)
    return exp.Alias(this=child, alias=names[0])


def _cast(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    mode = node.evalMode()
    safe = bool(mode.isDefined()) and "Try" in _kind(_inside(mode))
    return cast_tree(_tree(node.child()), str(node.dataType().sql()), safe=safe)


def _order(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    return exp.Ordered(
        this=_tree(node.child()),
        desc=_kind(node.sortDirection()) == "Descending$",
        nulls_first=_kind(node.nullOrdering()) == "NullsFirst$",
    )


def _case(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    pairs = _all(node.branches())
    branches = [exp.If(this=_tree(pair._1()), true=_tree(pair._2())) for pair in pairs]
    otherwise = node.otherwise()
    default = _tree(_inside(otherwise)) if otherwise.isDefined() else None
    return exp.Case(ifs=branches, default=default)


def _window(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    spec = node.windowSpec()
    window = exp.Window(this=_tree(node.windowFunction()), over="OVER")
    keys, orders = _all(spec.partitionColumns()), _all(spec.sortColumns())
    if keys:
        window.set("partition_by", [_tree(key) for key in keys])
    if orders:
        window.set("order", exp.Order(expressions=[_tree(order) for order in orders]))
    if spec.frame().isDefined():
        frame = _inside(spec.frame())
        start, start_side = _bound(frame.lower())
        end, end_side = _bound(frame.upper())
        kind = "ROWS" if "Row" in _kind(frame.frameType()) else "RANGE"
        bounds = {"start": start, "start_side": start_side, "end": end, "end_side": end_side}
        window.set("spec", exp.WindowSpec(kind=kind, **bounds))
    return window


def _bound(bound: Any) -> tuple[object, str | None]:  # noqa: ANN401 - as above
    kind = _kind(bound)
    if kind == "CurrentRow$":
        return "CURRENT ROW", None
    if kind in _UNBOUNDED:
        return "UNBOUNDED", _UNBOUNDED[kind]
    value = _tree(bound.value())
    if isinstance(value, exp.Neg):
        return value.this, "PRECEDING"
    return value, "FOLLOWING"


def _lambda(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    names = [exp.to_identifier(str(v.name()), quoted=True) for v in _all(node.arguments())]
    return exp.Lambda(this=_tree(node.function()), expressions=names)


def _extract(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    return exp.Bracket(this=_tree(node.child()), expressions=[_tree(node.extraction())])


def _star(node: Any) -> exp.Expression:  # noqa: ANN401 - as above
    if node.unparsedTarget().isDefined():
        return read(str(node.sql()))
    return exp.Star()


def _quoted(name: Any) -> str:  # noqa: ANN401 - a text of the JVM
    return f"`{str(name).replace('`', '``')}`"


_KINDS: Final[dict[str, Callable[[Any], exp.Expression]]] = {
    "Literal": _literal,
    "UnresolvedAttribute": _attribute,
    "ExpressionColumnNode": _of_frame,
    "UnresolvedFunction": _function,
    "Alias": _alias,
    "Cast": _cast,
    "SortOrder": _order,
    "CaseWhenOtherwise": _case,
    "Window": _window,
    "SqlExpression": lambda node: read(str(node.expression())),
    "UnresolvedStar": _star,
    "LambdaFunction": _lambda,
    "UnresolvedNamedLambdaVariable": lambda node: exp.column(
        exp.to_identifier(str(node.name()), quoted=True)
    ),
    "UnresolvedExtractValue": _extract,
}
