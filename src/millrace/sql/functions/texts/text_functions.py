"""Functions that take text apart, put it together and search it, as Spark calculates them."""

from __future__ import annotations

from typing import Final

from millrace.sql.engine_functions import macro
from millrace.sql.functions.casts import cast, to_text
from millrace.sql.functions.function_registry import ANY_NUMBER, function
from millrace.sql.functions.string_functions import TEXT
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    failure,
    require,
    text_literal,
)
from millrace.sql.types import BINARY, BOOLEAN, INT, STRING, VOID
from millrace.sql.vectorised import text_calls

VECTORISED: Final = (text_calls,)
"""Imported for the functions that they give the engine."""

macro(
    "spark_locate",
    "part, s, start",
    "CASE WHEN start IS NULL THEN 0 WHEN part IS NULL OR s IS NULL THEN NULL WHEN start < 1 THEN 0 "
    "WHEN part = '' THEN 1 WHEN instr(substring(s, start), part) = 0 THEN 0 "
    "ELSE instr(substring(s, start), part) + start - 1 END",
)
macro(
    "spark_filling",
    "s, size, pad",
    "substring(repeat(pad, CAST((size - length(s)) // length(pad) + 1 AS BIGINT)), 1, "
    "size - length(s))",
)
macro(
    "spark_begin",
    "s, start",
    "CASE WHEN start > 0 THEN start - 1 WHEN start < 0 THEN length(s) + start ELSE 0 END",
)
macro(
    "spark_part",
    "s, start, size",
    "substring(s, greatest(spark_begin(s, start), 0) + 1, "
    "greatest(spark_begin(s, start) + size - greatest(spark_begin(s, start), 0), 0))",
)
macro(
    "spark_overlay",
    "s, part, start, size",
    "spark_part(s, 1, start - 1) || part || "
    "spark_part(s, start + CASE WHEN size < 0 THEN length(part) ELSE size END, 2147483647)",
)


def text(part: TypedSql, name: str) -> TypedSql:
    """An argument as text; binary is left to Spark."""
    if part.type == BINARY:
        raise NotNative(
            f"{name} of binary is not known here", found=part.label or "", fix="cast it"
        )
    return cast(part, STRING) if part.type == VOID else to_text(part, name)


def whole(part: TypedSql, name: str) -> TypedSql:
    """An argument as a whole number."""
    require(part, part.type.is_integer, "a whole number", name)
    return cast(part, INT)


def _wide(part: TypedSql) -> str:
    return f"CAST({part.sql} AS BIGINT)"


