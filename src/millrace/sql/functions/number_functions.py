"""Functions of numbers, conditions and comparisons, as Spark calculates them."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.arithmetic import arithmetic, keeps_digits, negated
from millrace.sql.functions.casts import PLAIN_DOUBLE_MAX, cast
from millrace.sql.functions.conditions import compare, to_common_type
from millrace.sql.functions.function_registry import ANY_NUMBER, function
from millrace.sql.functions.nested.nested_sql import not_here
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined, require
from millrace.sql.types import BOOLEAN, DOUBLE, FLOAT, LONG, PRECISION_MAX, VOID, SqlType, decimal

NUMBERS: Final = "Numbers"
NULLS: Final = "Nulls and conditions"
_ROUND_DIGITS_MAX: Final = 22


def _number(name: str, part: TypedSql) -> TypedSql:
    require(part, part.type.is_numeric, "a number", name)
    return cast(part, DOUBLE) if part.type == VOID else part


def _double(name: str, part: TypedSql) -> TypedSql:
    return cast(_number(name, part), DOUBLE)


@function("abs(x)", group=NUMBERS)
def _abs(name: str, args: list[TypedSql]) -> TypedSql:
    x = keeps_digits(_number(name, args[0]), name)
    return combined(
        f"abs({x.sql})", x.type, [x], label=call_label(name, args), raises=x.type.is_integer
    )


@function("negative(x)", group=NUMBERS)
def _negative(name: str, args: list[TypedSql]) -> TypedSql:
    x = negated(_number(name, args[0]))
    return combined(x.sql, x.type, [x], label=call_label(name, args))


@function("mod(a, b)", group=NUMBERS, least=2)
def _mod(name: str, args: list[TypedSql]) -> TypedSql:
    rest = arithmetic("%", args[0], args[1])
    return combined(rest.sql, rest.type, [rest], label=call_label(name, args))


def _to_whole(shown: str, name: str, args: list[TypedSql]) -> TypedSql:
    x = _number(name, args[0])
    label = call_label(shown, args)
    step = "floor" if name == "floor" else "ceil"
    if x.type.is_decimal:
        digits = x.type.precision - x.type.scale + (1 if x.type.scale else 0)
        return combined(f"{step}({x.sql})", decimal(digits, 0), [x], label=label)
    if x.type.is_integer:
        return cast(x, LONG, label=label)
    wide = cast(x, DOUBLE)
    # NaN becomes zero, as a conversion of Java has it.
    sql = f"CASE WHEN isnan({wide.sql}) THEN CAST(0 AS DOUBLE) ELSE {step}({wide.sql}) END"
    if in_ansi_mode():  # A cast would take 2^63 as well.
        return combined(sql, LONG, [wide], label=label, raises=True)
    return cast(combined(sql, DOUBLE, [wide]), LONG, label=label)


@function("floor(x); ceil(x)", group=NUMBERS)
def _floor(name: str, args: list[TypedSql]) -> TypedSql:
    return _to_whole(name.upper(), name, args)


@function("ceiling(x)", group=NUMBERS)
def _ceiling(name: str, args: list[TypedSql]) -> TypedSql:
    return _to_whole(name, name, args)


@function("round(x, digits)", group=NUMBERS, most=2)
def _round(name: str, args: list[TypedSql]) -> TypedSql:
    x = _number(name, args[0])
    digits = args[1].literal if len(args) > 1 else 0
    if not isinstance(digits, int) or not 0 <= digits <= _ROUND_DIGITS_MAX:
        raise NotNative(
            "round needs its digits as a whole number from 0 to 22, written out",
            found=args[1].label or args[1].sql,
            fix="write, for example, round(x, 2)",
        )
    label = call_label(name, args[:1], str(digits))
    if x.type.is_integer:
        return cast(x, x.type, label=label)
    if x.type.is_decimal:
        return combined(x.sql, _rounded(x.type, digits), [x], label=label)
    if x.type == FLOAT:
        raise NotNative(
            "round of a float is not certain to equal Spark's",
            found=x.label or x.sql,
            fix="cast it to double first",
        )
    short = f"CAST(CAST({x.sql} AS VARCHAR) AS DECIMAL(38,{digits}))"
    value = f"CAST(CAST({short} AS VARCHAR) AS DOUBLE)"
    # NaN is the greatest number, so it takes the first way too.
    sql = f"CASE WHEN abs({x.sql}) >= {PLAIN_DOUBLE_MAX} THEN {x.sql} ELSE {value} END"
    return combined(sql, DOUBLE, [x], label=label)


def _rounded(kind: SqlType, digits: int) -> SqlType:
    scale = min(kind.scale, digits)
    return decimal(min(PRECISION_MAX, kind.precision - kind.scale + 1 + scale), scale)


_SHOWN: Final = {
    "sqrt": "SQRT",
    "exp": "EXP",
    "log10": "LOG10",
    "log2": "LOG2",
    "power": "POWER",
    "signum": "SIGNUM",
}


@function("sqrt(x); exp(x)", group=NUMBERS)
def _root(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    return combined(f"{name}({x.sql})", DOUBLE, [x], label=call_label(_SHOWN[name], args))


@function("ln(x); log10(x); log2(x)", group=NUMBERS)
def _logarithm(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    sql = f"CASE WHEN {x.sql} <= 0 THEN NULL ELSE {name}({x.sql}) END"
    return combined(sql, DOUBLE, [x], label=call_label(_SHOWN.get(name, name), args))


@function("log(base, x)", group=NUMBERS, most=2)
def _logarithm_to_base(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[-1])
    natural = f"CASE WHEN {x.sql} <= 0 THEN NULL ELSE ln({x.sql}) END"
    if len(args) == 1:
        shown = None if args[0].label is None else f"LOG(E(), {args[0].label})"
        return combined(natural, DOUBLE, [x], label=shown)
    base = _double(name, args[0])
    sql = f"CASE WHEN {base.sql} <= 0 THEN NULL ELSE {natural} / ln({base.sql}) END"
    return combined(sql, DOUBLE, [base, x], label=call_label("LOG", args))


@function("pow(x, y); power(x, y)", group=NUMBERS, least=2)
def _power(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = _double(name, args[0]), _double(name, args[1])
    unknown = f"isnan({y.sql}) OR (abs({x.sql}) = 1 AND isinf({y.sql}))"
    sql = f"CASE WHEN {unknown} THEN CAST('NaN' AS DOUBLE) ELSE pow({x.sql}, {y.sql}) END"
    sql = f"CASE WHEN {x.sql} IS NULL THEN NULL ELSE {sql} END"
    return combined(sql, DOUBLE, [x, y], label=call_label(_SHOWN.get(name, name), args))


@function("sign(x); signum(x)", group=NUMBERS)
def _sign(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    sql = (
        f"CASE WHEN isnan({x.sql}) THEN {x.sql} WHEN {x.sql} > 0 THEN 1 "
        f"WHEN {x.sql} < 0 THEN -1 ELSE {x.sql} END"
    )
    return combined(sql, DOUBLE, [x], label=call_label(_SHOWN.get(name, name), args))


@function("isnan(x)", group=NUMBERS)
def _isnan(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    return combined(f"coalesce(isnan({x.sql}), false)", BOOLEAN, [x], label=call_label(name, args))


@function("greatest(a, b, ...); least(a, b, ...)", group=NUMBERS, least=2, most=ANY_NUMBER)
def _extreme(name: str, args: list[TypedSql]) -> TypedSql:
    parts = to_common_type(args, name, mixed=False)
    if not parts[0].type.is_plain:
        raise not_here(name, *args)
    sql = f"{name}({', '.join(part.sql for part in parts)})"
    certain = any(part.never_null for part in parts)
    label = call_label(name, args)
    return combined(sql, parts[0].type, parts, label=label, never_null=certain)


@function("coalesce(a, b, ...)", group=NULLS, most=ANY_NUMBER)
def _coalesce(name: str, args: list[TypedSql]) -> TypedSql:
    parts = to_common_type(args, name)
    sql = f"coalesce({', '.join(part.sql for part in parts)})"
    certain = any(part.never_null for part in parts)
    return combined(sql, parts[0].type, parts, label=call_label(name, args), never_null=certain)


@function("nvl(a, b); ifnull(a, b)", group=NULLS, least=2)
def _nvl(name: str, args: list[TypedSql]) -> TypedSql:
    return _coalesce(name, args)


@function("nvl2(a, b, c)", group=NULLS, least=3)
def _nvl2(name: str, args: list[TypedSql]) -> TypedSql:
    then, other = to_common_type(args[1:], name)
    sql = f"CASE WHEN {args[0].sql} IS NOT NULL THEN {then.sql} ELSE {other.sql} END"
    return combined(sql, then.type, [args[0], then, other], label=call_label(name, args))


@function("nullif(a, b)", group=NULLS, least=2)
def _nullif(name: str, args: list[TypedSql]) -> TypedSql:
    same = compare("=", args[0], args[1])
    sql = f"CASE WHEN {same.sql} THEN NULL ELSE {args[0].sql} END"
    return combined(sql, args[0].type, [args[0], same], label=call_label(name, args))


@function("isnull(a); isnotnull(a)", group=NULLS)
def _isnull(name: str, args: list[TypedSql]) -> TypedSql:
    test = "IS NULL" if name == "isnull" else "IS NOT NULL"
    shown = None if args[0].label is None else f"({args[0].label} {test})"
    return combined(f"({args[0].sql} {test})", BOOLEAN, args, label=shown, never_null=True)


@function("nanvl(a, b)", group=NULLS, least=2)
def _nanvl(name: str, args: list[TypedSql]) -> TypedSql:
    a, b = _double(name, args[0]), _double(name, args[1])
    if FLOAT in (args[0].type, args[1].type):
        raise NotNative("nanvl needs doubles", found="float", fix="cast it to double")
    sql = f"CASE WHEN isnan({a.sql}) THEN {b.sql} ELSE {a.sql} END"
    return combined(sql, DOUBLE, [a, b], label=call_label(name, args))
