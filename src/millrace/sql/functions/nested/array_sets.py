"""Arrays as sets, in order, and side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import ANY_NUMBER, Typer, function, tree_function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.array_functions import array_arguments
from millrace.sql.functions.nested.nested_sql import ARRAYS, has_null, not_here, null_if_any
from millrace.sql.functions.nested.struct_functions import known_name
from millrace.sql.typed_sql import NotNative, TypedSql, as_type, call_label, combined
from millrace.sql.types import BOOLEAN, VOID, SqlType, TypePart, array_of, common, struct_of

SHORT_ARRAY: Final = 64
"""Up to this many elements, looking at all of them for each is faster than sorting."""
_IN_OTHER: Final = "IS NOT NULL"


def _once(array: str, other: str = "", test: str = "") -> str:
    """The first of equal elements each; nulls are equal to each other.

    `test` says what holds for their position in the other array. Long arrays are sorted, as looking
    for each element in all others takes a time that grows with the square of the length.
    """
    name = nested_sql.fresh_name(array, other)
    beside = f" AND list_position({other}, {name}) {test}" if other else ""
    looked = (
        f"list_filter({array}, lambda {name}, {name}_at: "
        f"list_position({array}, {name}) = {name}_at{beside})"
    )
    count = f"len({array}) + len({other})" if other else f"len({array})"
    many = _once_sorted(array, other, kept_if_common=test == _IN_OTHER)
    return f"CASE WHEN {count} <= {SHORT_ARRAY} THEN {looked} ELSE {many} END"


def _once_sorted(array: str, other: str, *, kept_if_common: bool) -> str:
    """The same, from elements of both arrays in order, those of the other one first."""
    item = nested_sql.fresh_name(array, other)
    both = (
        f"list_transform({array}, lambda {item}, {item}_at: "
        f"{{'v': {item}, 'ours': true, 'at': {item}_at}})"
    )
    if other:
        theirs = (
            f"list_transform({other}, lambda {item}: "
            f"{{'v': {item}, 'ours': false, 'at': CAST(0 AS BIGINT)}})"
        )
        both = f"list_concat({theirs}, {both})"

    def positions(ordered: str) -> str:
        before = f"list_extract({ordered}, {item}_at - 1)"
        same = f"{before}.v IS NOT DISTINCT FROM {item}.v"
        test = f"({item}_at = 1 OR NOT ({same}))"
        if kept_if_common:
            test = f"{item}_at > 1 AND {same} AND NOT {before}.ours"
        kept = f"list_filter({ordered}, lambda {item}, {item}_at: {item}.ours AND {test})"
        return f"list_sort(list_transform({kept}, lambda {item}: {item}.at))"

    return f"list_select({array}, {nested_sql.named([f'list_sort({both})'], positions)})"


def _comparable(name: str, parts: list[TypedSql]) -> list[TypedSql]:
    """Arrays in their common type, whose elements Spark compares."""
    array_arguments(name, parts)
    kind = VOID
    for part in parts:
        wider = common(kind, part.type.element)
        if wider is None or not nested_sql.is_ordered(wider):
            raise not_here(name, *parts)
        kind = wider
    if kind == VOID:
        raise not_here(name, *parts)
    return [cast(part, array_of(kind, nulls=part.type.has_nulls)) for part in parts]


def _as_sets(name: str, parts: list[TypedSql]) -> list[TypedSql]:
    """Arrays whose elements are made distinct; Spark writes -0.0 as 0.0 in them."""
    arrays = _comparable(name, parts)
    kind = arrays[0].type.element
    if kind.is_nested and nested_sql.has_floating(kind):
        raise not_here(name, *parts)
    if not kind.is_floating:
        return arrays
    return [
        replace(array, sql=nested_sql.each_of(array.sql, lambda item: _positive_zero(item, kind)))
        for array in arrays
    ]


def _positive_zero(item: str, kind: SqlType) -> str:
    return f"CASE WHEN {item} = 0 THEN {as_type('0', kind)} ELSE {item} END"


@function("array_distinct(a)", group=ARRAYS)
def _array_distinct(name: str, args: list[TypedSql]) -> TypedSql:
    (x,) = _as_sets(name, args)
    sql = nested_sql.named([x.sql], _once)
    return combined(sql, x.type, [x], label=call_label(name, args), never_null=x.never_null)


@function("array_union(a, b)", group=ARRAYS, least=2)
def _array_union(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = _as_sets(name, args)
    joined = nested_sql.named(
        [x.sql, y.sql], lambda a, b: null_if_any(f"list_concat({a}, {b})", a, b)
    )
    kind = array_of(x.type.element, nulls=x.type.has_nulls or y.type.has_nulls)
    certain = x.never_null and y.never_null
    sql = nested_sql.named([joined], _once)
    return combined(sql, kind, [x, y], label=call_label(name, args), never_null=certain)


@function("array_intersect(a, b); array_except(a, b)", group=ARRAYS, least=2)
def _array_intersect(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = _as_sets(name, args)
    test = _IN_OTHER if name == "array_intersect" else "IS NULL"

    def written(a: str, b: str) -> str:
        return null_if_any(_once(a, b, test), a, b)

    nulls = x.type.has_nulls and (y.type.has_nulls or name == "array_except")
    kind = array_of(x.type.element, nulls=nulls)
    sql = nested_sql.named([x.sql, y.sql], written)
    certain = x.never_null and y.never_null
    return combined(sql, kind, [x, y], label=call_label(name, args), never_null=certain)


@function("arrays_overlap(a, b)", group=ARRAYS, least=2)
def _arrays_overlap(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = _comparable(name, args)

    def written(a: str, b: str) -> str:
        unknown = f"({has_null(a)} OR {has_null(b)}) AND len({a}) > 0 AND len({b}) > 0"
        sql = f"CASE WHEN list_has_any({a}, {b}) THEN true WHEN {unknown} THEN NULL ELSE false END"
        return null_if_any(sql, a, b)

    sql = nested_sql.named([x.sql, y.sql], written)
    return combined(sql, BOOLEAN, [x, y], label=call_label(name, args))


@function("array_min(a); array_max(a)", group=ARRAYS)
def _array_extreme(name: str, args: list[TypedSql]) -> TypedSql:
    (x,) = _comparable(name, args)
    if x.type.element.is_nested:
        raise not_here(name, x)
    sql = f"list_{name.removeprefix('array_')}({x.sql})"
    if x.type.element.is_floating:  # Of 0.0 and -0.0 Spark takes the first.
        way = "ASC" if name == "array_min" else "DESC"
        sql = f"list_extract(list_sort({x.sql}, '{way}', 'NULLS LAST'), 1)"
    return combined(sql, x.type.element, [x], label=call_label(name, args))


@function("sort_array(a, ascending)", group=ARRAYS, most=2)
def _sort_array(name: str, args: list[TypedSql]) -> TypedSql:
    (x,) = _comparable(name, args[:1])
    ascending = "true" if len(args) == 1 else args[1].label
    if len(args) > 1 and (args[1].type != BOOLEAN or ascending not in ("true", "false")):
        raise NotNative("sort_array needs true or false, written out", fix="write it out")
    label = call_label(name, args[:1], str(ascending))
    return _sorted(x, ascending=ascending == "true", nulls_last=ascending != "true", label=label)


@tree_function("array_sort(a)", group=ARRAYS, most=2)
def _array_sort(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    if len(nodes) > 1:
        raise NotNative("array_sort with an order of its own is left to Spark", fix="leave it out")
    given = typer.typed(nodes[0])
    (x,) = _comparable(name, [given])
    return _sorted(x, ascending=True, nulls_last=True, label=None)


def _sorted(x: TypedSql, *, ascending: bool, nulls_last: bool, label: str | None) -> TypedSql:
    way = "ASC" if ascending else "DESC"
    nulls = "NULLS LAST" if nulls_last else "NULLS FIRST"
    sql = f"list_sort({x.sql}, '{way}', '{nulls}')"
    element = x.type.element
    if element.is_nested:
        test = "IS NULL" if nulls_last == ascending else "IS NOT NULL"
        keyed = nested_sql.each_of(
            x.sql,
            lambda item: nested_sql.struct_literal(
                [
                    ("n", f"({item} {test})"),
                    ("k", nested_sql.order_key(item, element)),
                    ("v", item),
                ]
            ),
        )
        sql = nested_sql.each_of(
            f"list_sort({keyed}, '{way}', 'NULLS LAST')", lambda item: nested_sql.field(item, "v")
        )
    return combined(sql, x.type, [x], label=label, never_null=x.never_null)


@tree_function("arrays_zip(a, b, ...)", group=ARRAYS, least=0, most=ANY_NUMBER)
def _arrays_zip(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    args = typer.typed_all(nodes)
    array_arguments(name, args)
    names = [
        known_name(node, part) or str(number)
        for number, (node, part) in enumerate(zip(nodes, args, strict=True))
    ]
    if not names or len({field.lower() for field in names}) < len(names):
        raise not_here(name, *args)

    def written(*arrays: str) -> str:
        longest = f"greatest({', '.join(f'len({array})' for array in arrays)})"
        at = nested_sql.fresh_name(*arrays)
        fields = [(n, f"list_extract({a}, {at})") for n, a in zip(names, arrays, strict=True)]
        struct = nested_sql.struct_literal(fields)
        rows = f"list_transform(range(1, {longest} + 1), lambda {at}: {struct})"
        return null_if_any(rows, *arrays)

    fields = [TypePart(n, part.type.element) for n, part in zip(names, args, strict=True)]
    sql = nested_sql.named([part.sql for part in args], written)
    certain = all(part.never_null for part in args)
    return combined(
        sql,
        array_of(struct_of(fields), nulls=False),
        args,
        label=call_label(name, args),
        never_null=certain,
    )
