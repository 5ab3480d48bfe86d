"""Functions of calculus: roots, logarithms, angles, and arithmetic that gives null on failure."""

from __future__ import annotations

import math
from typing import Final

from millrace.sql.functions.arithmetic import arithmetic
from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.number_functions import NUMBERS
from millrace.sql.functions.times.time_macros import reads_times_of_day
from millrace.sql.sql_mode import with_ansi
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined, require
from millrace.sql.types import DOUBLE, INT, LONG, VOID

_NAN: Final = "CAST('NaN' AS DOUBLE)"
_ANGLES: Final = {
    **{name: f"{name}({{x}})" for name in ("sin", "cos", "tan")},
    "cot": "(CAST(1 AS DOUBLE) / tan({x}))",
    "csc": "(CAST(1 AS DOUBLE) / sin({x}))",
    "sec": "(CAST(1 AS DOUBLE) / cos({x}))",
}
_WITHIN_ONE: Final = {"asin": "asin({x})", "acos": "acos({x})", "atanh": "atanh({x})"}
_EVERYWHERE: Final = {
    **{name: f"{name}({{x}})" for name in ("atan", "sinh", "cosh", "tanh", "cbrt")},
    "degrees": "degrees({x})",
    "radians": "radians({x})",
    "rint": "round_even({x}, 0)",
    "acosh": f"CASE WHEN {{x}} < 1 THEN {_NAN} ELSE acosh({{x}}) END",
    "asinh": "asinh({x})",
    "expm1": (
        "CASE WHEN abs({x}) < 1e-200 THEN {x} WHEN {x} < -745 THEN CAST(-1 AS DOUBLE) "
        "WHEN {x} > 709.7 THEN exp({x}) ELSE 2 * exp({x} / 2) * sinh({x} / 2) END"
    ),
    "log1p": (
        "CASE WHEN {x} <= -1 THEN NULL WHEN abs({x}) < 1e-200 THEN {x} WHEN abs({x}) < 0.5 "
        "THEN 2 * atanh({x} / (2 + {x})) ELSE ln(1 + {x}) END"
    ),
}
_SHOWN: Final = {
    **{name: name.upper() for name in ("sin", "cos", "tan", "cot", "csc", "sec", "asin", "acos")},
    **{name: name.upper() for name in ("atan", "sinh", "cosh", "tanh", "cbrt", "degrees")},
    **{name: name.upper() for name in ("radians", "acosh", "asinh", "atanh", "expm1", "log1p")},
}


def _double(name: str, part: TypedSql) -> TypedSql:
    require(part, part.type.is_numeric, "a number", name)
    return cast(part, DOUBLE)


def _of_one(names: dict[str, str]) -> str:
    return "; ".join(f"{name}(x)" for name in names)


