"""Structs: made from named values."""

from __future__ import annotations

from sqlglot import exp

from millrace.sql.functions.function_registry import ANY_NUMBER, Typer, function, tree_function
from millrace.sql.functions.nested.nested_sql import STRUCTS, not_here, struct_literal
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined
from millrace.sql.types import STRING, TypePart, struct_of


@function("named_struct(name, value, ...)", group=STRUCTS, least=0, most=ANY_NUMBER)
def _named_struct(name: str, args: list[TypedSql]) -> TypedSql:
    if len(args) % 2 or any(part.type != STRING or part.literal is None for part in args[::2]):
        raise not_here(name, *args)
    names = [str(part.literal) for part in args[::2]]
    return struct_from(names, args[1::2], call_label(name, args))


@tree_function("struct(a, b AS name, ...)", group=STRUCTS, least=0, most=ANY_NUMBER)
def _struct(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    bodies = [node.this if isinstance(node, exp.Alias) else node for node in nodes]
    values = typer.typed_all(bodies)
    names = _field_names(nodes, values)
    labels = [
        f"{value.label} AS {node.alias}" if isinstance(node, exp.Alias) else value.label
        for node, value in zip(nodes, values, strict=True)
    ]
    known = [label for label in labels if label is not None]
    certain = len(known) == len(labels) and all(value.label is not None for value in values)
    return struct_from(names, values, f"{name}({', '.join(known)})" if certain else None)


def row(typer: Typer, node: exp.Expression) -> TypedSql:
    """`(a, b)` is a struct."""
    nodes = list(node.expressions)
    values = typer.typed_all(nodes)
    names = _field_names(nodes, values)
    pairs = [f"{name}, {value.label}" for name, value in zip(names, values, strict=True)]
    certain = all(value.label is not None for value in values)
    return struct_from(names, values, f"named_struct({', '.join(pairs)})" if certain else None)


def _field_names(nodes: list[exp.Expression], values: list[TypedSql]) -> list[str]:
    """The names that Spark gives the fields: those of columns, fields and variables, or col1."""
    return [
        node.alias if isinstance(node, exp.Alias) else known_name(node, value) or f"col{number}"
        for number, (node, value) in enumerate(zip(nodes, values, strict=True), 1)
    ]


def known_name(node: exp.Expression, value: TypedSql) -> str | None:
    """The name of a column, a field or a lambda's variable; None for anything else."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column) and len(node.parts) == 1 and value.columns:
        return value.label or node.name  # The user's name for it, not the plan's.
    if isinstance(node, exp.Column | exp.Identifier):
        return node.name
    return node.expression.name if isinstance(node, exp.Dot) else None


def struct_from(names: list[str], values: list[TypedSql], label: str | None) -> TypedSql:
    """A struct of values under names."""
    if not names or len({name.lower() for name in names}) < len(names) or "" in names:
        raise NotNative(
            "a struct without fields, or with two of one name, is left to Spark",
            found=", ".join(names),
            fix="give each field a name of its own",
        )
    if any(value.type.arrow is not None for value in values):
        raise not_here("struct", *values)
    fields = [
        TypePart(name, value.type, not value.never_null)
        for name, value in zip(names, values, strict=True)
    ]
    sql = struct_literal([(n, v.sql) for n, v in zip(names, values, strict=True)])
    return combined(sql, struct_of(fields), values, label=label, never_null=True)
