"""Types the syntax of patterns and bits: `LIKE ANY`, `ILIKE`, `RLIKE`, `a << 2`, `~a`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

from millrace.sql.functions import conditions
from millrace.sql.functions.function_registry import Typer, call
from millrace.sql.functions.texts import text_patterns
from millrace.sql.functions.texts.bit_functions import bitwise, bitwise_not, shift_operator
from millrace.sql.spark_dialect import BitwiseUnsignedShift
from millrace.sql.typed_sql import ExpressionRefused, TypedSql

Node = Callable[[Typer, exp.Expression], TypedSql]


def _like(typer: Typer, node: exp.Expression) -> TypedSql:
    escape = "\\"
    if isinstance(node, exp.Escape):
        escape = node.expression.name
        node = node.this
    if not isinstance(node, exp.Like | exp.ILike) or len(escape) != 1:
        raise ExpressionRefused(
            "ESCAPE takes one character after LIKE",
            found=escape,
            fix="write x LIKE 'a!%' ESCAPE '!'",
        )
    term, negated_too = typer.typed(node.this), bool(node.args.get("negate"))
    ignore_case = isinstance(node, exp.ILike)
    listed = node.expression
    if isinstance(listed, exp.Any | exp.All):
        values = listed.this.expressions or [listed.this.unnest()]
        return text_patterns.like_several(
            term,
            [typer.typed(value) for value in values],
            every=isinstance(listed, exp.All),
            negate=negated_too,
            ignore_case=ignore_case,
        )
    like = text_patterns.ilike if ignore_case else conditions.like
    matches = like(term, typer.typed(listed), escape)
    return conditions.negate_condition(matches) if negated_too else matches


def _rlike(typer: Typer, node: exp.Expression) -> TypedSql:
    return call("rlike", [typer.typed(node.this), typer.typed(node.expression)])


def _between_bits(symbol: str) -> Node:
    def build(typer: Typer, node: exp.Expression) -> TypedSql:
        return bitwise(symbol, typer.typed(node.this), typer.typed(node.expression))

    return build


def _moved_bits(symbol: str) -> Node:
    def build(typer: Typer, node: exp.Expression) -> TypedSql:
        return shift_operator(symbol, typer.typed(node.this), typer.typed(node.expression))

    return build


NODES: Final[dict[type[exp.Expression], Node]] = {
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _like,
    exp.RegexpLike: _rlike,
    exp.BitwiseNot: lambda typer, node: bitwise_not(typer.typed(node.this)),
    exp.BitwiseAnd: _between_bits("&"),
    exp.BitwiseOr: _between_bits("|"),
    exp.BitwiseXor: _between_bits("^"),
    exp.BitwiseLeftShift: _moved_bits("<<"),
    exp.BitwiseRightShift: _moved_bits(">>"),
    BitwiseUnsignedShift: _moved_bits(">>>"),
}
