"""Pieces of SQL that functions of nested values share.

Invariant: a name inside of a lambda occurs nowhere in the SQL that the lambda's body is made from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from millrace.sql.typed_sql import NotNative, TypedSql, text_literal
from millrace.sql.types import SqlType

ARRAYS: Final = "Arrays"
MAPS: Final = "Maps"
STRUCTS: Final = "Structs"
HIGHER_ORDER: Final = "Higher-order functions"
SqlOverNames = Callable[..., str]
"""SQL over values that have names."""
_SHORT_CHARS: Final = 80
"""SQL up to this length is repeated, if not told otherwise; longer SQL has a name."""


def fresh_name(*sqls: str) -> str:
    """A name for a variable that occurs in none of the texts."""
    names = (f"__item{number}" for number in itertools.count())
    return next(name for name in names if all(name not in sql for sql in sqls))


def each_of(array: str, body: Callable[[str], str], *around: str) -> str:
    """An array of the body's values. `around` is SQL that the body embeds."""
    name = fresh_name(array, *around)
    return f"list_transform({array}, lambda {name}: {body(name)})"


def kept_of(array: str, body: Callable[[str], str], *around: str) -> str:
    """The elements for which the body is true."""
    name = fresh_name(array, *around)
    return f"list_filter({array}, lambda {name}: {body(name)})"


def named(sqls: list[str], body: SqlOverNames, *, short_chars: int = _SHORT_CHARS) -> str:
    """The body over SQL that is evaluated once each, unless it is short."""
    if not sqls:
        return body()
    first, rest = sqls[0], sqls[1:]
    if len(first) <= short_chars:
        return named(rest, lambda *names: body(first, *names), short_chars=short_chars)
    name = fresh_name(*sqls, body(*("" for _ in sqls)))
    inner = named(rest, lambda *names: body(name, *names), short_chars=short_chars)
    return f"list_extract(list_transform([{first}], lambda {name}: {inner}), 1)"


def null_if_any(sql: str, *tests: str) -> str:
    """SQL that is null where one of the values is."""
    missing = " OR ".join(f"{test} IS NULL" for test in tests)
    return f"CASE WHEN {missing} THEN NULL ELSE {sql} END"


def has_null(array: str) -> str:
    """Whether an element is null."""
    return f"(list_count({array}) < len({array}))"


def field(sql: str, name: str) -> str:
    """A field of a struct."""
    return f"struct_extract({sql}, {text_literal(name)})"


def struct_literal(fields: list[tuple[str, str]]) -> str:
    """A struct of named values."""
    return "{" + ", ".join(f"{text_literal(name)}: {sql}" for name, sql in fields) + "}"


def order_key(sql: str, kind: SqlType) -> str:
    """A value that DuckDB orders as Spark orders this one: nulls inside of it come first."""
    if kind.is_struct:
        fields = []
        for number, part in enumerate(kind.parts):
            value = field(sql, part.name)
            fields.append((f"n{number}", f"({value} IS NOT NULL)"))
            fields.append((f"k{number}", order_key(value, part.type)))
        return struct_literal(fields)
    if kind.is_array:
        return each_of(
            sql,
            lambda name: struct_literal(
                [("n", f"({name} IS NOT NULL)"), ("k", order_key(name, kind.element))]
            ),
        )
    return sql


def is_ordered(kind: SqlType) -> bool:
    """Whether Spark compares values of the type: all but maps, and what is only passed on."""
    if kind.is_map or kind.arrow is not None:
        return False
    return all(is_ordered(part.type) for part in kind.parts)


def has_floating(kind: SqlType) -> bool:
    """Whether it is, or has in it, a float or double."""
    return kind.is_floating or any(has_floating(part.type) for part in kind.parts)


def not_here(name: str, *parts: TypedSql) -> NotNative:
    """The refusal of a call whose types are left to Spark."""
    shown = ", ".join(f"{part.label or 'a value'} of type {part.type}" for part in parts)
    return NotNative(
        f"{name} of these types is left to Spark", found=shown, fix="cast the arguments"
    )
