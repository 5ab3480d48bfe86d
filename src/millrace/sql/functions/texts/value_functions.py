"""Functions of values of every type: hashes, their type, checks, and buckets."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.arithmetic import unscaled
from millrace.sql.functions.casts import cast
from millrace.sql.functions.conditions import as_condition, compare
from millrace.sql.functions.function_registry import ANY_NUMBER, call, function
from millrace.sql.functions.number_functions import NULLS, NUMBERS
from millrace.sql.functions.texts.encoding_functions import BYTES
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    read_columns,
    text_literal,
)
from millrace.sql.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
)
from millrace.sql.vectorised import hash_calls

VECTORISED: Final = (hash_calls,)
"""Imported for the functions that they give the engine."""
CHECKS: Final = "Checks"
_SEED: Final = 42
_LONG_DIGITS: Final = 18
_FORMS: Final = {STRING: "text", BINARY: "bytes", FLOAT: "float", DOUBLE: "double", LONG: "long"}


def _hashed_form(part: TypedSql) -> tuple[str, str]:
    """The form in which a value is hashed, and its SQL."""
    kind, x = part.type, part.sql
    if kind in _FORMS:
        return _FORMS[kind], x
    if kind.is_integer or kind == BOOLEAN:
        return "int", f"CAST({x} AS INTEGER)"
    if kind == DATE:
        return "int", f"CAST({x} - DATE '1970-01-01' AS INTEGER)"
    if kind in (TIMESTAMP, TIMESTAMP_NTZ):
        return "long", f"epoch_us({x})"
    if kind.is_decimal and kind.precision <= _LONG_DIGITS:
        return "long", f"CAST({unscaled(part)} AS BIGINT)"
    if kind.is_decimal:
        return "wide", f"CAST({unscaled(part)} AS DECIMAL(38,0))"
    raise NotNative(f"{kind} is not hashed here", found=part.label or x, fix="hash its parts")


@function("hash(a, b, ...); xxhash64(a, b, ...)", group=BYTES, most=ANY_NUMBER)
def _hash(name: str, args: list[TypedSql]) -> TypedSql:
    kind = INT if name == "hash" else LONG
    sql = f"CAST({_SEED} AS {'INTEGER' if kind == INT else 'BIGINT'})"
    for part in args:
        if part.type != VOID:
            form, value = _hashed_form(part)
            sql = f"spark_{name}_{form}({sql}, {value})"
    return combined(sql, kind, args, label=call_label(name, args))


@function("typeof(x)", group=CHECKS)
def _typeof(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    if x.type.arrow is not None:
        raise NotNative("the type has no name here", found=str(x.type), fix="name another column")
    return TypedSql(
        sql=f"CAST({text_literal(str(x.type))} AS VARCHAR)",
        type=STRING,
        columns=read_columns(args),
        label=call_label(name, args),
    )


@function("raise_error(message)", group=CHECKS)
def _raise_error(_: str, args: list[TypedSql]) -> TypedSql:
    message = cast(args[0], STRING)
    said = f"concat('[USER_RAISED_EXCEPTION] ', {message.sql})"
    sql = f"CASE WHEN error({said}) IS NULL THEN NULL ELSE NULL END"
    return combined(sql, VOID, [message], raises=True)


@function("assert_true(condition, message)", group=CHECKS, most=2)
def _assert_true(_: str, args: list[TypedSql]) -> TypedSql:
    test = as_condition(args[0], "assert_true")
    if len(args) == 1 and args[0].label is None:
        raise NotNative("the message of assert_true is not certain", fix="give it a message")
    said = cast(args[1], STRING).sql if len(args) > 1 else _not_true(args[0].label or "")
    failed = f"error(concat('[USER_RAISED_EXCEPTION] ', {said}))"
    sql = f"CASE WHEN {test.sql} THEN NULL WHEN {failed} IS NULL THEN NULL ELSE NULL END"
    return combined(sql, VOID, [test, *args[1:]], raises=True)


def _not_true(label: str) -> str:
    return text_literal(f"'{label}' is not true!")


@function("zeroifnull(x)", group=NULLS)
def _zeroifnull(name: str, args: list[TypedSql]) -> TypedSql:
    zero = TypedSql(sql="CAST(0 AS INTEGER)", type=INT, label="0", literal=0)
    value = call("coalesce", [args[0], zero])
    return combined(value.sql, value.type, [value], label=call_label(name, args))


@function("nullifzero(x)", group=NULLS)
def _nullifzero(name: str, args: list[TypedSql]) -> TypedSql:
    zero = TypedSql(sql="CAST(0 AS INTEGER)", type=INT, label="0", literal=0)
    is_zero = compare("=", args[0], zero)
    sql = f"CASE WHEN {is_zero.sql} THEN NULL ELSE {args[0].sql} END"
    return combined(sql, args[0].type, [args[0], is_zero], label=call_label(name, args))


@function("equal_null(a, b)", group=NULLS, least=2)
def _equal_null(name: str, args: list[TypedSql]) -> TypedSql:
    same = compare("<=>", args[0], args[1])
    return combined(same.sql, BOOLEAN, [same], label=call_label(name, args))


@function("between(x, low, high)", group=NULLS, least=3)
def _between(name: str, args: list[TypedSql]) -> TypedSql:
    above, below = compare(">=", args[0], args[1]), compare("<=", args[0], args[2])
    sql = f"({above.sql} AND {below.sql})"
    if above.raises or below.raises:
        raise NotNative("between compares values of different types", fix="cast them")
    return combined(sql, BOOLEAN, [above, below], label=call_label(name, args))


@function("width_bucket(x, low, high, buckets)", group=NUMBERS, least=4)
def _width_bucket(name: str, args: list[TypedSql]) -> TypedSql:
    for part in args:
        if not part.type.is_numeric and part.type != VOID:
            raise NotNative("width_bucket needs numbers", found=part.label or "", fix="cast it")
    x, low, high = (cast(part, DOUBLE) for part in args[:3])
    if not args[3].type.is_integer:
        raise NotNative("width_bucket needs a whole number of buckets", fix="cast it to bigint")
    n = cast(args[3], LONG)
    wrong = (
        f"{n.sql} <= 0 OR {n.sql} = 9223372036854775807 OR isnan({x.sql}) OR {low.sql} = "
        f"{high.sql} OR NOT isfinite({low.sql}) OR NOT isfinite({high.sql})"
    )
    below, above = f"least({low.sql}, {high.sql})", f"greatest({low.sql}, {high.sql})"
    up = f"CAST(floor({n.sql} * ({x.sql} - {below}) / ({above} - {below})) AS BIGINT) + 1"
    down = f"CAST(floor({n.sql} * ({above} - {x.sql}) / ({above} - {below})) AS BIGINT) + 1"
    sql = (
        f"CASE WHEN {x.sql} IS NULL OR {low.sql} IS NULL OR {high.sql} IS NULL OR {n.sql} IS NULL "
        f"OR {wrong} THEN NULL WHEN {low.sql} < {high.sql} THEN "
        f"CASE WHEN {x.sql} < {below} THEN 0 WHEN {x.sql} >= {above} THEN {n.sql} + 1 "
        f"ELSE {up} END "
        f"ELSE CASE WHEN {x.sql} > {above} THEN 0 WHEN {x.sql} <= {below} THEN {n.sql} + 1 "
        f"ELSE {down} END END"
    )
    return combined(sql, LONG, [x, low, high, n], label=call_label(name, args))