@function("initcap(s)", group=TEXT)
def _initcap(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    return combined(f"spark_initcap({x.sql})", STRING, [x], label=call_label(name, args))


@function("soundex(s)", group=TEXT)
def _soundex(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    return combined(f"spark_soundex({x.sql})", STRING, [x], label=call_label(name, args))


@function("luhn_check(s)", group=TEXT)
def _luhn_check(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    return combined(f"spark_luhn_check({x.sql})", BOOLEAN, [x], label=call_label(name, args))


@function("levenshtein(a, b, most)", group=TEXT, least=2, most=3)
def _levenshtein(name: str, args: list[TypedSql]) -> TypedSql:
    a, b = text(args[0], name), text(args[1], name)
    ascii_only = f"strlen({a.sql}) = length({a.sql}) AND strlen({b.sql}) = length({b.sql})"
    sql = (
        f"CASE WHEN {ascii_only} THEN levenshtein({a.sql}, {b.sql}) "
        f"ELSE spark_levenshtein({a.sql}, {b.sql}) END"
    )
    if len(args) == 2:  # noqa: PLR2004
        return combined(sql, INT, [a, b], label=call_label(name, args))
    most = whole(args[2], name)
    sql = f"CASE WHEN {most.sql} IS NULL THEN NULL WHEN {sql} > {most.sql} THEN -1 ELSE {sql} END"
    return combined(sql, INT, [a, b, most], label=call_label(name, args))


@function("locate(part, s, start); position(part, s, start)", group=TEXT, least=2, most=3)
def _locate(name: str, args: list[TypedSql]) -> TypedSql:
    part, x = text(args[0], name), text(args[1], name)
    start = whole(args[2], name) if len(args) > 2 else _number(1)  # noqa: PLR2004
    extra = () if len(args) > 2 else ("1",)  # noqa: PLR2004
    sql = f"spark_locate({part.sql}, {x.sql}, {start.sql})"
    return combined(sql, INT, [part, x, start], label=call_label(name, args, *extra))


def _number(value: int) -> TypedSql:
    return TypedSql(sql=f"CAST({value} AS INTEGER)", type=INT, label=str(value), literal=value)


@function("lpad(s, size, pad); rpad(s, size, pad)", group=TEXT, least=2, most=3)
def _pad(name: str, args: list[TypedSql]) -> TypedSql:
    x, size = text(args[0], name), whole(args[1], name)
    blank = TypedSql(sql="' '", type=STRING, label=" ", literal=" ")
    pad = text(args[2], name) if len(args) > 2 else blank  # noqa: PLR2004
    filling = f"spark_filling({x.sql}, {_wide(size)}, {pad.sql})"
    padded = f"{filling} || {x.sql}" if name == "lpad" else f"{x.sql} || {filling}"
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {size.sql} IS NULL OR {pad.sql} IS NULL THEN NULL "
        f"WHEN {size.sql} <= 0 THEN '' "
        f"WHEN length({x.sql}) >= {size.sql} THEN substring({x.sql}, 1, {_wide(size)}) "
        f"WHEN {pad.sql} = '' THEN {x.sql} ELSE {padded} END"
    )
    return combined(sql, STRING, [x, size, pad], label=call_label(name, [*args[:2], pad]))


@function("overlay(s, part, start, size)", group=TEXT, least=3, most=4)
def _overlay(name: str, args: list[TypedSql]) -> TypedSql:
    x, part, start = text(args[0], name), text(args[1], name), whole(args[2], name)
    size = whole(args[3], name) if len(args) > 3 else _number(-1)  # noqa: PLR2004
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {part.sql} IS NULL OR {start.sql} IS NULL OR {size.sql} IS "
        f"NULL THEN NULL ELSE "
        f"spark_overlay({x.sql}, {part.sql}, {_wide(start)}, {_wide(size)}) END"
    )
    label = call_label(name, [*args[:3], size])
    return combined(sql, STRING, [x, part, start, size], label=label)


@function("repeat(s, n)", group=TEXT, least=2)
def _repeat(name: str, args: list[TypedSql]) -> TypedSql:
    x, n = text(args[0], name), whole(args[1], name)
    sql = f"repeat({x.sql}, greatest({_wide(n)}, 0))"
    sql = f"CASE WHEN {n.sql} IS NULL THEN NULL ELSE {sql} END"
    return combined(sql, STRING, [x, n], label=call_label(name, args))


@function("space(n)", group=TEXT)
def _space(name: str, args: list[TypedSql]) -> TypedSql:
    n = whole(args[0], name)
    sql = f"CASE WHEN {n.sql} IS NULL THEN NULL ELSE repeat(' ', greatest({_wide(n)}, 0)) END"
    return combined(sql, STRING, [n], label=call_label(name, args))


@function("translate(s, from, to)", group=TEXT, least=3)
def _translate(name: str, args: list[TypedSql]) -> TypedSql:
    parts = [text(part, name) for part in args]
    sql = f"translate({', '.join(part.sql for part in parts)})"
    return combined(sql, STRING, parts, label=call_label(name, args))


@function("concat_ws(separator, a, b, ...)", group=TEXT, most=ANY_NUMBER)
def _concat_ws(name: str, args: list[TypedSql]) -> TypedSql:
    """Texts, and the texts of arrays, with a separator between them; nulls are left out."""
    separator, label = text(args[0], name), call_label(name, args)
    parts = [_joined(part) for part in args[1:]]
    if any(part.type.is_array for part in parts):
        if not isinstance(args[0].literal, str):
            raise NotNative("concat_ws of arrays needs its separator written out", fix="write it")
        lists = [
            f"coalesce({part.sql}, [])" if part.type.is_array else f"[{part.sql}]" for part in parts
        ]
        kept = f"list_filter(list_concat({', '.join(lists)}), lambda part: part IS NOT NULL)"
        sql = f"coalesce(array_to_string({kept}, {separator.sql}), '')"
    elif parts:
        sql = f"concat_ws({', '.join(part.sql for part in [separator, *parts])})"
    else:
        sql = f"CASE WHEN {separator.sql} IS NULL THEN NULL ELSE '' END"
    return combined(sql, STRING, [separator, *parts], label=label)


def _joined(part: TypedSql) -> TypedSql:
    if part.type.is_array and part.type.element == STRING:
        return part
    if part.type.is_nested or part.type.arrow is not None:
        raise NotNative(
            "concat_ws joins texts and arrays of texts here", found=part.label or "", fix="cast it"
        )
    return text(part, "concat_ws")


@function("elt(n, a, b, ...)", group=TEXT, least=2, most=ANY_NUMBER)
def _elt(name: str, args: list[TypedSql]) -> TypedSql:
    n = whole(args[0], name)
    values = [text(part, name) for part in args[1:]]
    stop = failure(f"elt: the number is from 1 to {len(values)}")
    steps = " ".join(f"WHEN {n.sql} = {at} THEN {part.sql}" for at, part in enumerate(values, 1))
    sql = f"CASE WHEN {n.sql} IS NULL THEN NULL {steps} ELSE {stop} END"
    return combined(sql, STRING, [n, *values], label=call_label(name, args), raises=True)


@function("find_in_set(s, list)", group=TEXT, least=2)
def _find_in_set(name: str, args: list[TypedSql]) -> TypedSql:
    x, words = text(args[0], name), text(args[1], name)
    position = f"list_position(string_split({words.sql}, ','), {x.sql})"
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {words.sql} IS NULL THEN NULL "
        f"WHEN contains({x.sql}, ',') THEN 0 ELSE coalesce({position}, 0) END"
    )
    return combined(sql, INT, [x, words], label=call_label(name, args))


