"""Takes conditions apart and writes them over other columns, for the planner. Pure.

Invariant: the parts of a condition are all true exactly for the rows for which the condition is
true, and a condition over other columns has the same value for the same row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import Expression, expression_of
from millrace.sql.functions.casts import cast
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import operands, read
from millrace.sql.typed_sql import ExpressionRefused
from millrace.sql.types import SqlType

_PARTS_MAX: Final = 64
"""Of more conditions, moving each of them by itself is not worth a step of the plan for each."""
_CALCULATED: Final[Mapping[type[exp.Expression], Callable[[int, int], int]]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}
_INTEGER_MAX: Final = 2**31 - 1
_NULL_COMPARED: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.Between)
"""Conditions that are not true if a value is null."""
_NULL_PASSED_ON: Final = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Paren)
_NULL_PASSED_ON_BY: Final = frozenset(
    {"abs", "upper", "lower", "length", "trim", "substr", "substring", "year", "month", "day"}
)


def parts_of(condition: Expression, schema: pa.Schema) -> list[Expression]:
    """The parts of a condition that are joined by AND, in their order.

    Sums of literals are calculated: `year = 2001 + 1` cannot fail, and can be guessed.
    """
    return [_folded(part, schema) for part in _parts(condition, schema)]


def _parts(condition: Expression, schema: pa.Schema) -> list[Expression]:
    if "AND" not in condition.text.upper():
        return [condition]
    trees = operands(read(condition.text), exp.And, through_brackets=True)
    if not 1 < len(trees) <= _PARTS_MAX:
        return [condition]
    try:
        parts = [typed_expression(tree, schema) for tree in trees]
    except ExpressionRefused:
        return [condition]
    named = frozenset(name for part in parts for name in part.columns)
    return parts if named == condition.columns else [condition]


def _folded(part: Expression, schema: pa.Schema) -> Expression:
    if not any(symbol in part.text for symbol in "+-*"):
        return part
    tree = read(part.text)
    if tree.find(*_CALCULATED) is None:
        return part
    try:
        folded = typed_expression(tree.transform(_calculated), schema)
        same = typed_expression(tree, schema).sql == part.sql
    except ExpressionRefused:
        return part
    is_safer = same and not folded.raises and folded.columns == part.columns
    return folded if is_safer and folded.type == part.type else part


def _calculated(tree: exp.Expression) -> exp.Expression:
    """A sum, difference or product of integers as its value, if that is an integer too."""
    value = _integer(tree) if isinstance(tree, tuple(_CALCULATED)) else None
    if value is None:
        return tree
    literal = exp.Literal.number(abs(value))
    return exp.Paren(this=exp.Neg(this=literal)) if value < 0 else literal


def _integer(tree: exp.Expression) -> int | None:
    """The value of literals and what is calculated of them; None if it may not be an integer."""
    value: int | None = None
    if isinstance(tree, exp.Paren):
        return _integer(tree.this)
    if isinstance(tree, exp.Literal) and not tree.is_string and tree.name.isdecimal():
        value = int(tree.name)
    elif isinstance(tree, exp.Neg):
        inner = _integer(tree.this)
        value = None if inner is None else -inner
    elif type(tree) in _CALCULATED:
        left, right = _integer(tree.this), _integer(tree.expression)
        if left is not None and right is not None:
            value = _CALCULATED[type(tree)](left, right)
    return value if value is not None and abs(value) <= _INTEGER_MAX else None


def all_true(parts: list[Expression], schema: pa.Schema) -> Expression:
    """The condition that all of these are true, asked in their order."""
    whole, *rest = [exp.Paren(this=read(part.text)) for part in parts]
    tree: exp.Expression = whole if rest else whole.this
    for part in rest:
        tree = exp.And(this=tree, expression=part)
    return typed_expression(tree, schema)


def over_sources(
    condition: Expression, sources: Mapping[str, Expression], schema: pa.Schema
) -> Expression | None:
    """A condition with columns replaced by what they are calculated from, over `schema`.

    None if one of these can fail, or if the text of one is not all there is to it.
    """
    read_here = {name: sources[name] for name in condition.columns}
    if condition.raises or any(source.raises for source in read_here.values()):
        return None
    bare = {name: next(iter(e.columns)) for name, e in read_here.items() if e.is_column}
    if len(bare) == len(read_here):
        return condition.renamed(bare)
    try:
        trees = {name: read(source.text) for name, source in read_here.items()}
        if any(typed_expression(trees[name], schema).sql != e.sql for name, e in read_here.items()):
            return None
        tree = read(condition.text)
        if tree.find(exp.Lambda) is not None:
            return None  # Its variables look like columns.
        replaced = tree.transform(lambda node: _replaced(node, trees))
        moved = typed_expression(replaced, schema)
    except (ExpressionRefused, KeyError):
        return None
    return None if moved.raises else moved


def is_lost_with(condition: Expression, columns: frozenset[str]) -> bool:
    """Whether a condition is certainly not true for a row in which all these columns are null."""
    return _not_true(read(condition.text), frozenset(name.lower() for name in columns))


def equal_sides(condition: Expression) -> tuple[exp.Expression, exp.Expression] | None:
    """The two sides of an equality; None if the condition is none."""
    tree = _without_brackets(read(condition.text))
    return (tree.this, tree.expression) if type(tree) is exp.EQ else None


def typed_expression(
    tree: exp.Expression, schema: pa.Schema, *, cast_to: SqlType | None = None
) -> Expression:
    """A tree over the columns of a schema, cast as an implicit cast is."""
    term = ExpressionTyper(NameScope(schema)).typed(tree)
    if cast_to is not None and cast_to != term.type:
        term = cast(term, cast_to)
    return expression_of(tree, term)


def _replaced(node: exp.Expression, trees: Mapping[str, exp.Expression]) -> exp.Expression:
    if not isinstance(node, exp.Column):
        return node
    if node.table:
        raise KeyError(node.table)  # A field of a struct that is calculated.
    tree = trees[node.name].copy()
    return tree if isinstance(tree, exp.Column) else exp.Paren(this=tree)


def _without_brackets(tree: exp.Expression) -> exp.Expression:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def _not_true(tree: exp.Expression, columns: frozenset[str]) -> bool:
    """Whether a condition is false or null if the columns are null."""
    match _without_brackets(tree):
        case exp.And() as both:
            return any(_not_true(part, columns) for part in operands(both, exp.And))
        case exp.Or() as either:
            return all(_not_true(part, columns) for part in operands(either, exp.Or))
        case exp.Not(this=exp.Is(this=value, expression=exp.Null())):
            return _is_null(value, columns)
        case exp.Not(this=exp.Expression() as inner):
            return _is_null_condition(inner, columns)
        case condition:
            return _is_null_condition(condition, columns)


def _is_null_condition(tree: exp.Expression, columns: frozenset[str]) -> bool:
    """Whether a condition is null if the columns are null."""
    tree = _without_brackets(tree)
    if isinstance(tree, exp.Not):
        return _is_null_condition(tree.this, columns)
    if isinstance(tree, exp.Between):  # One bound that is null leaves the other one.
        return _is_null(tree.this, columns)
    if isinstance(tree, exp.In):
        return not tree.args.get("query") and _is_null(tree.this, columns)
    if isinstance(tree, _NULL_COMPARED):
        return any(_is_null(side, columns) for side in (tree.this, tree.expression))
    return isinstance(tree, exp.Column) and _is_null(tree, columns)


def _is_null(tree: exp.Expression, columns: frozenset[str]) -> bool:
    """Whether a value is null if the columns are null."""
    if isinstance(tree, exp.Column):
        return (tree.table or tree.name).lower() in columns
    if isinstance(tree, exp.Cast):
        return _is_null(tree.this, columns)
    if isinstance(tree, exp.Anonymous) and str(tree.this).lower() in _NULL_PASSED_ON_BY:
        return any(_is_null(argument, columns) for argument in tree.expressions)
    if isinstance(tree, _NULL_PASSED_ON):
        return any(_is_null(part, columns) for part in tree.iter_expressions())
    return False
