"""Casts of arrays, maps and structs, part by part, and their text.

Invariant: parts are cast by the rules of plain casts; a pair of parts that is left to Spark leaves
the whole cast to Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from millrace.sql.functions.nested import nested_sql
from millrace.sql.typed_sql import NotNative, TypedSql, combined
from millrace.sql.types import BINARY, STRING, VOID, SqlType, with_nulls


class CastParts(Protocol):
    """How a part is cast."""

    def __call__(self, term: TypedSql, to: SqlType) -> TypedSql:
        """The term as another type."""


_NO_TEXT: Final = (BINARY,)
"""Spark writes them in another way inside of nested values."""


def cast_nested(term: TypedSql, to: SqlType, cast: CastParts, label: str | None) -> TypedSql:
    """A cast from or to a nested type."""
    kind = term.type
    if with_nulls(kind) == with_nulls(to):
        return replace(term, type=to, label=label, literal=None)
    if to == STRING:
        sql, raises = _text(term.sql, kind, cast)
    elif kind.name == to.name and len(kind.parts) == len(to.parts):
        sql, raises = _WRITERS[kind.name](term.sql, kind, to, cast)
    else:
        raise NotNative(
            f"a cast of {kind} to {to} is left to Spark", found=term.label or "", fix="cast parts"
        )
    return combined(sql, to, [term], label=label, raises=raises, never_null=term.never_null)


def _part(sql: str, kind: SqlType, to: SqlType, cast: CastParts) -> tuple[str, bool]:
    term = cast(TypedSql(sql=sql, type=kind), to)
    return term.sql, term.raises


def _array(sql: str, kind: SqlType, to: SqlType, cast: CastParts) -> tuple[str, bool]:
    name = nested_sql.fresh_name(sql)
    body, raises = _part(name, kind.element, to.element, cast)
    return f"list_transform({sql}, lambda {name}: {body})", raises


def _map(sql: str, kind: SqlType, to: SqlType, cast: CastParts) -> tuple[str, bool]:
    same_keys = with_nulls(kind.key) == with_nulls(to.key)
    if not same_keys and not (kind.key.is_integer and (to.key.is_integer or to.key == STRING)):
        raise NotNative(f"a cast of {kind} to {to} is left to Spark", fix="keep the type of keys")
    name = nested_sql.fresh_name(sql)
    key, key_raises = _part(name, kind.key, to.key, cast)
    value, value_raises = _part(name, kind.value, to.value, cast)
    keys = f"list_transform(map_keys({sql}), lambda {name}: {key})"
    values = f"list_transform(map_values({sql}), lambda {name}: {value})"
    return f"map({keys}, {values})", key_raises or value_raises


def _struct(sql: str, kind: SqlType, to: SqlType, cast: CastParts) -> tuple[str, bool]:
    raises = False
    fields = []
    for old, new in zip(kind.parts, to.parts, strict=True):
        value, fails = _part(nested_sql.field(sql, old.name), old.type, new.type, cast)
        fields.append((new.name, value))
        raises = raises or fails
    return nested_sql.null_if_any(nested_sql.struct_literal(fields), sql), raises


_WRITERS: Final = {"array": _array, "map": _map, "struct": _struct}


def _text(sql: str, kind: SqlType, cast: CastParts) -> tuple[str, bool]:
    """Spark's text of a value: `[1, null]`, `{a -> 1}`, `{1, x}`."""
    if kind.is_array:
        name = nested_sql.fresh_name(sql)
        body, raises = _item_text(name, kind.element, cast)
        items = f"list_transform({sql}, lambda {name}: {body})"
        return _joined(items, sql, "[", "]"), raises
    if kind.is_map:
        name = nested_sql.fresh_name(sql)
        key, key_raises = _item_text(nested_sql.field(name, "key"), kind.key, cast)
        value, value_raises = _item_text(nested_sql.field(name, "value"), kind.value, cast)
        items = f"list_transform(map_entries({sql}), lambda {name}: {key} || ' -> ' || {value})"
        return _joined(items, sql, "{", "}"), key_raises or value_raises
    if kind.is_struct:
        texts = [
            _item_text(nested_sql.field(sql, part.name), part.type, cast) for part in kind.parts
        ]
        listed = " || ', ' || ".join(text for text, _ in texts)
        sql = nested_sql.null_if_any(f"'{{' || {listed} || '}}'", sql)
        return sql, any(raises for _, raises in texts)
    if kind in _NO_TEXT:
        raise NotNative(f"the text of {kind} inside of nested values is left to Spark", fix="cast")
    return _part(sql, kind, STRING, cast)


def _item_text(sql: str, kind: SqlType, cast: CastParts) -> tuple[str, bool]:
    if kind == VOID:
        return "'null'", False
    text, raises = _text(sql, kind, cast)
    return f"coalesce({text}, 'null')", raises


def _joined(items: str, whole: str, opened: str, closed: str) -> str:
    joined = f"'{opened}' || coalesce(array_to_string({items}, ', '), '') || '{closed}'"
    return nested_sql.null_if_any(joined, whole)
