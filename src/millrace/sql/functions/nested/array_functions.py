"""Functions of arrays that look at elements one by one, as Spark calculates them."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.conditions import to_common_type
from millrace.sql.functions.function_registry import ANY_NUMBER, function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.access import INDEXES
from millrace.sql.functions.nested.nested_sql import ARRAYS, has_null, not_here, null_if_any
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.typed_sql import TypedSql, call_label, combined, failure
from millrace.sql.types import BOOLEAN, INT, LONG, STRING, VOID, SqlType, array_of, common

_TWO: Final = 2


def array_arguments(name: str, parts: list[TypedSql]) -> None:
    """Leave to Spark what is not an array."""
    if any(not part.type.is_array for part in parts):
        raise not_here(name, *parts)


@function("array(a, b, ...)", group=ARRAYS, least=0, most=ANY_NUMBER)
def _array(name: str, args: list[TypedSql]) -> TypedSql:
    if any(part.type.arrow is not None for part in args):
        raise not_here(name, *args)
    parts = to_common_type(args, name)
    element = parts[0].type if parts else VOID
    kind = array_of(element, nulls=not all(part.never_null for part in parts))
    sql = f"[{', '.join(part.sql for part in parts)}]"
    return combined(sql, kind, parts, label=call_label(name, args), never_null=True)


@function("size(a); cardinality(a); array_size(a)", group=ARRAYS)
def _size(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    if not x.type.is_array and not (x.type.is_map and name != "array_size"):
        raise not_here(name, x)
    sql = f"len({x.sql})" if x.type.is_array else f"cardinality({x.sql})"
    if name != "array_size" and not in_ansi_mode():
        sql = f"coalesce({sql}, -1)"
    return combined(sql, INT, [x], label=call_label(name, args), never_null=x.never_null)


def beside_element(name: str, array: TypedSql, value: TypedSql) -> tuple[TypedSql, TypedSql]:
    """The array and a value in the common type of both."""
    if not array.type.is_array:
        raise not_here(name, array, value)
    kind = common(array.type.element, value.type)
    if kind is None or kind.arrow is not None or kind == VOID:
        raise not_here(name, array, value)
    return cast(array, array_of(kind, nulls=array.type.has_nulls)), cast(value, kind)


def compared_element(name: str, array: TypedSql, value: TypedSql) -> tuple[TypedSql, TypedSql]:
    """As `beside_element`, for values that are compared."""
    x, v = beside_element(name, array, value)
    if not nested_sql.is_ordered(v.type) or value.type == VOID:
        raise not_here(name, array, value)
    return x, v


@function("array_contains(a, value)", group=ARRAYS, least=2)
def _array_contains(name: str, args: list[TypedSql]) -> TypedSql:
    x, v = compared_element(name, *args)

    def written(array: str, value: str) -> str:
        return null_if_any(
            f"CASE WHEN list_contains({array}, {value}) THEN true "
            f"WHEN {has_null(array)} THEN NULL ELSE false END",
            array,
            value,
        )

    certain = x.never_null and v.never_null and not x.type.has_nulls
    sql = nested_sql.named([x.sql, v.sql], written)
    return combined(sql, BOOLEAN, [x, v], label=call_label(name, args), never_null=certain)


@function("array_position(a, value)", group=ARRAYS, least=2)
def _array_position(name: str, args: list[TypedSql]) -> TypedSql:
    x, v = compared_element(name, *args)
    sql = nested_sql.named(
        [x.sql, v.sql],
        lambda array, value: null_if_any(
            f"coalesce(list_position({array}, {value}), 0)", array, value
        ),
    )
    certain = x.never_null and v.never_null
    return combined(sql, LONG, [x, v], label=call_label(name, args), never_null=certain)


@function("array_remove(a, value)", group=ARRAYS, least=2)
def _array_remove(name: str, args: list[TypedSql]) -> TypedSql:
    x, v = compared_element(name, *args)

    def written(array: str, value: str) -> str:
        kept = nested_sql.kept_of(array, lambda item: f"{item} IS DISTINCT FROM {value}", value)
        return null_if_any(kept, array, value)

    sql = nested_sql.named([x.sql, v.sql], written)
    certain = x.never_null and v.never_null
    return combined(sql, x.type, [x, v], label=call_label(name, args), never_null=certain)


@function("array_append(a, value); array_prepend(a, value)", group=ARRAYS, least=2)
def _array_append(name: str, args: list[TypedSql]) -> TypedSql:
    x, v = beside_element(name, *args)
    parts = ("{0}", "[{1}]") if name == "array_append" else ("[{1}]", "{0}")
    joined = f"list_concat({parts[0]}, {parts[1]})"
    sql = nested_sql.named(
        [x.sql, v.sql], lambda array, value: null_if_any(joined.format(array, value), array)
    )
    kind = array_of(v.type, nulls=x.type.has_nulls or not v.never_null)
    return combined(sql, kind, [x, v], label=call_label(name, args), never_null=x.never_null)


@function("array_insert(a, position, value)", group=ARRAYS, least=3)
def _array_insert(name: str, args: list[TypedSql]) -> TypedSql:
    x, v = beside_element(name, args[0], args[2])
    at = args[1]
    if at.type not in INDEXES:
        raise not_here(name, *args)

    def written(array: str, wide: str, value: str) -> str:
        position = f"CAST({wide} AS BIGINT)"
        zero = failure("array_insert: the index 0 is invalid; the first element has the index 1")
        front = f"list_resize({array}, {position} - 1)"
        back = f"list_slice({array}, {position}, len({array}))"
        after = f"list_concat({front}, [{value}], {back})"
        split = f"len({array}) + {position} + 1"
        middle = (
            f"list_concat(list_slice({array}, 1, {split}), [{value}], "
            f"list_slice({array}, {split} + 1, len({array})))"
        )
        gap = f"list_resize(list_slice({array}, 1, 0), -{position} - len({array}) - 1)"
        before = f"list_concat([{value}], {gap}, {array})"
        sql = (
            f"CASE WHEN {position} = 0 THEN {zero} WHEN {position} > 0 THEN {after} "
            f"WHEN {split} >= 0 THEN {middle} ELSE {before} END"
        )
        return null_if_any(sql, array, wide)

    sql = nested_sql.named([x.sql, at.sql, v.sql], written)
    parts = [x, at, v]
    return combined(sql, array_of(v.type), parts, label=call_label(name, args), raises=True)


@function("array_compact(a)", group=ARRAYS)
def _array_compact(name: str, args: list[TypedSql]) -> TypedSql:
    array_arguments(name, args)
    x = args[0]
    sql = nested_sql.kept_of(x.sql, lambda item: f"{item} IS NOT NULL")
    kind = array_of(x.type.element, nulls=False)
    return combined(sql, kind, [x], label=call_label(name, args), never_null=x.never_null)


@function("array_join(a, separator, null_text)", group=ARRAYS, least=2, most=3)
def _array_join(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    array_arguments(name, [x])
    if x.type.element != STRING or any(part.type != STRING for part in args[1:]):
        raise not_here(name, *args)

    def written(array: str, *texts: str) -> str:
        items = array
        if len(texts) == _TWO:
            items = nested_sql.each_of(
                array, lambda item: f"coalesce({item}, {texts[1]})", texts[1]
            )
        joined = f"coalesce(array_to_string({items}, {texts[0]}), '')"
        if args[1].literal is None:  # DuckDB needs a separator that is written out.
            joined = _joined_by(items, texts[0])
        return null_if_any(joined, array, *texts)

    sql = nested_sql.named([part.sql for part in args], written)
    return combined(sql, STRING, args, label=call_label(name, args))


def _joined_by(items: str, separator: str) -> str:
    name = nested_sql.fresh_name(items, separator)
    known = f"list_filter({items}, lambda {name}: {name} IS NOT NULL)"
    step = f"lambda {name}, {name}_next: {name} || {separator} || {name}_next"
    return f"CASE WHEN list_count({items}) = 0 THEN '' ELSE list_reduce({known}, {step}) END"


@function("array_repeat(value, count)", group=ARRAYS, least=2)
def _array_repeat(name: str, args: list[TypedSql]) -> TypedSql:
    value, count = args
    if count.type not in INDEXES or value.type.arrow is not None:
        raise not_here(name, *args)

    def written(item: str, times: str) -> str:
        numbers = f"range(0, greatest(CAST({times} AS BIGINT), 0))"
        return null_if_any(nested_sql.each_of(numbers, lambda _: item, item), times)

    sql = nested_sql.named([value.sql, count.sql], written)
    kind = array_of(value.type, nulls=not value.never_null)
    certain = count.never_null
    return combined(sql, kind, args, label=call_label(name, args), never_null=certain)


@function("slice(a, start, size)", group=ARRAYS, least=3)
def _slice(name: str, args: list[TypedSql]) -> TypedSql:
    x, start, size = args
    array_arguments(name, [x])
    if start.type not in INDEXES or size.type not in INDEXES:
        raise not_here(name, *args)

    def written(array: str, at: str, count: str) -> str:
        begin = f"CAST({at} AS BIGINT)"
        first = f"(CASE WHEN {begin} < 0 THEN len({array}) + {begin} + 1 ELSE {begin} END)"
        part = f"list_slice({array}, {first}, {first} + {count} - 1)"
        empty = f"list_slice({array}, 1, 0)"
        sql = (
            f"CASE WHEN {at} = 0 THEN {failure('slice: the first element has the index 1')} "
            f"WHEN {count} < 0 THEN {failure('slice: the size is negative')} "
            f"WHEN {first} <= 0 OR {count} = 0 OR {first} > len({array}) THEN {empty} "
            f"ELSE {part} END"
        )
        return null_if_any(sql, array, at, count)

    sql = nested_sql.named([x.sql, start.sql, size.sql], written)
    certain = all(part.never_null for part in args)
    return combined(
        sql, x.type, args, label=call_label(name, args), raises=True, never_null=certain
    )


@function("flatten(a)", group=ARRAYS)
def _flatten(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    array_arguments(name, args)
    if not x.type.element.is_array:
        raise not_here(name, x)
    sql = nested_sql.named(
        [x.sql],
        lambda array: f"CASE WHEN {has_null(array)} THEN NULL ELSE flatten({array}) END",
    )
    certain = x.never_null and not x.type.has_nulls
    kind = x.type.element
    return combined(sql, kind, [x], label=call_label(name, args), never_null=certain)


@function("reverse(a)", group=ARRAYS)
def _reverse(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    label = call_label(name, args)
    if x.type.is_array:
        sql = f"list_reverse({x.sql})"
        return combined(sql, x.type, [x], label=label, never_null=x.never_null)
    if x.type != STRING:
        raise not_here(name, x)
    # `reverse` of DuckDB keeps letters with their accents together, Spark's does not.
    sql = f"spark_reverse({x.sql})"
    return combined(sql, STRING, [x], label=label, never_null=x.never_null)


def concat_arrays(name: str, args: list[TypedSql]) -> TypedSql:
    """`concat` of arrays, null if one of them is."""
    parts = to_common_type(args, name)
    kind: SqlType = parts[0].type
    if not kind.is_array or any(part.type.arrow is not None for part in args):
        raise not_here(name, *args)
    sqls = [part.sql for part in parts]
    sql = nested_sql.named(
        sqls, lambda *arrays: null_if_any(f"list_concat({', '.join(arrays)})", *arrays)
    )
    certain = all(part.never_null for part in args)
    return combined(sql, kind, parts, label=call_label(name, args), never_null=certain)
