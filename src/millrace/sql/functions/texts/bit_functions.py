"""Operators and functions of bits, with Java's wrapping: shifts count modulo the width."""

from __future__ import annotations

from typing import Final

from millrace.sql.engine_functions import macro
from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined, failure
from millrace.sql.types import BOOLEAN, BYTE, INT, LONG, SHORT, VOID, SqlType, common

BITS: Final = "Bits"
_WIDTHS: Final = {BYTE: 8, SHORT: 16, INT: 32, LONG: 64}
_SIGNS: Final = {"shiftleft": "<<", "shiftright": ">>", "shiftrightunsigned": ">>>"}
SHIFTS: Final = {sign: name for name, sign in _SIGNS.items()}

macro(
    "spark_wrap",
    "v, half",
    "((((v + half) % (half * 2)) + half * 2) % (half * 2)) - half",
)
macro(
    "spark_shiftleft",
    "x, n, width",
    "spark_wrap(CAST(x AS HUGEINT) * (CAST(1 AS HUGEINT) << CAST(n & (width - 1) AS INTEGER)), "
    "CAST(1 AS HUGEINT) << (width - 1))",
)
macro(
    "spark_shiftrightunsigned",
    "x, n, width",
    "CASE WHEN (n & (width - 1)) = 0 THEN CAST(x AS HUGEINT) WHEN x < 0 "
    "THEN (CAST(x AS HUGEINT) + (CAST(1 AS HUGEINT) << width)) >> CAST(n & (width - 1) AS INTEGER) "
    "ELSE CAST(x AS HUGEINT) >> CAST(n & (width - 1) AS INTEGER) END",
)


def _whole(part: TypedSql, where: str) -> TypedSql:
    if not part.type.is_integer and part.type != VOID:
        raise NotNative(
            f"{where} needs whole numbers here",
            found=f"{part.label or part.sql} of type {part.type}",
            fix="cast it to int or bigint",
        )
    return cast(part, INT) if part.type == VOID else part


def bitwise(symbol: str, left: TypedSql, right: TypedSql) -> TypedSql:
    """One of & | ^ between two whole numbers."""
    first, second = _whole(left, symbol), _whole(right, symbol)
    kind = common(first.type, second.type)
    assert kind is not None
    first, second = cast(first, kind), cast(second, kind)
    sql = (
        f"xor({first.sql}, {second.sql})"
        if symbol == "^"
        else f"({first.sql} {symbol} {second.sql})"
    )
    label = None
    if left.label is not None and right.label is not None:
        label = f"({left.label} {symbol} {right.label})"
    return combined(sql, kind, [first, second], label=label)


def bitwise_not(part: TypedSql) -> TypedSql:
    """`~a`."""
    x = _whole(part, "~")
    label = None if part.label is None else f"~{part.label}"
    return combined(f"(~{x.sql})", x.type, [x], label=label)


def shifted_bits(name: str, left: TypedSql, right: TypedSql, label: str | None) -> TypedSql:
    """Bits moved to the left or to the right; bytes and shorts are widened first."""
    x, n = _whole(left, name), cast(_whole(right, name), INT)
    x = x if x.type == LONG else cast(x, INT)
    width = _WIDTHS[x.type]
    if name == "shiftright":
        # The engine moves no bits out of a negative number; a quotient rounded down is the same.
        power = f"(CAST(1 AS HUGEINT) << CAST({n.sql} & {width - 1} AS INTEGER))"
        wide = f"CAST({x.sql} AS HUGEINT)"
        sql = f"(({wide} - ((({wide} % {power}) + {power}) % {power})) // {power})"
    else:
        sql = f"spark_{name}({x.sql}, {n.sql}, {width})"
    return combined(sql, x.type, [x, n], label=label)


@function("shiftleft(x, n); shiftright(x, n); shiftrightunsigned(x, n)", group=BITS, least=2)
def _shift(name: str, args: list[TypedSql]) -> TypedSql:
    return shifted_bits(name, args[0], args[1], call_label(name, args))


def shift_operator(symbol: str, left: TypedSql, right: TypedSql) -> TypedSql:
    """One of << >> >>>."""
    label = None
    if left.label is not None and right.label is not None:
        label = f"({left.label} {symbol} {right.label})"
    return shifted_bits(SHIFTS[symbol], left, right, label)


@function("bit_count(x)", group=BITS)
def _bit_count(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    label = call_label(name, args)
    if x.type == BOOLEAN:
        return combined(f"CAST({x.sql} AS INTEGER)", INT, [x], label=label)
    # A negative number counts the ones of its 64 bits.
    x = cast(_whole(x, name), LONG)
    return combined(f"bit_count({x.sql})", INT, [x], label=label)


@function("getbit(x, n); bit_get(x, n)", group=BITS, least=2)
def _getbit(name: str, args: list[TypedSql]) -> TypedSql:
    x, n = _whole(args[0], name), cast(_whole(args[1], name), INT)
    width = _WIDTHS.get(x.type, 32)
    wide = f"(CAST({x.sql} AS HUGEINT) + CASE WHEN {x.sql} < 0 THEN {1 << width} ELSE 0 END)"
    bit = f"(({wide} >> {n.sql}) & 1)"
    stop = failure(f"{name}: the position of a bit is from 0 to {width - 1}")
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {n.sql} IS NULL THEN NULL "
        f"WHEN {n.sql} < 0 OR {n.sql} >= {width} THEN {stop} ELSE {bit} END"
    )
    return combined(sql, BYTE, [x, n], label=call_label(name, args), raises=True)


def positive(part: TypedSql) -> TypedSql:
    """Unary plus."""
    if not part.type.is_numeric:
        raise NotNative(
            "the operand of + is not a number",
            found=f"{part.label or part.sql} of type {part.type}",
            fix="cast it to a number",
        )
    label = None if part.label is None else f"(+ {part.label})"
    return combined(part.sql, part.type, [part], label=label)


@function("positive(x)", group=BITS)
def _positive(_: str, args: list[TypedSql]) -> TypedSql:
    return positive(args[0])


def width_of(kind: SqlType) -> int:
    """The number of bits of a whole-number type."""
    return _WIDTHS[kind]
