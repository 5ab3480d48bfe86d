"""JSON that is written with Spark's text. What reads JSON is left to Spark.

Spark reads JSON leniently: quotes of both kinds, text behind the end, numbers written anew. No
engine here agrees with that on every text, so `get_json_object`, `from_json` and their kind are not
in the table.
"""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.nested_sql import STRUCTS, not_here, null_if_any
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined, text_literal
from millrace.sql.types import BOOLEAN, DATE, STRING, VOID, SqlType

_SCALE_MAX: Final = 6
"""Java writes decimals of more digits behind the point as 1E-7."""


@function("to_json(value)", group=STRUCTS, most=2)
def _to_json(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    if not x.type.is_nested or len(args) > 1:
        raise not_here(name, x)
    return combined(_json(x.sql, x.type), STRING, [x], label=call_label(name, args))


def _json(sql: str, kind: SqlType) -> str:
    """The text of a value; null for null."""
    if kind.is_struct:
        fields = []
        for part in kind.parts:
            value = _json(nested_sql.field(sql, part.name), part.type)
            fields.append(f"({_quoted_text(text_literal(part.name))} || ':' || {value})")
        return null_if_any(_joined(f"[{', '.join(fields)}]", "{", "}"), sql)
    if kind.is_array:
        items = nested_sql.each_of(sql, lambda item: _or_null(_json(item, kind.element)))
        return null_if_any(_joined(items, "[", "]"), sql)
    if kind.is_map:
        entry = nested_sql.fresh_name(sql)
        key = nested_sql.field(entry, "key")
        value = _or_null(_json(nested_sql.field(entry, "value"), kind.value))
        body = f"{_map_key(key, kind.key)} || ':' || {value}"
        items = f"list_transform(map_entries({sql}), lambda {entry}: {body})"
        return null_if_any(_joined(items, "{", "}"), sql)
    return _plain(sql, kind)


def _plain(sql: str, kind: SqlType) -> str:
    if kind == STRING:
        return _quoted_text(sql)
    if kind == VOID:
        return "CAST(NULL AS VARCHAR)"
    if kind == DATE:
        return f"('\"' || {cast(TypedSql(sql=sql, type=kind), STRING).sql} || '\"')"
    short = kind.is_decimal and kind.scale <= _SCALE_MAX
    if kind.is_integer or kind == BOOLEAN or short:
        return cast(TypedSql(sql=sql, type=kind), STRING).sql
    raise NotNative(f"the JSON of {kind} is left to Spark", fix="cast it to string first")


def _quoted_text(sql: str) -> str:
    return f"CAST(to_json({sql}) AS VARCHAR)"


def _map_key(sql: str, kind: SqlType) -> str:
    if kind == STRING:
        return _quoted_text(sql)
    if kind.is_integer:
        return f"('\"' || CAST({sql} AS VARCHAR) || '\"')"
    raise NotNative(f"the JSON of keys of type {kind} is left to Spark", fix="cast them to string")


def _or_null(sql: str) -> str:
    return f"coalesce({sql}, 'null')"


def _joined(items: str, opened: str, closed: str) -> str:
    return f"'{opened}' || coalesce(array_to_string({items}, ','), '') || '{closed}'"
