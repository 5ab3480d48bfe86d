"""Takes values out of arrays, maps and structs: `a[0]`, `m['k']`, `s.f`, `element_at`.

Invariant: an index outside of an array fails where Spark in ANSI mode fails. A key that a map does
not have gives null.
"""

from __future__ import annotations

from typing import Final

import pyarrow.types as pt

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.nested_sql import ARRAYS, not_here
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.typed_sql import (
    ExpressionRefused,
    TypedSql,
    call_label,
    combined,
    text_literal,
)
from millrace.sql.types import BYTE, INT, SHORT, STRING, SqlType, array_of, common, from_arrow

INDEXES: Final = (BYTE, SHORT, INT)


def field_of(term: TypedSql, name: str) -> TypedSql:
    """A field of a struct, of each struct in an array, or the value of a map's key."""
    kind = term.type
    label = None if term.label is None else f"{term.label}.{name}"
    if kind.arrow is not None and pt.is_struct(kind.arrow):
        return _passed_on_field(term, name, label)
    if kind.is_map and kind.key == STRING:
        key = TypedSql(sql=text_literal(name), type=STRING, label=name, never_null=True)
        value = _map_value(term, key)
        return combined(value, kind.value, [term], label=f"{term.label}[{name}]")
    of_array = kind.is_array and kind.element.is_struct
    if not kind.is_struct and not of_array:
        raise ExpressionRefused(
            "a field of a column cannot be named",
            found=f"{name} of {term.label or 'a value'}, which has the type {kind}",
            fix="take it from a struct",
        )
    fields = kind.element.parts if of_array else kind.parts
    names = [part.name for part in fields]
    actual = _matching_name(term, name, names)
    part = fields[names.index(actual)]
    if of_array:
        sql = nested_sql.each_of(term.sql, lambda item: nested_sql.field(item, actual))
        nulls = part.nullable or kind.has_nulls
        return combined(sql, array_of(part.type, nulls=nulls), [term], label=label)
    certain = term.never_null and not part.nullable
    sql = nested_sql.field(term.sql, actual)
    return combined(sql, part.type, [term], label=label, never_null=certain)


def _passed_on_field(term: TypedSql, name: str, label: str | None) -> TypedSql:
    """A field of a struct that has other fields which Spark does not know."""
    arrow = term.type.arrow
    assert arrow is not None
    actual = _matching_name(term, name, [child.name for child in arrow])
    kind = from_arrow(arrow.field(actual).type)
    if kind.arrow is not None:
        raise not_here(f"the field {name}", TypedSql(sql=term.sql, type=kind, label=label))
    return combined(nested_sql.field(term.sql, actual), kind, [term], label=label)


def _matching_name(term: TypedSql, name: str, names: list[str]) -> str:
    matches = [known for known in names if known.lower() == name.lower()]
    if len(matches) != 1:
        raise ExpressionRefused(
            f"{term.label or 'the value'} has no field {name}"
            if not matches
            else f"the field {name} is ambiguous",
            found=f"fields {', '.join(names)}",
            fix="name one of these",
        )
    return matches[0]


def item_of(term: TypedSql, index: TypedSql) -> TypedSql:
    """`a[0]`, `m['k']` and `s['f']`."""
    kind = term.type
    label = _bracket_label(term, index)
    if kind.is_struct or (kind.is_array and kind.element.is_struct and index.type == STRING):
        if not isinstance(index.literal, str):
            raise not_here("[]", term, index)
        return field_of(term, index.literal)
    if kind.is_map:
        return combined(_map_value(term, index), kind.value, [term, index], label=label)
    if not kind.is_array or index.type not in INDEXES:
        raise not_here("[]", term, index)

    def written(array: str, at: str) -> str:
        stop = _outside(at, array, "use get(array, index) to take null instead")
        stop = stop if ansi else "NULL"
        value = f"list_extract({array}, CAST({at} AS BIGINT) + 1)"
        within = f"CASE WHEN {at} < 0 OR {at} >= len({array}) THEN {stop} ELSE {value} END"
        return nested_sql.null_if_any(within, array, at)

    ansi = in_ansi_mode()
    certain = ansi and term.never_null and index.never_null and not kind.has_nulls
    sql = nested_sql.named([term.sql, index.sql], written)
    return combined(sql, kind.element, [term, index], label=label, raises=ansi, never_null=certain)


def _outside(at: str, array: str, fix: str) -> str:
    return (
        f"error(concat('the index ', {at}, ' is outside of the array of ', len({array}), "
        f"' elements; {fix}'))"
    )


def _bracket_label(term: TypedSql, index: TypedSql) -> str | None:
    if term.label is None or index.label is None:
        return None
    return f"{term.label}[{index.label}]"


def _map_value(term: TypedSql, key: TypedSql) -> str:
    wanted = key_like(term.type, key)
    if wanted is None:
        raise not_here("[]", term, key)
    return f"map_extract_value({term.sql}, {wanted.sql})"


def key_like(kind: SqlType, key: TypedSql) -> TypedSql | None:
    """The key in the type of the map's keys; None if Spark compares them in another way."""
    if not kind.key.is_plain or kind.key.is_floating or common(kind.key, key.type) != kind.key:
        return None
    return cast(key, kind.key)


@function("element_at(a, position); try_element_at(a, position)", group=ARRAYS, least=2)
def _element_at(name: str, args: list[TypedSql]) -> TypedSql:
    term, at = args
    label = call_label(name, args)
    if term.type.is_map:
        return combined(_map_value(term, at), term.type.value, args, label=label)
    if not term.type.is_array or at.type not in INDEXES:
        raise not_here(name, *args)
    strict = name == "element_at" and in_ansi_mode()
    never_zero = isinstance(at.literal, int) and at.literal != 0

    def written(array: str, at: str) -> str:
        zero = "error('the index 0 is invalid; the first element has the index 1')"
        value = f"list_extract({array}, {at})"
        stop = _outside(at, array, "use try_element_at to take null instead")
        beyond = f"WHEN abs(CAST({at} AS BIGINT)) > len({array}) THEN {stop if strict else 'NULL'}"
        within = f"CASE WHEN {at} = 0 THEN {zero} {beyond} ELSE {value} END"
        return nested_sql.null_if_any(within, array, at)

    certain = strict and term.never_null and at.never_null and not term.type.has_nulls
    sql = nested_sql.named([term.sql, at.sql], written)
    raises = strict or not never_zero
    return combined(sql, term.type.element, args, label=label, raises=raises, never_null=certain)


@function("get(a, index)", group=ARRAYS, least=2)
def _get(name: str, args: list[TypedSql]) -> TypedSql:
    term, at = args
    if not term.type.is_array or at.type not in INDEXES:
        raise not_here(name, *args)
    value = (
        f"CASE WHEN {at.sql} >= 0 THEN list_extract({term.sql}, CAST({at.sql} AS BIGINT) + 1) END"
    )
    return combined(value, term.type.element, args, label=call_label(name, args))