@function("split_part(s, delimiter, n)", group=TEXT, least=3)
def _split_part(name: str, args: list[TypedSql]) -> TypedSql:
    x, delimiter, n = text(args[0], name), text(args[1], name), whole(args[2], name)
    parts = (
        f"CASE WHEN {delimiter.sql} = '' THEN [{x.sql}] "
        f"ELSE string_split({x.sql}, {delimiter.sql}) END"
    )
    stop = failure("split_part: the number of a part is not 0")
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {delimiter.sql} IS NULL OR {n.sql} IS NULL THEN NULL "
        f"WHEN {n.sql} = 0 THEN {stop} ELSE coalesce(list_extract({parts}, {_wide(n)}), '') END"
    )
    raises = not isinstance(args[2].literal, int) or args[2].literal == 0
    return combined(sql, STRING, [x, delimiter, n], label=call_label(name, args), raises=raises)


@function("substring_index(s, delimiter, n)", group=TEXT, least=3)
def _substring_index(name: str, args: list[TypedSql]) -> TypedSql:
    x, delimiter, n = text(args[0], name), text(args[1], name), whole(args[2], name)
    label = call_label(name, args)
    count, mark = args[2].literal, args[1].literal
    if isinstance(count, int) and count and isinstance(mark, str) and _never_overlaps(mark):
        parts = f"string_split({x.sql}, {delimiter.sql})"
        taken = f"{parts}[1:{count}]" if count > 0 else f"{parts}[{count}:]"
        sql = f"array_to_string({taken}, {delimiter.sql})"
        return combined(sql, STRING, [x], label=label)
    sql = f"spark_substring_index({x.sql}, {delimiter.sql}, {n.sql})"
    return combined(sql, STRING, [x, delimiter, n], label=label)


def _never_overlaps(mark: str) -> bool:
    """Whether a text cannot begin within itself."""
    return bool(mark) and not any(mark.startswith(mark[at:]) for at in range(1, len(mark)))


@function("mask(s, upper, lower, digit, other)", group=TEXT, most=5)
def _mask(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    signs: list[str] = []
    for given, usual in zip([*args[1:], *[None] * 4], ["X", "x", "n", ""], strict=False):
        if given is None:
            signs.append(usual)
        elif given.type == VOID:
            signs.append("")
        elif isinstance(given.literal, str) and len(given.literal) == 1:
            signs.append(given.literal)
        else:
            raise NotNative("mask needs its signs written out", found=given.label or "", fix="so")
    sql = f"spark_mask({x.sql}, {', '.join(map(text_literal, signs))})"
    shown = [*args[1:], *_USUAL_SIGNS[len(args) - 1 :]]
    return combined(sql, STRING, [x], label=call_label(name, [args[0], *shown]))


_USUAL_SIGNS: Final = [
    TypedSql(sql=text_literal(sign), type=STRING, label=sign) for sign in ("X", "x", "n", "NULL")
]


@function("quote(s)", group=TEXT)
def _quote(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    escaped = f"replace({x.sql}, '''', '\\''')"
    return combined(f"'''' || {escaped} || ''''", STRING, [x], label=call_label(name, args))


@function("is_valid_utf8(s)", group=TEXT)
def _is_valid_utf8(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    sql = f"CASE WHEN {x.sql} IS NULL THEN NULL ELSE true END"
    return combined(sql, BOOLEAN, [x], label=call_label(name, args))


@function(
    "validate_utf8(s); try_validate_utf8(s); make_valid_utf8(s)",
    group=TEXT,
)
def _validate_utf8(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)  # No column of text holds anything else.
    return combined(x.sql, STRING, [x], label=call_label(name, args))