@function(_of_one(_ANGLES), group=NUMBERS)
def _angle(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    sql = f"CASE WHEN isinf({x.sql}) THEN {_NAN} ELSE {_ANGLES[name].format(x=x.sql)} END"
    return combined(sql, DOUBLE, [x], label=call_label(_SHOWN[name], args))


@function(_of_one(_WITHIN_ONE), group=NUMBERS)
def _within_one(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    value = _WITHIN_ONE[name].format(x=x.sql)
    if name == "atanh":
        ends = f"CAST(CASE WHEN {x.sql} > 0 THEN 'inf' ELSE '-inf' END AS DOUBLE)"
        value = f"CASE WHEN abs({x.sql}) = 1 THEN {ends} ELSE {value} END"
    sql = f"CASE WHEN abs({x.sql}) > 1 THEN {_NAN} ELSE {value} END"
    return combined(sql, DOUBLE, [x], label=call_label(_SHOWN[name], args))


@function(_of_one(_EVERYWHERE), group=NUMBERS)
def _everywhere(name: str, args: list[TypedSql]) -> TypedSql:
    x = _double(name, args[0])
    sql = _EVERYWHERE[name].format(x=x.sql)
    return combined(sql, DOUBLE, [x], label=call_label(_SHOWN.get(name, name), args))


@function("atan2(y, x)", group=NUMBERS, least=2)
def _atan2(name: str, args: list[TypedSql]) -> TypedSql:
    y, x = _double(name, args[0]), _double(name, args[1])
    # As in Java an angle of -0.0 is taken for one of 0.0.
    sql = f"atan2({y.sql} + CAST(0 AS DOUBLE), {x.sql} + CAST(0 AS DOUBLE))"
    return combined(sql, DOUBLE, [y, x], label=call_label("ATAN2", args))


@function("hypot(x, y)", group=NUMBERS, least=2)
def _hypot(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = _double(name, args[0]), _double(name, args[1])
    large, small = (f"{step}(abs({x.sql}), abs({y.sql}))" for step in ("greatest", "least"))
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {y.sql} IS NULL THEN NULL "
        f"WHEN isinf({x.sql}) OR isinf({y.sql}) THEN CAST('inf' AS DOUBLE) "
        f"WHEN isnan({x.sql}) OR isnan({y.sql}) THEN {_NAN} WHEN {large} = 0 THEN {large} "
        f"ELSE {large} * sqrt(1 + ({small} / {large}) * ({small} / {large})) END"
    )
    return combined(sql, DOUBLE, [x, y], label=call_label("HYPOT", args))


@function("e(); pi()", group=NUMBERS, least=0)
def _constant(name: str, args: list[TypedSql]) -> TypedSql:
    value = math.e if name == "e" else math.pi
    return combined(f"'{value!r}'", DOUBLE, args, label=f"{name.upper()}()")


@function("factorial(n)", group=NUMBERS)
def _factorial(name: str, args: list[TypedSql]) -> TypedSql:
    if not args[0].type.is_integer or args[0].type == LONG:
        raise NotNative(f"{name} of ints only", found=str(args[0].type), fix="cast it to int")
    n = cast(args[0], INT)
    sql = f"CASE WHEN {n.sql} BETWEEN 0 AND 20 THEN factorial({n.sql}) END"
    return combined(sql, LONG, [n], label=call_label(name, args))


@function("pmod(a, b)", group=NUMBERS, least=2)
def _pmod(name: str, args: list[TypedSql]) -> TypedSql:
    rest = arithmetic("%", args[0], args[1])
    if rest.type.is_decimal or VOID in (args[0].type, args[1].type):
        raise NotNative(f"{name} of decimals is Spark's", fix="use %")
    divisor = cast(args[1], rest.type)
    wide = f"(CAST({rest.sql} AS HUGEINT) + {divisor.sql}) % {divisor.sql}"
    if rest.type.is_floating:
        wide = f"({rest.sql} + {divisor.sql}) % {divisor.sql}"
    sql = f"CASE WHEN {rest.sql} < 0 THEN {wide} ELSE {rest.sql} END"
    return combined(sql, rest.type, [rest, divisor], label=call_label(name, args))


TRIED: Final = {"try_add": "+", "try_subtract": "-", "try_multiply": "*"}


@function("try_add(a, b); try_subtract(a, b); try_multiply(a, b)", group=NUMBERS, least=2)
def _tried(name: str, args: list[TypedSql]) -> TypedSql:
    _no_failure(name, args)
    value = _failing(TRIED[name], args)
    if value.type.is_decimal:
        raise NotNative(f"{name} of decimals is Spark's", fix="cast them")
    return TypedSql(
        sql=f"TRY({value.sql})",
        type=value.type,
        columns=value.columns,
        label=call_label(name, args),
    )


@function("try_divide(a, b); try_mod(a, b)", group=NUMBERS, least=2)
def _tried_divided(name: str, args: list[TypedSql]) -> TypedSql:
    _no_failure(name, args)
    symbol = "/" if name == "try_divide" else "%"
    value = _failing(symbol, args)
    if value.type.is_decimal:
        raise NotNative(f"{name} of decimals is Spark's", fix="cast them")
    sql = f"CASE WHEN {cast(args[1], value.type).sql} = 0 THEN NULL ELSE {value.sql} END"
    return TypedSql(sql=sql, type=value.type, columns=value.columns, label=call_label(name, args))


def _failing(symbol: str, args: list[TypedSql]) -> TypedSql:
    """Arithmetic that fails where it does not fit, whatever the session says."""
    with with_ansi(ansi=True):
        return arithmetic(symbol, args[0], args[1])


def _no_failure(name: str, args: list[TypedSql]) -> None:
    numbers = all(part.type.is_numeric for part in args)
    if not numbers or any(part.raises or reads_times_of_day(part.sql) for part in args):
        raise NotNative(f"{name} of numbers that cannot fail", fix="calculate them in columns")
