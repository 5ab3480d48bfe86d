"""Casts with Spark's rules: in ANSI mode what does not fit is an error, never a null.

Invariant: a cast gives Spark's value or fails. Text is checked against the spellings Spark takes
before DuckDB reads it, as DuckDB takes more. A pair that cannot be made exact is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Final

from millrace.sql.functions.cast_texts import (
    BLANK,
    BLANK_OR_DELETE,
    NUMBER,
    PLAIN_NUMBER,
    WHOLE,
    between,
    word_steps,
)
from millrace.sql.functions.lenient_casts import LENIENT, finite_digits
from millrace.sql.functions.nested.nested_casts import cast_nested
from millrace.sql.functions.times.day_macros import DATE_TEXT
from millrace.sql.functions.times.time_macros import READ_TEXT, reads_times_of_day
from millrace.sql.sql_mode import in_ansi_mode, with_ansi
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    as_type,
    combined,
    day_literal,
    null_of,
    text_literal,
)
from millrace.sql.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    PRECISION_MAX,
    STRING,
    VOID,
    SqlType,
    as_decimal,
)
from millrace.sql.vectorised import number_texts

VECTORISED: Final = (number_texts,)
"""Imported for the functions that they give the engine."""
# Doubles below it print the same digits in DuckDB and in every Java.
PLAIN_DOUBLE_MAX: Final = "9007199254740992"
_FULL_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_PLAIN_SCALE_MAX: Final = 6
"""With no more digits behind the point Java writes a decimal without an exponent."""
_FLOAT_MAX: Final = "3.4028235677973366e38"


def cast(term: TypedSql, to: SqlType, *, label: str | None = None) -> TypedSql:
    """The term as another type."""
    label = label if label is not None else term.label
    if term.type == to:
        return replace(term, label=label, literal=None, day=None)
    if term.type == VOID:
        return TypedSql(sql=null_of(to).sql, type=to, label=label)
    if term.type.is_nested or to.is_nested:
        return cast_nested(term, to, cast, label)
    day = written_day(term.literal) if to == DATE else None
    if day is not None:
        return day_literal(day, label)
    sql, raises = _written(term, to)
    certain = term.never_null and not raises and term.type != STRING and to != DATE
    return combined(sql, to, [term], label=label, raises=raises, never_null=certain)


def tried_cast(term: TypedSql, to: SqlType, *, label: str | None = None) -> TypedSql:
    """The term as another type, null where that fails in ANSI mode, whatever the session says."""
    fails = term.raises or reads_times_of_day(term.sql)
    if fails or term.type == BINARY or term.type.is_nested or to.is_nested:
        raise NotNative("try_cast of this is Spark's", found=term.label or term.sql, fix="use cast")
    if term.type in (to, VOID):
        return cast(term, to, label=label)
    if term.type == STRING and to in READ_TEXT:
        sql, raises = f"{READ_TEXT[to]}({term.sql})", False
    else:
        with with_ansi(ansi=True):
            sql, raises = _written(term, to)
        sql = sql.replace(_unread(term, to), "NULL")  # TRY takes no error().
    typed = as_type(sql, to)
    return TypedSql(
        sql=f"TRY({typed})" if raises else typed, type=to, columns=term.columns, label=label
    )


def written_day(text: str | int | None) -> date | None:
    """The day that a text names in full, so that nothing is computed for each row."""
    if not isinstance(text, str) or not _FULL_DAY.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def to_text(term: TypedSql, where: str) -> TypedSql:
    """An argument that Spark turns into text by itself."""
    if term.type.is_floating:
        raise NotNative(
            f"{where} needs text",
            found=f"{term.label or term.sql} of type {term.type}",
            fix="cast it to a decimal first; how a double is written depends on the Java version",
        )
    return cast(term, STRING)


def family(kind: SqlType) -> str:
    """Types that are cast alike."""
    if kind.is_integer:
        return "integer"
    if kind.is_floating:
        return "floating"
    return kind.name


def _written(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    lenient = LENIENT.get((family(term.type), family(to)))
    sql = None if lenient is None or in_ansi_mode() else lenient(term, to)
    if sql is not None:
        return sql, False
    writer = _WRITERS.get((family(term.type), family(to)))
    if writer is None:
        raise NotNative(
            f"{term.type} cannot be cast to {to}",
            found=f"{term.label or term.sql}",
            fix=_HINTS.get((family(term.type), family(to)), "choose another type, or map_batches"),
        )
    return writer(term, to)


def _plain(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return term.sql, False


def _exact(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    old, new = as_decimal(term.type), as_decimal(to)
    room = (new.precision - new.scale) - (old.precision - old.scale)
    fits = room > 0 or (room == 0 and new.scale >= old.scale)  # Rounding can add a digit.
    return term.sql, not fits and term.literal is None


def _floating(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    if to == DOUBLE:
        return term.sql, False
    x = term.sql
    beyond = f"NOT isnan({x}) AND abs({x}) >= {_FLOAT_MAX}"
    infinite = f"CASE WHEN {x} > 0 THEN 'inf' ELSE '-inf' END"
    value = f"CASE WHEN {beyond} THEN CAST({infinite} AS FLOAT) ELSE CAST({x} AS FLOAT) END"
    return value, in_ansi_mode()


def _floating_to_integer(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    x = as_type(term.sql, DOUBLE)
    whole = as_type(f"trunc({x})", to)
    if to == LONG:
        edge = "CAST(9223372036854775808 AS DOUBLE)"
        whole = f"CASE WHEN {x} = {edge} THEN 9223372036854775807 ELSE {whole} END"
    return whole, True


def _floating_to_decimal(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    return as_type(finite_digits(term, to), to), True


def _decimal_to_integer(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    return as_type(f"trunc({term.sql})", to), True


def _decimal_to_floating(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    if to == FLOAT:
        return f"CAST({term.sql} AS VARCHAR)", False
    exact = 15
    if term.type.precision <= exact:
        return term.sql, False
    return f"CAST({term.sql} AS VARCHAR)", False


def _decimal_to_text(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    precision, scale = term.type.precision, term.type.scale
    if scale > _PLAIN_SCALE_MAX and not in_ansi_mode():
        raise NotNative(
            f"{term.type} cannot be cast to string",
            found=f"{term.label or term.sql}: outside of ANSI mode it may have an exponent",
            fix=f"cast it to a decimal of at most {_PLAIN_SCALE_MAX} digits behind the point",
        )
    if precision > scale:
        return term.sql, False
    if precision == PRECISION_MAX:
        raise NotNative(
            f"{term.type} cannot be cast to string",
            found=term.label or term.sql,
            fix="cast it to a decimal with a digit before the point",
        )
    return f"CAST({term.sql} AS DECIMAL({precision + 1},{scale}))", False


def _number_to_boolean(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return f"({term.sql} <> 0)", False


def _boolean_to_number(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    return as_type(f"CAST({term.sql} AS TINYINT)", to), to.is_decimal


def _unread(term: TypedSql, to: SqlType) -> str:
    """SQL that fails with the value and its column."""
    after = text_literal(f"' of {term.label or 'an expression'} to {to}")
    return f"error(concat('cannot cast ''', {term.sql}, {after}))"


def _text_to_integer(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    x = term.sql
    good = f"regexp_full_match({x}, {between(BLANK_OR_DELETE, WHOLE)})"
    digits = as_type(f"regexp_extract({x}, {text_literal(WHOLE)})", to)
    return _first_of(term, to, f"WHEN {good} THEN {digits}"), True


def _text_to_decimal(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    x = term.sql
    good = f"regexp_full_match({x}, {between(BLANK, PLAIN_NUMBER)})"
    digits = as_type(f"regexp_extract({x}, {text_literal(PLAIN_NUMBER)})", to)
    rare = as_type(f"spark_decimal_text({x}, {to.scale})", to)
    return _first_of(term, to, f"WHEN {good} THEN {digits}", rare), True


def _text_to_floating(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    if to == FLOAT:
        raise NotNative(
            "string cannot be cast to float", found=term.label or "", fix="cast it to double first"
        )
    x = term.sql
    good = f"regexp_full_match({x}, {between(BLANK, NUMBER)})"
    number = as_type(f"regexp_extract({x}, {text_literal(NUMBER)})", DOUBLE)
    return _first_of(term, to, f"WHEN {good} THEN {number}", f"spark_double_of_text({x})"), True


def _text_to_boolean(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    return _first_of(term, to, word_steps(term.sql)), True


def _first_of(term: TypedSql, to: SqlType, steps: str, rare: str = "NULL") -> str:
    """The value of a text by the steps, or by the rare way; a text without a value fails."""
    other = f"coalesce({rare}, {_unread(term, to)})" if rare != "NULL" else _unread(term, to)
    return f"CASE WHEN {term.sql} IS NULL THEN NULL {steps} ELSE {other} END"


def _text_to_moment(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    """Text that a macro reads; where that gives null the text is malformed."""
    if not in_ansi_mode():
        return f"{READ_TEXT[to]}({term.sql})", False
    stop = f"CASE WHEN {term.sql} IS NULL THEN NULL ELSE {_unread(term, to)} END"
    return f"coalesce({READ_TEXT[to]}({term.sql}), {stop})", True


def _local_to_instant(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return f"spark_instant({term.sql})", False


def _date_to_text(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return DATE_TEXT.format(term.sql), False


def _moment_to_text(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return f"spark_timestamp_to_text({term.sql})", False


def _moment_to_integer(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    micros = f"epoch_us({term.sql})"
    seconds = f"(({micros} - (({micros} % 1000000) + 1000000) % 1000000) // 1000000)"
    return seconds, to != LONG


def _moment_to_floating(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    if to != DOUBLE:
        raise NotNative(f"timestamp cannot be cast to {to}", fix="cast it to double first")
    return f"(CAST(epoch_us({term.sql}) AS DOUBLE) / CAST(1000000 AS DOUBLE))", False


def _integer_to_moment(term: TypedSql, to: SqlType) -> tuple[str, bool]:
    if term.type == LONG and not isinstance(term.literal, int):
        raise NotNative(
            f"bigint cannot be cast to {to}",
            found=f"{term.label or term.sql}, which may be beyond the years that the engine has",
            fix="use timestamp_seconds",
        )
    return f"make_timestamptz(CAST({term.sql} AS BIGINT) * 1000000)", term.type == LONG


def _binary_to_text(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return f"decode({term.sql})", True


def _text_to_binary(term: TypedSql, _: SqlType) -> tuple[str, bool]:
    return f"encode({term.sql})", False


_WRITERS: Final[dict[tuple[str, str], Callable[[TypedSql, SqlType], tuple[str, bool]]]] = {
    ("integer", "integer"): _exact,
    ("integer", "floating"): _plain,
    ("integer", "decimal"): _exact,
    ("integer", "boolean"): _number_to_boolean,
    ("integer", "string"): _plain,
    ("floating", "floating"): _floating,
    ("floating", "integer"): _floating_to_integer,
    ("floating", "decimal"): _floating_to_decimal,
    ("floating", "boolean"): _number_to_boolean,
    ("decimal", "decimal"): _exact,
    ("decimal", "integer"): _decimal_to_integer,
    ("decimal", "floating"): _decimal_to_floating,
    ("decimal", "boolean"): _number_to_boolean,
    ("decimal", "string"): _decimal_to_text,
    ("boolean", "integer"): _boolean_to_number,
    ("boolean", "floating"): _boolean_to_number,
    ("boolean", "decimal"): _boolean_to_number,
    ("boolean", "string"): _plain,
    ("string", "integer"): _text_to_integer,
    ("string", "decimal"): _text_to_decimal,
    ("string", "floating"): _text_to_floating,
    ("string", "boolean"): _text_to_boolean,
    ("string", "date"): _text_to_moment,
    ("string", "timestamp"): _text_to_moment,
    ("string", "timestamp_ntz"): _text_to_moment,
    ("string", "binary"): _text_to_binary,
    ("binary", "string"): _binary_to_text,
    ("date", "string"): _date_to_text,
    ("date", "timestamp"): _local_to_instant,
    ("date", "timestamp_ntz"): _plain,
    ("timestamp", "string"): _moment_to_text,
    ("timestamp", "date"): _plain,
    ("timestamp", "timestamp_ntz"): _plain,
    ("timestamp", "integer"): _moment_to_integer,
    ("timestamp", "floating"): _moment_to_floating,
    ("integer", "timestamp"): _integer_to_moment,
    ("timestamp_ntz", "string"): _moment_to_text,
    ("timestamp_ntz", "date"): _plain,
    ("timestamp_ntz", "timestamp"): _local_to_instant,
}
_HINTS: Final = {
    ("floating", "string"): (
        "cast it to a decimal first; how a double is written depends on the Java version"
    ),
}
