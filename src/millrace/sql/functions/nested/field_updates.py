"""`withField` and `dropFields`, which have no form in SQL, written as structs of all fields.

The tree of a column has a call of `UPDATE_FIELD` for them: the struct, the path of the field and
its new value, or no value to drop it. What replaces the call is Spark SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from millrace.sql.typed_sql import NotNative, TypedSql
from millrace.sql.types import SqlType

UPDATE_FIELD: Final = "__update_field"
_WITH_VALUE: Final = 3


def update_tree(
    struct: exp.Expression, path: Sequence[str], value: exp.Expression | None
) -> exp.Expression:
    """The call that stands for an update of a field."""
    names = exp.Tuple(expressions=[exp.Literal.string(name) for name in path])
    arguments = [struct, names] if value is None else [struct, names, value]
    return exp.Anonymous(this=UPDATE_FIELD, expressions=arguments)


def is_update(node: exp.Expression) -> bool:
    """Whether the node is such a call."""
    return isinstance(node, exp.Anonymous) and node.this == UPDATE_FIELD


def expand_updates(
    tree: exp.Expression, typed: Callable[[exp.Expression], TypedSql]
) -> exp.Expression:
    """The tree with structs in place of the calls; `typed` types the structs that they update."""
    if not any(is_update(node) for node in tree.find_all(exp.Anonymous)):
        return tree
    return _expanded(tree.copy(), typed)


def _expanded(node: exp.Expression, typed: Callable[[exp.Expression], TypedSql]) -> exp.Expression:
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expression):
            node.set(key, _expanded(value, typed))
        elif isinstance(value, list):
            parts = [_expanded(v, typed) if isinstance(v, exp.Expression) else v for v in value]
            node.set(key, parts)
    if not is_update(node):
        return node
    struct, names, *values = node.expressions
    path = [str(name.name) for name in names.expressions]
    return _updated(struct, typed(struct).type, path, values[0] if values else None)


def _updated(
    struct: exp.Expression, kind: SqlType, path: list[str], value: exp.Expression | None
) -> exp.Expression:
    name, *rest = path
    if not kind.is_struct:
        raise _left_to_spark(struct, name)
    fields: list[tuple[str, exp.Expression]] = []
    matched = False
    for part in kind.parts:
        field = exp.Dot(
            this=_bracketed(struct), expression=exp.to_identifier(part.name, quoted=True)
        )
        if part.name.lower() != name.lower():
            fields.append((part.name, field))
            continue
        matched = True
        if rest:
            fields.append((name, _updated(field, part.type, rest, value)))
        elif value is not None:
            fields.append((name, value))
    if not matched and rest:
        raise _left_to_spark(struct, name)
    if not matched and value is not None:
        fields.append((name, value))
    if not fields:
        raise _left_to_spark(struct, name)
    arguments = [part for n, v in fields for part in (exp.Literal.string(n), v.copy())]
    return exp.If(
        this=exp.Is(this=_bracketed(struct), expression=exp.Null()),
        true=exp.Null(),
        false=exp.Anonymous(this="named_struct", expressions=arguments),
    )


def _bracketed(struct: exp.Expression) -> exp.Expression:
    plain = isinstance(struct, exp.Column | exp.Dot | exp.Anonymous | exp.Bracket | exp.Paren)
    return struct.copy() if plain else exp.Paren(this=struct.copy())


def _left_to_spark(struct: exp.Expression, name: str) -> NotNative:
    return NotNative(
        f"a change of the field {name} is left to Spark",
        found=struct.sql(dialect="spark"),
        fix="name a field of a struct",
    )
