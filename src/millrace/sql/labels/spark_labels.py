"""The names that Spark gives to expressions without AS.

>>> from millrace.sql.parser import read
>>> spark_label(read("sum(amount * 2) / count(*)"))
'(sum((amount * 2)) / count(1))'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sqlglot import exp

from millrace.sql.functions.nested.field_updates import is_update
from millrace.sql.labels.call_labels import (
    call_label,
    window_label,
    with_nulls_label,
    within_group_label,
)
from millrace.sql.parser import LITERAL, canonical
from millrace.sql.spark_dialect import BitwiseUnsignedShift

_BINARY: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "AND",
    exp.Or: "OR",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
    BitwiseUnsignedShift: ">>>",
}
SPARK_NAME: Final = "spark name"
"""The key in `meta` of a tree that stands for another one: the tree that names it."""
OUTER_NAMES: Final = "outer names"
"""The key in `meta` of a subquery: the columns of the query around it that it names."""


def spark_label(tree: exp.Expression) -> str:
    """The name of a column of this expression, if it has no other."""
    if SPARK_NAME in tree.meta:
        return _label(tree.meta[SPARK_NAME])
    bare = tree
    while isinstance(bare, exp.Paren | exp.Cast | exp.TryCast):
        bare = bare.this
    if isinstance(bare, exp.Column) and not isinstance(bare.this, exp.Star):
        return str(bare.name)
    return _label(tree)


def _label(tree: exp.Expression) -> str:
    tree = tree.meta.get(SPARK_NAME, tree)
    symbol = _BINARY.get(type(tree))
    if symbol is not None:
        return f"({_label(tree.this)} {symbol} {_label(tree.expression)})"
    written = _WRITTEN.get(type(tree))
    return written(tree) if written is not None else canonical(tree).replace("`", "")


def _column(tree: exp.Expression) -> str:
    return "1" if isinstance(tree.this, exp.Star) else str(tree.name)


def _negative(tree: exp.Expression) -> str:
    inner = _label(tree.this)
    return f"-{inner}" if isinstance(tree.this, exp.Literal) else f"(- {inner})"


def _case(tree: exp.Expression) -> str:
    subject = None if tree.this is None else _label(tree.this)
    branches = []
    for branch in tree.args["ifs"]:
        test = _label(branch.this)
        test = test if subject is None else f"({subject} = {test})"
        branches.append(f"WHEN {test} THEN {_label(branch.args['true'])}")
    default = tree.args.get("default")
    last = f" ELSE {_label(default)}" if default is not None else ""
    return f"CASE {' '.join(branches)}{last} END"


def _if(tree: exp.Expression) -> str:
    parts = [tree.this, tree.args["true"], tree.args.get("false")]
    return f"(IF({_listed(part for part in parts if part is not None)}))"


def _in(tree: exp.Expression) -> str:
    if not tree.expressions:
        outer = ", ".join(tree.args["query"].meta.get(OUTER_NAMES, ()))
        return f"({_label(tree.this)} IN (listquery({outer})))"
    return f"({_label(tree.this)} IN ({_listed(tree.expressions)}))"


def _cast(tree: exp.Expression) -> str:
    if type(tree) is exp.Cast and isinstance(tree.this, exp.Literal):
        return f"{canonical(tree.args['to']).upper()} '{tree.this.name}'"
    word = "TRY_CAST" if tree.args.get("safe") else "CAST"
    return f"{word}({_label(tree.this)} AS {canonical(tree.args['to']).upper()})"


def _update(tree: exp.Expression) -> str:
    """`withField` and `dropFields`; several in a row are one call."""
    struct, names, *values = tree.expressions
    owner = _label(struct)
    change = _change(owner, [name.name for name in names.expressions], values)
    if is_update(struct):
        return f"{owner.removesuffix(')')}, {change})"
    return f"update_fields({owner}, {change})"


def _change(owner: str, path: list[str], values: list[exp.Expression]) -> str:
    name, *rest = path
    if rest:
        inner = f"{owner}.{name}"
        return f"WithField(update_fields({inner}, {_change(inner, rest, values)}))"
    return f"WithField({_label(values[0])})" if values else "dropfield()"


def _call(tree: exp.Expression) -> str:
    if is_update(tree):
        return _update(tree)
    if tree.name.startswith(LITERAL):
        return str(tree.expressions[0].name)
    assert isinstance(tree, exp.Anonymous)
    return call_label(tree, _label)


def _is(tree: exp.Expression, *, negated: bool = False) -> str:
    if not isinstance(tree.expression, exp.Null):
        return canonical(tree).replace("`", "")
    return f"({_label(tree.this)} IS {'NOT ' if negated else ''}NULL)"


def _not(tree: exp.Expression) -> str:
    inner = tree.this
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        return _is(inner, negated=True)
    return f"(NOT {_label(inner)})"


def _listed(trees: Iterable[exp.Expression]) -> str:
    return ", ".join(map(_label, trees))


def _interval(tree: exp.Expression) -> str:
    unit, amount, sign = tree.args.get("unit"), tree.this, ""
    if isinstance(amount, exp.Neg):
        amount, sign = amount.this, "-"
    if not isinstance(unit, exp.Var) or not isinstance(amount, exp.Literal):
        return canonical(tree).replace("`", "")
    name, count = unit.name.upper().removesuffix("S"), amount.name
    if name == "WEEK" and count.isdigit():
        name, count = "DAY", str(int(count) * 7)
    if name in ("HOUR", "MINUTE", "SECOND") and count.isdigit():
        count = count.rjust(2, "0")
    return f"INTERVAL '{sign}{count}' {name}"


def _like(tree: exp.Expression) -> str:
    label = f"{_label(tree.this)} LIKE {_label(tree.expression)}"
    return f"(NOT {label})" if tree.args.get("negate") else label


_WRITTEN: Final[dict[type[exp.Expression], Callable[[exp.Expression], str]]] = {
    exp.Paren: lambda tree: _label(tree.this),
    exp.Column: _column,
    exp.Star: lambda _: "1",
    exp.Dot: lambda tree: f"{_label(tree.this)}.{tree.expression.name}",
    exp.Literal: lambda tree: str(tree.name),
    exp.Null: lambda _: "NULL",
    exp.Boolean: lambda tree: "true" if tree.this else "false",
    exp.NEQ: lambda tree: f"(NOT ({_label(tree.this)} = {_label(tree.expression)}))",
    exp.Not: _not,
    exp.Is: _is,
    exp.Neg: _negative,
    exp.BitwiseNot: lambda tree: f"~{_label(tree.this)}",
    exp.Distinct: lambda tree: "DISTINCT " + ", ".join(map(_label, tree.expressions)),
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Anonymous: _call,
    exp.RawString: lambda tree: str(tree.name),
    exp.Extract: lambda tree: f"extract({tree.name} FROM {_label(tree.expression)})",
    exp.Escape: lambda tree: f"{_label(tree.this)} ESCAPE '{tree.expression.name}'",
    exp.Case: _case,
    exp.If: _if,
    exp.In: _in,
    exp.Like: _like,
    exp.DPipe: lambda tree: f"concat({_listed([tree.this, tree.expression])})",
    exp.Between: lambda tree: (
        f"between({_listed([tree.this, tree.args['low'], tree.args['high']])})"
    ),
    exp.IgnoreNulls: lambda tree: with_nulls_label(tree, _label),
    exp.RespectNulls: lambda tree: with_nulls_label(tree, _label),
    exp.WithinGroup: lambda tree: within_group_label(tree, _label),
    exp.Window: lambda tree: window_label(tree, _label),
    exp.Interval: _interval,
    exp.Subquery: lambda tree: f"scalarsubquery({', '.join(tree.meta.get(OUTER_NAMES, ()))})",
    exp.Exists: lambda tree: f"exists({', '.join(tree.meta.get(OUTER_NAMES, ()))})",
    exp.Filter: lambda tree: f"{_label(tree.this)} FILTER (WHERE {_label(tree.expression.this)})",
}
