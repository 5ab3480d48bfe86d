"""Types a syntax tree bottom up.

Invariant: every kind of node is named here. Any other is refused, never handed to DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from millrace.sql.functions import (
    conditions,
    dates,
    literals,
    math_functions,
    number_functions,
    string_functions,
)
from millrace.sql.functions.arithmetic import arithmetic, negated
from millrace.sql.functions.casts import cast, tried_cast
from millrace.sql.functions.function_registry import (
    AGGREGATES,
    FUNCTIONS,
    call,
    call_tree,
)
from millrace.sql.functions.nested import access_nodes, nested_functions, struct_functions
from millrace.sql.functions.nested.field_updates import expand_updates, is_update
from millrace.sql.functions.texts import text_modules, text_nodes
from millrace.sql.functions.times import making_functions, run_functions
from millrace.sql.functions.unknown_functions import unknown_function
from millrace.sql.labels.spark_labels import SPARK_NAME, spark_label
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import LITERAL, canonical, operands
from millrace.sql.spark_text import WITHOUT_BRACKETS
from millrace.sql.sql_mode import current_mode
from millrace.sql.type_names import CAST_NAMES, type_of
from millrace.sql.typed_sql import (
    ExpressionRefused,
    NotNative,
    TypedSql,
    call_label,
    combined,
    null_of,
)
from millrace.sql.types import BOOLEAN, DATE, VOID, SqlType

assert number_functions.NUMBERS  # imported for the table they fill
assert nested_functions.MODULES
assert text_modules.MODULES
assert making_functions.UNIX_UNITS
assert run_functions.RUN_DAY
assert math_functions.TRIED

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
_IN_EVERY_MODE: Final = frozenset({exp.Column, exp.Identifier, exp.Paren})
"""Nodes whose value no setting changes."""
_CLAUSES: Final = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_REFUSED: Final = {
    exp.Window: ("a window function has no place here", "use the window operator"),
    exp.Subquery: ("a subquery has no place here", "use a join"),
    exp.Exists: ("a subquery has no place here", "use a join"),
    exp.Select: ("a subquery has no place here", "use a join"),
    exp.Star: ("* has no place here", "name the columns"),
    exp.Alias: ("a name has no place inside an expression", "leave out AS"),
    exp.Distinct: ("DISTINCT has no place here", "use count(DISTINCT x) in an aggregate"),
}


AggregateHook = Callable[[str, exp.Expression], TypedSql]


class ExpressionTyper:
    """Types one tree over some columns; `aggregate` types the aggregate calls in it."""

    def __init__(
        self,
        columns: NameScope,
        aggregate: AggregateHook | None = None,
        variables: Mapping[str, TypedSql] | None = None,
        lambda_depth: int = 0,
    ) -> None:
        self.columns = columns
        self.aggregate = aggregate
        self.lambda_depth = lambda_depth
        self._variables = dict(variables or {})

    def typed(self, node: exp.Expression) -> TypedSql:
        """The typed form of a node."""
        term = self._typed(node)
        named = node.meta_get(SPARK_NAME) is not None  # By another tree than its own.
        return replace(term, label=spark_label(node)) if named else term

    def _typed(self, node: exp.Expression) -> TypedSql:
        kind = type(node)
        if kind not in _IN_EVERY_MODE:
            _check_mode(node)
        if kind in _ARITHMETIC:
            return _calculated(self, _ARITHMETIC[kind], node)
        if kind in _COMPARED:
            left, right = self.typed(node.this), self.typed(node.expression)
            return conditions.compare(_COMPARED[kind], left, right)
        method = _NODES.get(kind)
        if method is None:
            what, fix = _REFUSED.get(
                kind, ("this is not supported", "see docs/functions.md, or use map_batches")
            )
            refusal = ExpressionRefused if kind in _REFUSED else NotNative
            raise refusal(what, found=canonical(node), fix=fix)
        return method(self, node)

    def typed_all(self, nodes: Sequence[exp.Expression]) -> list[TypedSql]:
        """The typed forms of several nodes."""
        return [self.typed(node) for node in nodes]

    def bound(self, variables: Mapping[str, TypedSql]) -> ExpressionTyper:
        """The same with variables of a lambda, which hide columns of their names."""
        known = {**self._variables, **variables}
        return ExpressionTyper(self.columns, self.aggregate, known, self.lambda_depth + 1)

    def find(self, name: str) -> TypedSql:
        """The variable of this name, or else the column."""
        return self._variables.get(name.lower()) or self.columns.find(name)


def _check_mode(node: exp.Expression) -> None:
    """Leave expressions to Spark in a session whose settings change them."""
    setting = current_mode().on_spark
    if setting is not None:
        what = f"the session has {setting}, and Spark answers otherwise then"
        raise NotNative(what, found=canonical(node), fix="use the default of this setting")


def _column(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    try:
        return access_nodes.column(typer, node)
    except ExpressionRefused:
        name = node.sql().lower()
        if name not in WITHOUT_BRACKETS:
            raise
    return _called(typer, exp.Anonymous(this=name, expressions=[]))


def _literal(_: ExpressionTyper, node: exp.Expression) -> TypedSql:
    assert isinstance(node, exp.Literal)
    return literals.string(node.name) if node.is_string else literals.number(node.name)


def _negated(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    inner = node.this
    if isinstance(inner, exp.Literal) and not inner.is_string:
        return literals.number(inner.name, negative=True)
    if isinstance(inner, exp.Anonymous) and inner.name.startswith(LITERAL):
        return _suffixed(inner, negative=True)
    return negated(typer.typed(inner))


def _suffixed(node: exp.Anonymous, *, negative: bool = False) -> TypedSql:
    suffix = node.name.removeprefix(LITERAL)
    return literals.number(node.expressions[0].name, suffix, negative=negative)


def _calculated(typer: ExpressionTyper, symbol: str, node: exp.Expression) -> TypedSql:
    if symbol in ("+", "-"):
        first, second = node.this, node.expression
        if isinstance(first, exp.Interval) and symbol == "+":
            first, second = second, first
        if isinstance(second, exp.Interval):
            base, by = typer.typed(first), _span(second)
            label = dates.shifted_label(base, symbol, spark_label(second), is_days=by.days != 0)
            return replace(dates.shifted(base, by, 1 if symbol == "+" else -1), label=label)
        left, right = typer.typed(first), typer.typed(second)
        if right.type == DATE and symbol == "+":
            left, right = right, left
        if left.type == DATE and right.type != DATE:
            name = "date_add" if symbol == "+" else "date_sub"
            return dates.moved(name, [left, right], symbol)
        if left.type == DATE and right.type == DATE:
            raise NotNative(
                "dates cannot be subtracted to an interval",
                found=node.sql(dialect="spark"),
                fix="use datediff(end, start)",
            )
        return arithmetic(symbol, left, right)
    return arithmetic(symbol, typer.typed(node.this), typer.typed(node.expression))


def _not(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    inner = node.this
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        return call("isnotnull", [typer.typed(inner.this)])
    return conditions.negate_condition(typer.typed(inner))


def _is(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    if isinstance(node.expression, exp.Null):
        return call("isnull", [typer.typed(node.this)])
    if not isinstance(node.expression, exp.Boolean):
        raise ExpressionRefused(
            "IS takes NULL, TRUE or FALSE",
            found=node.sql(dialect="spark"),
            fix="write = to compare with a value",
        )
    left = conditions.as_condition(typer.typed(node.this), "IS TRUE")
    return conditions.compare("<=>", left, typer.typed(node.expression))


def _differs(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    left, right = typer.typed(node.this), typer.typed(node.expression)
    symbol = "<=>" if isinstance(node, exp.NullSafeNEQ) else "="
    return conditions.negate_condition(conditions.compare(symbol, left, right))


def _joined(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    symbol = "AND" if isinstance(node, exp.And) else "OR"
    return conditions.connect(symbol, typer.typed_all(operands(node, type(node))))


def _in(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    if node.args.get("query") or node.args.get("field") or node.args.get("unnest"):
        raise ExpressionRefused(
            "IN takes a list of values", found=node.sql(dialect="spark"), fix="use a join"
        )
    return conditions.in_list(typer.typed(node.this), typer.typed_all(node.expressions))


def _between(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    if node.args.get("symmetric"):
        raise ExpressionRefused("BETWEEN SYMMETRIC is not supported", fix="use least and greatest")
    value, low, high = typer.typed_all([node.this, node.args["low"], node.args["high"]])
    above = conditions.compare(">=", value, low)
    below = conditions.compare("<=", value, high)
    both = conditions.connect("AND", [above, below])
    label = call_label("between", [value, low, high])
    return combined(both.sql, BOOLEAN, [both], label=label, never_null=both.never_null)


def _if(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    if node.args.get("false") is None:
        raise ExpressionRefused(
            "IF takes three arguments",
            found=node.sql(dialect="spark"),
            fix="write if(condition, value, other)",
        )
    test, then, other = typer.typed_all([node.this, node.args["true"], node.args["false"]])
    inner = call_label("IF", [test, then, other])
    label = None if inner is None else f"({inner})"
    value = conditions.if_else([(test, then)], other, "IF")
    return cast(value, value.type, label=label)


def _case(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    base = typer.typed(node.this) if node.this is not None else None
    branches = []
    for branch in node.args["ifs"]:
        test = typer.typed(branch.this)
        test = test if base is None else conditions.compare("=", base, test)
        branches.append((test, typer.typed(branch.args["true"])))
    default = node.args.get("default")
    other = None if default is None else typer.typed(default)
    value = conditions.if_else(branches, other, "CASE")
    return cast(value, value.type, label=_case_label(branches, other))


def _cast(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    kind = type_of(node.args["to"])
    if node.args.get("safe"):
        return _casted(typer.typed(node.this), kind, tried_cast)
    if type(node) is exp.Cast and isinstance(node.this, exp.Literal):
        return literals.dated(node.this.name, kind)
    return _casted(typer.typed(node.this), kind)


def _casted(term: TypedSql, kind: SqlType, step: Callable[..., TypedSql] = cast) -> TypedSql:
    word = "CAST" if step is cast else "TRY_CAST"
    label = None if term.label is None else f"{word}({term.label} AS {str(kind).upper()})"
    label = term.label if kind.is_nested else label
    return step(term, kind, label=label or "") if label else _unlabelled(step(term, kind))


def _called(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    assert isinstance(node, exp.Anonymous)
    if node.name.startswith(LITERAL):
        return _suffixed(node)
    if is_update(node):
        return typer.typed(expand_updates(node, typer.typed))
    name = node.name.lower()
    if name in AGGREGATES:
        return _aggregated(typer, name, node)
    if name in CAST_NAMES and len(node.expressions) == 1:
        return cast(typer.typed(node.expressions[0]), CAST_NAMES[name])
    if name not in FUNCTIONS:
        raise unknown_function(name)
    return call_tree(typer, name, node.expressions)


def _aggregated(typer: ExpressionTyper, name: str, node: exp.Expression) -> TypedSql:
    if typer.aggregate is None:
        raise ExpressionRefused(
            f"{name} is an aggregate and has no place here",
            found=node.sql(dialect="spark"),
            fix="use it in agg",
        )
    return typer.aggregate(name, node)


def _with_clause(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    """FILTER, WITHIN GROUP or IGNORE NULLS, which follow an aggregate."""
    inner = node
    while isinstance(inner, _CLAUSES):
        inner = inner.this
    if not isinstance(inner, exp.Anonymous) or inner.name.lower() not in AGGREGATES:
        raise ExpressionRefused(
            "only aggregates take FILTER, WITHIN GROUP and IGNORE NULLS",
            found=node.sql(dialect="spark"),
            fix="leave it out, or write if(condition, value, NULL)",
        )
    return _aggregated(typer, inner.name.lower(), node)


def _extract(typer: ExpressionTyper, node: exp.Expression) -> TypedSql:
    return dates.extracted(node.name, typer.typed(node.expression))


def _unlabelled(term: TypedSql) -> TypedSql:
    return TypedSql(sql=term.sql, type=term.type, columns=term.columns, raises=term.raises)


def _case_label(branches: list[tuple[TypedSql, TypedSql]], other: TypedSql | None) -> str | None:
    parts = [part for branch in branches for part in branch] + ([other] if other else [])
    if any(part.label is None for part in parts):
        return None
    steps = " ".join(f"WHEN {test.label} THEN {value.label}" for test, value in branches)
    last = f" ELSE {other.label}" if other else ""
    return f"CASE {steps}{last} END"


def _span(node: exp.Interval) -> dates.Span:
    unit = node.args.get("unit")
    if not isinstance(unit, exp.Var) or not isinstance(node.this, exp.Literal):
        raise NotNative(
            "an interval is a whole number of one unit here",
            found=node.sql(dialect="spark"),
            fix="write, for example, INTERVAL 1 DAY",
        )
    return dates.span(node.this.name, unit.name)


_NODES: Final[dict[type[exp.Expression], Callable[[ExpressionTyper, exp.Expression], TypedSql]]] = {
    exp.Column: _column,
    exp.Identifier: lambda typer, node: typer.find(node.name),
    exp.Bracket: access_nodes.item,
    exp.Tuple: struct_functions.row,
    exp.Dot: access_nodes.field,
    exp.Paren: lambda typer, node: typer.typed(node.this),
    exp.Literal: _literal,
    exp.Concat: lambda _, node: literals.string("".join(part.name for part in node.expressions)),
    exp.RawString: lambda _, node: literals.string(node.name),
    exp.HexString: lambda _, node: literals.binary(node.name),
    exp.Boolean: lambda _, node: literals.boolean(value=bool(node.this)),
    exp.Null: lambda _walker, _node: null_of(VOID),
    exp.Neg: _negated,
    exp.Not: _not,
    exp.Is: _is,
    exp.NEQ: _differs,
    exp.NullSafeNEQ: _differs,
    exp.And: _joined,
    exp.Or: _joined,
    exp.In: _in,
    exp.Between: _between,
    exp.If: _if,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Anonymous: _called,
    exp.DPipe: lambda typer, node: string_functions.concat(
        "concat", typer.typed_all([node.this, node.expression])
    ),
    exp.Extract: _extract,
    **text_nodes.NODES,
    **dict.fromkeys(_CLAUSES, _with_clause),
}
