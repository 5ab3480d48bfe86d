"""Comparisons and three-valued logic, and the common type that branches and lists are brought to.

Invariant: the right side of AND and OR is not evaluated where Spark would not: DuckDB may reorder
conditions, so a side that can fail is guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.sql.functions.casts import cast
from millrace.sql.functions.nested.nested_sql import is_ordered, not_here, order_key
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    combined,
    failure,
    text_literal,
)
from millrace.sql.types import (
    BOOLEAN,
    STRING,
    VOID,
    SqlType,
    common,
    common_with_text,
    same_shape,
)

_SAFE: Final = "IS NOT DISTINCT FROM"


def to_common_type(parts: Sequence[TypedSql], where: str, *, mixed: bool = True) -> list[TypedSql]:
    """All parts in their common type; `mixed` lets text stand beside other types."""
    kind: SqlType = VOID
    for part in parts:
        _not_passed_on(part, where)
        wider = common_with_text(kind, part.type) if mixed else common(kind, part.type)
        if wider is None:
            raise NotNative(
                f"the values of {where} have no common type",
                found=", ".join(f"{part.label or part.sql} of type {part.type}" for part in parts),
                fix="cast them to one type",
            )
        kind = wider
    return [cast(part, kind) for part in parts]


def _not_passed_on(part: TypedSql, where: str) -> None:
    if part.type.arrow is not None:
        raise NotNative(
            f"{where} cannot calculate with a column of type {part.type.arrow}",
            found=part.label or part.sql,
            fix="such a column can only be passed on as it is",
        )


def _named_alike(parts: Sequence[TypedSql]) -> list[TypedSql]:
    """Spark compares structs by position: those of the first one's types get its names."""
    first = parts[0].type
    return [cast(part, first) if same_shape(first, part.type) else part for part in parts]


def compare(symbol: str, left: TypedSql, right: TypedSql) -> TypedSql:
    """One of = <=> < <= > >= between two values."""
    nested = left.type.is_nested or right.type.is_nested
    first, second = to_common_type(_named_alike([left, right]), symbol, mixed=not nested)
    shown = None
    if left.label is not None and right.label is not None:
        shown = f"({left.label} {symbol} {right.label})"
    step = _SAFE if symbol == "<=>" else symbol
    sides = (first.sql, second.sql)
    if nested:
        if not is_ordered(first.type):
            raise not_here(symbol, first, second)
        if symbol not in ("=", "<=>"):
            sides = (order_key(first.sql, first.type), order_key(second.sql, first.type))
    certain = first.never_null and second.never_null
    sql = f"({sides[0]} {step} {sides[1]})"
    if second.raises and symbol != "<=>":  # As in Spark: null beside what would fail is null.
        sql = f"CASE WHEN {first.sql} IS NULL THEN NULL ELSE {sql} END"
    return combined(
        sql,
        BOOLEAN,
        [first, second],
        label=shown,
        never_null=certain or symbol == "<=>",
    )


def as_condition(part: TypedSql, where: str) -> TypedSql:
    """A condition; anything else is refused."""
    if part.type not in (BOOLEAN, VOID):
        raise NotNative(
            f"{where} needs a condition",
            found=f"{part.label or part.sql} of type {part.type}",
            fix="compare it with something",
        )
    return cast(part, BOOLEAN)


def connect(symbol: str, parts: Sequence[TypedSql]) -> TypedSql:
    """Conditions joined by AND or OR, as one list however many there are."""
    terms = [as_condition(part, symbol) for part in parts]
    sql = "(" + f" {symbol} ".join(term.sql for term in terms) + ")"
    if any(term.raises for term in terms):
        no, value = ("NOT ", "false") if symbol == "AND" else ("", "true")
        ended = " ".join(f"WHEN {no}{term.sql} THEN {value}" for term in terms[:-1])
        sql = f"CASE {ended} ELSE {sql} END"
    certain = all(term.never_null for term in terms)
    label = _joined_label(symbol, parts)
    return combined(sql, BOOLEAN, terms, label=label, never_null=certain)


def _joined_label(symbol: str, parts: Sequence[TypedSql]) -> str | None:
    """Spark's name: pairs from the left, as in ((a OR b) OR c)."""
    labels = [part.label for part in parts if part.label is not None]
    if len(labels) < len(parts):
        return None
    pairs = "".join(f" {symbol} {label})" for label in labels[1:])
    return "(" * (len(labels) - 1) + labels[0] + pairs


