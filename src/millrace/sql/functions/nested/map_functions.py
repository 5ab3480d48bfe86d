"""Functions of maps, as Spark calculates them: keys are never null and never equal.

Invariant: keys of a new map are checked by DuckDB, which fails for nulls and duplicates as Spark
does with its default `spark.sql.mapKeyDedupPolicy`.
"""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.conditions import to_common_type
from millrace.sql.functions.function_registry import ANY_NUMBER, function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.access import key_like
from millrace.sql.functions.nested.nested_sql import MAPS, has_null, not_here, null_if_any
from millrace.sql.typed_sql import TypedSql, call_label, combined
from millrace.sql.types import BOOLEAN, VOID, SqlType, TypePart, array_of, map_of, struct_of

_TWO: Final = 2


def plain_keys(kind: SqlType) -> bool:
    """Whether two keys are equal in DuckDB exactly if they are in Spark."""
    return kind.is_plain and not kind.is_floating and kind != VOID


@function("map(key, value, ...)", group=MAPS, least=0, most=ANY_NUMBER)
def _map(name: str, args: list[TypedSql]) -> TypedSql:
    if not args or len(args) % 2 or any(part.type.arrow is not None for part in args):
        raise not_here(name, *args)
    keys = to_common_type(args[::2], name)
    values = to_common_type(args[1::2], name)
    if not plain_keys(keys[0].type):
        raise not_here(name, *args)
    kind = map_of(keys[0].type, values[0].type, nulls=not all(part.never_null for part in values))
    listed_keys = ", ".join(part.sql for part in keys)
    listed_values = ", ".join(part.sql for part in values)
    return combined(
        f"map([{listed_keys}], [{listed_values}])",
        kind,
        [*keys, *values],
        label=call_label(name, args),
        raises=True,
        never_null=True,
    )


@function("map_from_arrays(keys, values)", group=MAPS, least=2)
def _map_from_arrays(name: str, args: list[TypedSql]) -> TypedSql:
    keys, values = args
    if not keys.type.is_array or not values.type.is_array or not plain_keys(keys.type.element):
        raise not_here(name, *args)
    kind = map_of(keys.type.element, values.type.element, nulls=values.type.has_nulls)
    sql = nested_sql.named([keys.sql, values.sql], lambda k, v: null_if_any(f"map({k}, {v})", k, v))
    certain = keys.never_null and values.never_null
    label = call_label(name, args)
    return combined(sql, kind, args, label=label, raises=True, never_null=certain)


@function("map_from_entries(entries)", group=MAPS)
def _map_from_entries(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    pairs = x.type.is_array and x.type.element.is_struct
    if not pairs or len(x.type.element.parts) != _TWO:
        raise not_here(name, x)
    key, value = x.type.element.parts
    if not plain_keys(key.type):
        raise not_here(name, x)
    sql = nested_sql.named(
        [x.sql],
        lambda entries: (
            f"CASE WHEN {has_null(entries)} THEN NULL ELSE map_from_entries({entries}) END"
        ),
    )
    kind = map_of(key.type, value.type, nulls=value.nullable)
    certain = x.never_null and not x.type.has_nulls
    return combined(sql, kind, [x], label=call_label(name, args), raises=True, never_null=certain)


def _one_map(name: str, part: TypedSql) -> TypedSql:
    if not part.type.is_map:
        raise not_here(name, part)
    return part


@function("map_keys(m)", group=MAPS)
def _map_keys(name: str, args: list[TypedSql]) -> TypedSql:
    x = _one_map(name, args[0])
    kind = array_of(x.type.key)
    label = call_label(name, args)
    return combined(f"map_keys({x.sql})", kind, [x], label=label, never_null=x.never_null)


@function("map_values(m)", group=MAPS)
def _map_values(name: str, args: list[TypedSql]) -> TypedSql:
    x = _one_map(name, args[0])
    kind = array_of(x.type.value)
    label = call_label(name, args)
    return combined(f"map_values({x.sql})", kind, [x], label=label, never_null=x.never_null)


def entry_type(kind: SqlType) -> SqlType:
    """The struct of a map's key and value."""
    key = TypePart("key", kind.key, nullable=False)
    return struct_of([key, TypePart("value", kind.value, kind.has_nulls)])


@function("map_entries(m)", group=MAPS)
def _map_entries(name: str, args: list[TypedSql]) -> TypedSql:
    x = _one_map(name, args[0])
    kind = array_of(entry_type(x.type), nulls=False)
    label = call_label(name, args)
    return combined(f"map_entries({x.sql})", kind, [x], label=label, never_null=x.never_null)


@function("map_concat(m, n, ...)", group=MAPS, least=0, most=ANY_NUMBER)
def _map_concat(name: str, args: list[TypedSql]) -> TypedSql:
    if not args:
        raise not_here(name)
    for part in args:
        _one_map(name, part)
    maps = to_common_type(args, name)
    if not plain_keys(maps[0].type.key):
        raise not_here(name, *args)

    def written(*sqls: str) -> str:
        entries = ", ".join(f"map_entries({sql})" for sql in sqls)
        return null_if_any(f"map_from_entries(list_concat({entries}))", *sqls)

    sql = nested_sql.named([part.sql for part in maps], written)
    certain = all(part.never_null for part in args)
    label = call_label(name, args)
    return combined(sql, maps[0].type, maps, label=label, raises=True, never_null=certain)


@function("map_contains_key(m, key)", group=MAPS, least=2)
def _map_contains_key(name: str, args: list[TypedSql]) -> TypedSql:
    x = _one_map(name, args[0])
    key = key_like(x.type, args[1])
    if key is None or args[1].type == VOID:
        raise not_here(name, *args)
    sql = nested_sql.named(
        [x.sql, key.sql], lambda m, k: null_if_any(f"list_contains(map_keys({m}), {k})", m, k)
    )
    certain = x.never_null and key.never_null
    return combined(sql, BOOLEAN, [x, key], label=call_label(name, args), never_null=certain)
