"""Types the syntax that takes values out of others: `a.b.c`, `a[0]`, `f(x).b`."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from millrace.sql.functions.function_registry import Typer
from millrace.sql.functions.nested.access import field_of, item_of
from millrace.sql.typed_sql import WRITTEN, ExpressionRefused, TypedSql


def column(typer: Typer, node: exp.Expression) -> TypedSql:
    """A column or a variable, and fields of it."""
    assert isinstance(node, exp.Column)
    if isinstance(node.this, exp.Star):
        raise ExpressionRefused(
            "* has no place here", found=node.sql(dialect="spark"), fix="name the columns"
        )
    first, *fields = [part.name for part in node.parts]
    term = typer.find(first)
    written = node.meta_get(WRITTEN)
    term = term if written is None else replace(term, label=written)
    for name in fields:
        term = field_of(term, name)
    return term


def item(typer: Typer, node: exp.Expression) -> TypedSql:
    """`a[0]`."""
    if len(node.expressions) != 1 or isinstance(node.expressions[0], exp.Slice):
        raise ExpressionRefused(
            "[] takes one index or key", found=node.sql(dialect="spark"), fix="write a[0]"
        )
    return item_of(typer.typed(node.this), typer.typed(node.expressions[0]))


def field(typer: Typer, node: exp.Expression) -> TypedSql:
    """`(a).b`."""
    if not isinstance(node.expression, exp.Identifier):
        raise ExpressionRefused(
            "a field has a name", found=node.sql(dialect="spark"), fix="write s.field"
        )
    return field_of(typer.typed(node.this), node.expression.name)
