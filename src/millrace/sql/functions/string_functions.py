"""Functions of text, as Spark calculates them: positions count characters from 1."""

from __future__ import annotations

import re
from typing import Final

from millrace.sql.engine_functions import macro
from millrace.sql.functions.casts import cast, to_text
from millrace.sql.functions.function_registry import ANY_NUMBER, function
from millrace.sql.functions.nested.array_functions import concat_arrays
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    require,
    text_literal,
)
from millrace.sql.types import BINARY, BOOLEAN, INT, STRING, VOID
from millrace.sql.vectorised import letter_case

VECTORISED: Final = (letter_case,)
"""Imported for the functions that they give the engine."""
TEXT: Final = "Text"
_ALL: Final = 2147483647
# Characters whose other case Java and DuckDB disagree on: those with a case of several characters,
# and letters newer than DuckDB's tables.
_UPPER_UNCERTAIN: Final = (
    "\u0149\u019b\u01f0\u0264\u0390\u03b0\u0587\u1c8a\u1e96-\u1e9a\u1f50\u1f52\u1f54\u1f56"
    "\u1f80-\u1faf\u1fb2-\u1fb4\u1fb6\u1fb7\u1fbc\u1fc2-\u1fc4\u1fc6\u1fc7\u1fcc\u1fd2\u1fd3"
    "\u1fd6\u1fd7\u1fe2-\u1fe4\u1fe6\u1fe7\u1ff2-\u1ff4\u1ff6\u1ff7\u1ffc\ua7cd\ua7cf\ua7d3\ua7d5"
    "\ua7db\ufb00-\ufb06\ufb13-\ufb17\U00010d70-\U00010d85\U00016ebb-\U00016ed3"
)
_LOWER_UNCERTAIN: Final = (
    # A capital sigma at the end of a word has a small form of its own.
    "\u03a3"
    "\u1c89\ua7cb\ua7cc\ua7ce\ua7d2\ua7d4\ua7da\ua7dc\U00010d50-\U00010d65\U00016ea0-\U00016eb8"
)


macro(
    "spark_in_upper",
    "s",
    f"CASE WHEN regexp_matches(s, {text_literal(f'[{_UPPER_UNCERTAIN}]')}) THEN spark_upper(s) "
    "ELSE upper(replace(s, 'ß', 'SS')) END",
)
macro(
    "spark_in_lower",
    "s",
    f"CASE WHEN regexp_matches(s, {text_literal(f'[{_LOWER_UNCERTAIN}]')}) THEN spark_lower(s) "
    "ELSE lower(replace(s, 'İ', 'i̇')) END",
)
_CASED: Final = re.compile(r"CAST\(spark_in_(?:upper|lower)\((.*)\) AS VARCHAR\)", re.DOTALL)


def _in_case(step: str, name: str, args: list[TypedSql]) -> TypedSql:
    """Of two changes of case, one upon the other, Spark computes only the last."""
    x = to_text(args[0], name)
    inner = _CASED.fullmatch(x.sql)
    sql = f"{step}({inner[1] if inner else x.sql})"
    return combined(sql, STRING, [x], label=call_label(name, args))


@function("upper(s); ucase(s)", group=TEXT)
def _upper(name: str, args: list[TypedSql]) -> TypedSql:
    return _in_case("spark_in_upper", name, args)


@function("lower(s); lcase(s)", group=TEXT)
def _lower(name: str, args: list[TypedSql]) -> TypedSql:
    return _in_case("spark_in_lower", name, args)


@function("length(s); len(s); char_length(s); character_length(s)", group=TEXT)
def _length(name: str, args: list[TypedSql]) -> TypedSql:
    if args[0].type == BINARY:
        sql = f"octet_length({args[0].sql})"
        return combined(sql, INT, args, label=call_label(name, args))
    x = to_text(args[0], name)
    return combined(f"length({x.sql})", INT, [x], label=call_label(name, args))


def _no_bytes(name: str, part: TypedSql) -> TypedSql:
    """A text; of bytes, Spark takes bytes."""
    if part.type == BINARY:
        raise NotNative(
            f"{name} of binary is not known here",
            found=part.label or part.sql,
            fix="cast it to string",
        )
    return to_text(part, name)


def _whole(name: str, part: TypedSql) -> TypedSql:
    require(part, part.type.is_integer, "a whole number", name)
    return cast(part, INT)


def _part(x: TypedSql, start: TypedSql, size: TypedSql) -> str:
    """The characters from `start`, which counts from the end when it is negative."""
    sized = f"CAST({size.sql} AS BIGINT)"
    if isinstance(start.literal, int) and start.literal >= 0:
        return f"substring({x.sql}, {max(start.literal, 1)}, greatest({sized}, 0))"
    at = f"CAST({start.sql} AS BIGINT)"
    begin = (
        f"(CASE WHEN {at} > 0 THEN {at} - 1 WHEN {at} < 0 THEN length({x.sql}) + {at} ELSE 0 END)"
    )
    end = f"({begin} + {sized})"
    count = f"greatest({end} - greatest({begin}, 0), 0)"
    return f"substring({x.sql}, greatest({begin}, 0) + 1, {count})"