def negate_condition(part: TypedSql) -> TypedSql:
    """NOT."""
    condition = as_condition(part, "NOT")
    shown = None if part.label is None else f"(NOT {part.label})"
    certain = condition.never_null
    sql = f"(NOT {condition.sql})"
    return combined(sql, BOOLEAN, [condition], label=shown, never_null=certain)


def in_list(part: TypedSql, values: Sequence[TypedSql]) -> TypedSql:
    """IN with a list."""
    if not values:
        raise NotNative("IN needs values", fix="write, for example, a IN (1, 2)")
    nested = any(term.type.is_nested for term in (part, *values))
    value, *rest = to_common_type(_named_alike([part, *values]), "IN", mixed=not nested)
    if nested and not is_ordered(value.type):
        raise not_here("IN", part, *values)
    shown = None
    labels = [value.label for value in values]
    if part.label is not None and all(label is not None for label in labels):
        shown = f"({part.label} IN ({', '.join(str(label) for label in labels)}))"
    sql = f"({value.sql} IN ({', '.join(item.sql for item in rest)}))"
    if any(item.raises for item in rest):
        sql = _one_by_one(value, rest)
    return combined(sql, BOOLEAN, [value, *rest], label=shown)


def _one_by_one(value: TypedSql, items: Sequence[TypedSql]) -> str:
    """IN where an item can fail: as in Spark, null looks at none, and others up to an equal one."""
    equal = " ".join(f"WHEN {value.sql} = {item.sql} THEN true" for item in items)
    unknown = " OR ".join(f"{item.sql} IS NULL" for item in items)
    return (
        f"CASE WHEN {value.sql} IS NULL THEN NULL {equal} WHEN {unknown} THEN NULL ELSE false END"
    )


def like(part: TypedSql, pattern: TypedSql, escape: str) -> TypedSql:
    """LIKE with Spark's escape, which is only allowed before %, _ and itself."""
    for side in (part, pattern):
        if side.type not in (STRING, VOID):
            raise NotNative(
                "LIKE needs text",
                found=f"{side.label or side.sql} of type {side.type}",
                fix="cast it to string",
            )
    x, p = cast(part, STRING), cast(pattern, STRING)
    shown = None
    if part.label is not None and pattern.label is not None and escape == "\\":
        shown = f"{part.label} LIKE {pattern.label}"
    sql = f"({x.sql} LIKE {p.sql} ESCAPE {text_literal(escape)})"
    if isinstance(pattern.literal, str):
        _check_pattern(pattern.literal, escape)
        if escape not in pattern.literal:  # So that the engine can look for a plain text.
            sql = f"({x.sql} LIKE {p.sql})"
        return combined(sql, BOOLEAN, [x, p], label=shown)
    if escape != "\\":
        raise NotNative(
            "ESCAPE needs a pattern that is written out", found=p.label or "", fix="write it out"
        )
    good = text_literal(r"(?s)(?:[^\\]|\\[\\%_])*")
    stop = failure("a pattern of LIKE has \\ before something else than %, _ or \\")
    sql = f"CASE WHEN regexp_full_match({p.sql}, {good}) THEN {sql} ELSE {stop} END"
    sql = f"CASE WHEN {x.sql} IS NULL OR {p.sql} IS NULL THEN NULL ELSE {sql} END"
    return combined(sql, BOOLEAN, [x, p], label=shown, raises=True)


def _check_pattern(pattern: str, escape: str) -> None:
    rest = iter(pattern)
    for char in rest:
        if char == escape and next(rest, None) not in ("%", "_", escape):
            raise NotNative(
                f"the pattern of LIKE has {escape} before something else than %, _ or {escape}",
                found=pattern,
                fix=f"double it: {escape}{escape}",
            )


def if_else(
    branches: Sequence[tuple[TypedSql, TypedSql]], other: TypedSql | None, where: str
) -> TypedSql:
    """CASE WHEN: conditions with their values, and what holds otherwise."""
    tests = [as_condition(test, where) for test, _ in branches]
    ends = [value for _, value in branches] + ([other] if other is not None else [])
    values = to_common_type(ends, where)
    kind = values[0].type
    steps = " ".join(
        f"WHEN {test.sql} THEN {value.sql}" for test, value in zip(tests, values, strict=False)
    )
    last = f" ELSE {values[-1].sql}" if other is not None else ""
    return combined(f"CASE {steps}{last} END", kind, [*tests, *values])
