"""Walks a syntax tree and types it bottom up.

Invariant: every kind of node is named here; one that is not is refused, never passed on to DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from millrace.sql.functions import conditions, dates, literals, number_functions, string_functions
from millrace.sql.functions.arithmetic import arithmetic, negated
from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import AGGREGATES, FUNCTIONS, call
from millrace.sql.functions.unknown_functions import unknown_function
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import LITERAL, operands
from millrace.sql.terms import ExpressionRefused, Term, called, made, null
from millrace.sql.type_names import CAST_NAMES, type_of
from millrace.sql.types import BOOLEAN, DATE, VOID, SqlType

assert number_functions.NUMBERS  # imported for the table it fills

_ARITHMETIC: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
}
_COMPARED: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_CLAUSES: Final = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_REFUSED: Final = {
    exp.Window: ("a window function has no place here", "use the window operator"),
    exp.Subquery: ("a subquery has no place here", "use a join"),
    exp.Exists: ("a subquery has no place here", "use a join"),
    exp.Select: ("a subquery has no place here", "use a join"),
    exp.Star: ("* has no place here", "name the columns"),
    exp.Interval: ("an interval stands only beside + or -", "write d + INTERVAL 1 DAY"),
    exp.Alias: ("a name has no place inside an expression", "leave out AS"),
    exp.Distinct: ("DISTINCT has no place here", "use count(DISTINCT x) in an aggregate"),
}


Aggregate = Callable[[str, exp.Expression], Term]


class Walker:
    """Types one tree over some columns; `aggregate` says what an aggregate call stands for."""

    def __init__(self, columns: NameScope, aggregate: Aggregate | None = None) -> None:
        self.columns = columns
        self.aggregate = aggregate

    def walk(self, node: exp.Expression) -> Term:
        """The typed form of a node."""
        kind = type(node)
        if kind in _ARITHMETIC:
            return _calculated(self, _ARITHMETIC[kind], node)
        if kind in _COMPARED:
            left, right = self.walk(node.this), self.walk(node.expression)
            return conditions.compared(_COMPARED[kind], left, right)
        method = _NODES.get(kind)
        if method is None:
            what, fix = _REFUSED.get(
                kind, ("this is not supported", "see docs/functions.md, or use map_batches")
            )
            raise ExpressionRefused(what, found=node.sql(dialect="spark"), fix=fix)
        return method(self, node)

    def each(self, nodes: Sequence[exp.Expression]) -> list[Term]:
        """The typed forms of several nodes."""
        return [self.walk(node) for node in nodes]


def _column(walker: Walker, node: exp.Expression) -> Term:
    assert isinstance(node, exp.Column)
    if node.table and not node.db and not isinstance(node.this, exp.Star):
        return walker.columns.find_field(node.table, node.name)
    if node.table or isinstance(node.this, exp.Star):
        raise ExpressionRefused(
            "a field of a column cannot be named",
            found=node.sql(dialect="spark"),
            fix="take it out of its column with map_batches",
        )
    return walker.columns.find(node.name)


def _literal(_: Walker, node: exp.Expression) -> Term:
    assert isinstance(node, exp.Literal)
    return literals.string(node.name) if node.is_string else literals.number(node.name)


def _adjacent(_: Walker, node: exp.Expression) -> Term:
    return literals.string("".join(part.name for part in node.expressions))


def _boolean(_: Walker, node: exp.Expression) -> Term:
    return literals.boolean(value=bool(node.this))


def _negated(walker: Walker, node: exp.Expression) -> Term:
    inner = node.this
    if isinstance(inner, exp.Literal) and not inner.is_string:
        return literals.number(inner.name, negative=True)
    if isinstance(inner, exp.Anonymous) and inner.name.startswith(LITERAL):
        return _suffixed(inner, negative=True)
    return negated(walker.walk(inner))


def _suffixed(node: exp.Anonymous, *, negative: bool = False) -> Term:
    suffix = node.name.removeprefix(LITERAL)
    return literals.number(node.expressions[0].name, suffix, negative=negative)


def _calculated(walker: Walker, symbol: str, node: exp.Expression) -> Term:
    if symbol in ("+", "-"):
        first, second = node.this, node.expression
        if isinstance(first, exp.Interval) and symbol == "+":
            first, second = second, first
        if isinstance(second, exp.Interval):
            sign = 1 if symbol == "+" else -1
            return dates.shifted(walker.walk(first), _span(second), sign)
        left, right = walker.walk(first), walker.walk(second)
        if right.type == DATE and symbol == "+":
            left, right = right, left
        if left.type == DATE and right.type != DATE:
            name = "date_add" if symbol == "+" else "date_sub"
            return dates.moved(name, [left, right], symbol)
        if left.type == DATE and right.type == DATE:
            raise ExpressionRefused(
                "dates cannot be subtracted to an interval",
                found=node.sql(dialect="spark"),
                fix="use datediff(end, start)",
            )
        return arithmetic(symbol, left, right)
    return arithmetic(symbol, walker.walk(node.this), walker.walk(node.expression))


def _not(walker: Walker, node: exp.Expression) -> Term:
    inner = node.this
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        return call("isnotnull", [walker.walk(inner.this)])
    return conditions.inverted(walker.walk(inner))


def _is(walker: Walker, node: exp.Expression) -> Term:
    if isinstance(node.expression, exp.Null):
        return call("isnull", [walker.walk(node.this)])
    if not isinstance(node.expression, exp.Boolean):
        raise ExpressionRefused(
            "IS takes NULL, TRUE or FALSE",
            found=node.sql(dialect="spark"),
            fix="write = to compare with a value",
        )
    left = conditions.truth(walker.walk(node.this), "IS TRUE")
    return conditions.compared("<=>", left, walker.walk(node.expression))


def _differs(walker: Walker, node: exp.Expression) -> Term:
    left, right = walker.walk(node.this), walker.walk(node.expression)
    symbol = "<=>" if isinstance(node, exp.NullSafeNEQ) else "="
    return conditions.inverted(conditions.compared(symbol, left, right))


def _joined(walker: Walker, node: exp.Expression) -> Term:
    symbol = "AND" if isinstance(node, exp.And) else "OR"
    return conditions.joined(symbol, walker.each(operands(node, type(node))))


def _in(walker: Walker, node: exp.Expression) -> Term:
    if node.args.get("query") or node.args.get("field") or node.args.get("unnest"):
        raise ExpressionRefused(
            "IN takes a list of values", found=node.sql(dialect="spark"), fix="use a join"
        )
    return conditions.among(walker.walk(node.this), walker.each(node.expressions))


def _between(walker: Walker, node: exp.Expression) -> Term:
    if node.args.get("symmetric"):
        raise ExpressionRefused("BETWEEN SYMMETRIC is not supported", fix="use least and greatest")
    value, low, high = walker.each([node.this, node.args["low"], node.args["high"]])
    above = conditions.compared(">=", value, low)
    below = conditions.compared("<=", value, high)
    both = conditions.joined("AND", [above, below])
    return made(both.sql, BOOLEAN, [both], label=called("between", [value, low, high]))


def _like(walker: Walker, node: exp.Expression) -> Term:
    escape = "\\"
    if isinstance(node, exp.Escape):
        escape = node.expression.name
        node = node.this
    if not isinstance(node, exp.Like) or len(escape) != 1:
        raise ExpressionRefused(
            "ESCAPE takes one character after LIKE",
            found=escape,
            fix="write x LIKE 'a!%' ESCAPE '!'",
        )
    if isinstance(node.expression, exp.Any | exp.All):
        raise ExpressionRefused(
            "LIKE ANY and LIKE ALL are not supported", fix="join several with OR"
        )
    found = conditions.like(walker.walk(node.this), walker.walk(node.expression), escape)
    return conditions.inverted(found) if node.args.get("negate") else found


def _if(walker: Walker, node: exp.Expression) -> Term:
    if node.args.get("false") is None:
        raise ExpressionRefused(
            "IF takes three arguments",
            found=node.sql(dialect="spark"),
            fix="write if(condition, value, other)",
        )
    test, then, other = walker.each([node.this, node.args["true"], node.args["false"]])
    inner = called("IF", [test, then, other])
    label = None if inner is None else f"({inner})"
    value = conditions.chosen([(test, then)], other, "IF")
    return cast(value, value.type, label=label)


def _case(walker: Walker, node: exp.Expression) -> Term:
    base = walker.walk(node.this) if node.this is not None else None
    branches = []
    for branch in node.args["ifs"]:
        test = walker.walk(branch.this)
        test = test if base is None else conditions.compared("=", base, test)
        branches.append((test, walker.walk(branch.args["true"])))
    default = node.args.get("default")
    other = None if default is None else walker.walk(default)
    value = conditions.chosen(branches, other, "CASE")
    return cast(value, value.type, label=_case_label(branches, other))


def _cast(walker: Walker, node: exp.Expression) -> Term:
    kind = type_of(node.args["to"])
    if type(node) is exp.Cast and isinstance(node.this, exp.Literal):
        return literals.dated(node.this.name, kind)
    return _casted(walker.walk(node.this), kind)


def _casted(term: Term, kind: SqlType) -> Term:
    name = str(kind).upper()
    label = None if term.label is None else f"CAST({term.label} AS {name})"
    return cast(term, kind, label=label or "") if label else _unlabelled(cast(term, kind))


def _called(walker: Walker, node: exp.Expression) -> Term:
    assert isinstance(node, exp.Anonymous)
    if node.name.startswith(LITERAL):
        return _suffixed(node)
    name = node.name.lower()
    if name in AGGREGATES:
        return _aggregated(walker, name, node)
    if name in CAST_NAMES and len(node.expressions) == 1:
        return _casted(walker.walk(node.expressions[0]), CAST_NAMES[name])
    if name not in FUNCTIONS:
        raise unknown_function(name)
    return call(name, walker.each(node.expressions))


def _aggregated(walker: Walker, name: str, node: exp.Expression) -> Term:
    if walker.aggregate is None:
        raise ExpressionRefused(
            f"{name} is an aggregate and has no place here",
            found=node.sql(dialect="spark"),
            fix="use it in agg",
        )
    return walker.aggregate(name, node)


def _with_clause(walker: Walker, node: exp.Expression) -> Term:
    """FILTER, WITHIN GROUP or IGNORE NULLS, which stand behind an aggregate."""
    inner = node
    while isinstance(inner, _CLAUSES):
        inner = inner.this
    if not isinstance(inner, exp.Anonymous) or inner.name.lower() not in AGGREGATES:
        raise ExpressionRefused(
            "only aggregates take FILTER, WITHIN GROUP and IGNORE NULLS",
            found=node.sql(dialect="spark"),
            fix="leave it out, or write if(condition, value, NULL)",
        )
    return _aggregated(walker, inner.name.lower(), node)


def _extract(walker: Walker, node: exp.Expression) -> Term:
    unit = node.name.lower()
    if unit not in dates.EXTRACTED:
        raise ExpressionRefused(
            f"EXTRACT does not take {unit}", fix=f"use {', '.join(dates.EXTRACTED)}"
        )
    return _unlabelled(call(unit, [walker.walk(node.expression)]))


def _substring(walker: Walker, node: exp.Expression) -> Term:
    parts = [node.this, node.args.get("start"), node.args.get("length")]
    return call("substring", walker.each([part for part in parts if part is not None]))


def _unlabelled(term: Term) -> Term:
    return Term(sql=term.sql, type=term.type, columns=term.columns, raises=term.raises)


def _case_label(branches: list[tuple[Term, Term]], other: Term | None) -> str | None:
    parts = [part for branch in branches for part in branch] + ([other] if other else [])
    if any(part.label is None for part in parts):
        return None
    steps = " ".join(f"WHEN {test.label} THEN {value.label}" for test, value in branches)
    last = f" ELSE {other.label}" if other else ""
    return f"CASE {steps}{last} END"


def _span(node: exp.Interval) -> dates.Span:
    unit = node.args.get("unit")
    if not isinstance(unit, exp.Var) or not isinstance(node.this, exp.Literal):
        raise ExpressionRefused(
            "an interval is a whole number of one unit here",
            found=node.sql(dialect="spark"),
            fix="write, for example, INTERVAL 1 DAY",
        )
    return dates.span(node.this.name, unit.name)


_NODES: Final[dict[type[exp.Expression], Callable[[Walker, exp.Expression], Term]]] = {
    exp.Column: _column,
    exp.Paren: lambda walker, node: walker.walk(node.this),
    exp.Literal: _literal,
    exp.Concat: _adjacent,
    exp.RawString: lambda _, node: literals.string(node.name),
    exp.HexString: lambda _, node: literals.binary(node.name),
    exp.Boolean: _boolean,
    exp.Null: lambda _walker, _node: null(VOID),
    exp.Neg: _negated,
    exp.Not: _not,
    exp.Is: _is,
    exp.NEQ: _differs,
    exp.NullSafeNEQ: _differs,
    exp.And: _joined,
    exp.Or: _joined,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.Escape: _like,
    exp.If: _if,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Anonymous: _called,
    exp.DPipe: lambda walker, node: string_functions.concat(
        "concat", walker.each([node.this, node.expression])
    ),
    exp.Extract: _extract,
    exp.Substring: _substring,
    **dict.fromkeys(_CLAUSES, _with_clause),
}