def _not_null(sql: str, *parts: TypedSql) -> str:
    missing = " OR ".join(f"{part.sql} IS NULL" for part in parts)
    return f"CASE WHEN {missing} THEN NULL ELSE {sql} END"


@function("substring(s, start, size); substr(s, start, size)", group=TEXT, least=2, most=3)
def _substring(name: str, args: list[TypedSql]) -> TypedSql:
    x, start = _no_bytes(name, args[0]), _whole(name, args[1])
    start = args[1] if isinstance(args[1].literal, int) else start
    size = _whole(name, args[2]) if len(args) > 2 else _number(_ALL)  # noqa: PLR2004
    extra = () if len(args) > 2 else (str(_ALL),)  # noqa: PLR2004
    sql = _not_null(_part(x, start, size), x, start, size)
    return combined(sql, STRING, [x, start, size], label=call_label(name, args, *extra))


def _number(value: int) -> TypedSql:
    return TypedSql(sql=f"CAST({value} AS INTEGER)", type=INT, label=str(value), literal=value)


@function("left(s, size)", group=TEXT, least=2)
def _left(name: str, args: list[TypedSql]) -> TypedSql:
    x, size = _no_bytes(name, args[0]), _whole(name, args[1])
    sql = _not_null(_part(x, _number(1), size), x, size)
    return combined(sql, STRING, [x, size], label=call_label(name, args))


@function("right(s, size)", group=TEXT, least=2)
def _right(name: str, args: list[TypedSql]) -> TypedSql:
    x, size = _no_bytes(name, args[0]), _whole(name, args[1])
    back = TypedSql(sql=f"(-CAST({size.sql} AS BIGINT))", type=INT)
    part = f"CASE WHEN {size.sql} <= 0 THEN '' ELSE {_part(x, back, _number(_ALL))} END"
    return combined(_not_null(part, x, size), STRING, [x, size], label=call_label(name, args))


_SIDES: Final = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}


@function("trim(chars, s); ltrim(chars, s); rtrim(chars, s)", group=TEXT, most=2)
def _trim(name: str, args: list[TypedSql]) -> TypedSql:
    """The text is the last argument, as in `trim(BOTH 'x' FROM s)`."""
    x = to_text(args[-1], name)
    if len(args) == 1:
        return combined(f"{name}({x.sql}, ' ')", STRING, [x], label=call_label(name, args))
    chars = to_text(args[0], name)
    label = None
    if args[0].label is not None and args[1].label is not None:
        label = f"TRIM({_SIDES[name]} {args[0].label} FROM {args[1].label})"
    return combined(f"{name}({x.sql}, {chars.sql})", STRING, [chars, x], label=label)


@function("btrim(s, chars)", group=TEXT, most=2)
def _btrim(name: str, args: list[TypedSql]) -> TypedSql:
    parts = [to_text(part, name) for part in args]
    chars = parts[1].sql if len(parts) > 1 else "' '"
    return combined(f"trim({parts[0].sql}, {chars})", STRING, parts, label=call_label(name, args))


@function("replace(s, search, replacement)", group=TEXT, least=2, most=3)
def _replace(name: str, args: list[TypedSql]) -> TypedSql:
    parts = [to_text(part, name) for part in args]
    if len(parts) == 2:  # noqa: PLR2004
        parts.append(TypedSql(sql="''", type=STRING, label="", literal=""))
    sql = f"replace({', '.join(part.sql for part in parts)})"
    return combined(sql, STRING, parts, label=call_label(name, parts))


_TESTS: Final = {"startswith": "starts_with", "endswith": "suffix", "contains": "contains"}


@function("startswith(s, part); endswith(s, part); contains(s, part)", group=TEXT, least=2)
def _holds(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = _no_bytes(name, args[0]), _no_bytes(name, args[1])
    return combined(
        f"{_TESTS[name]}({x.sql}, {y.sql})", BOOLEAN, [x, y], label=call_label(name, args)
    )


@function("instr(s, part)", group=TEXT, least=2)
def _instr(name: str, args: list[TypedSql]) -> TypedSql:
    x, y = to_text(args[0], name), to_text(args[1], name)
    sql = f"CASE WHEN {y.sql} = '' AND {x.sql} IS NOT NULL THEN 1 ELSE instr({x.sql}, {y.sql}) END"
    return combined(sql, INT, [x, y], label=call_label(name, args))


@function("concat(a, b, ...)", group=TEXT, most=ANY_NUMBER)
def concat(name: str, args: list[TypedSql]) -> TypedSql:
    """Text put together; null if any part is. Parts that are all binary stay binary."""
    if any(part.type.is_array for part in args):
        return concat_arrays(name, args)
    if args and all(part.type == BINARY for part in args):
        sql = " || ".join(part.sql for part in args)
        return combined(f"({sql})", BINARY, args, label=call_label(name, args))
    parts = [cast(part, STRING) if part.type == VOID else to_text(part, name) for part in args]
    sql = " || ".join(part.sql for part in parts)
    return combined(f"({sql})", STRING, parts, label=call_label(name, args))
