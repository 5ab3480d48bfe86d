"""Patterns of text: LIKE for several patterns and without case, and regular expressions as in Java.

Invariant: a regular expression is written out in the query, and means the same in RE2 or Python as
in Java. Every other pattern is left to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.sql.functions.casts import cast, to_text
from millrace.sql.functions.conditions import connect, like, negate_condition
from millrace.sql.functions.function_registry import call, function
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    call_label,
    combined,
    text_literal,
)
from millrace.sql.types import BOOLEAN, INT, STRING, VOID, array_of
from millrace.sql.vectorised import pattern_calls
from millrace.sql.vectorised.java_classes import PatternUnknown
from millrace.sql.vectorised.java_patterns import JavaPattern, java_pattern

VECTORISED: Final = (pattern_calls,)
"""Imported for the functions that they give the engine."""
PATTERNS: Final = "Patterns"
_LAST_LINE_END: Final = text_literal(r"[\n\r\x{85}\x{2028}\x{2029}]\z")


def ilike(part: TypedSql, pattern: TypedSql, escape: str = "\\") -> TypedSql:
    """LIKE over small letters."""
    matches = like(call("lower", [part]), _lowered(pattern), escape)
    return combined(matches.sql, BOOLEAN, [matches], label=call_label("ilike", [part, pattern]))


def _lowered(pattern: TypedSql) -> TypedSql:
    """A pattern in small letters; one that is written out stays so."""
    if isinstance(pattern.literal, str) and pattern.literal.isascii():
        return TypedSql(
            sql=text_literal(pattern.literal.lower()),
            type=STRING,
            label=pattern.label,
            literal=pattern.literal.lower(),
        )
    return call("lower", [pattern])


def like_several(
    part: TypedSql,
    patterns: Sequence[TypedSql],
    *,
    every: bool,
    negate: bool,
    ignore_case: bool,
) -> TypedSql:
    """LIKE ANY or LIKE ALL."""
    one_like = ilike if ignore_case else like
    terms = [one_like(part, pattern, "\\") for pattern in patterns]
    terms = [negate_condition(term) if negate else term for term in terms]
    whole = connect("AND" if every else "OR", terms) if len(terms) > 1 else terms[0]
    label = whole.label
    if all(isinstance(pattern.literal, str) for pattern in patterns):
        name = f"{'not' if negate else ''}like{'all' if every else 'any'}"
        label = call_label(name, [call("lower", [part]) if ignore_case else part])
    return combined(whole.sql, BOOLEAN, [whole], label=label)


@function("like(s, pattern, escape); ilike(s, pattern, escape)", group=PATTERNS, least=2, most=3)
def _like(name: str, args: list[TypedSql]) -> TypedSql:
    escape = args[2].literal if len(args) > 2 else "\\"  # noqa: PLR2004
    if not isinstance(escape, str) or len(escape) != 1:
        raise NotNative("the escape of LIKE is one character, written out", fix="write it out")
    return (ilike if name == "ilike" else like)(args[0], args[1], escape)


def _pattern(name: str, part: TypedSql) -> JavaPattern:
    if not isinstance(part.literal, str) or part.type != STRING:
        raise NotNative(
            f"{name} needs its pattern written out",
            found=part.label or part.sql,
            fix="write it as a text in quotes",
        )
    try:
        return java_pattern(part.literal)
    except PatternUnknown as error:
        raise NotNative(
            f"{name} has a pattern that only Java's regular expressions know",
            found=str(error),
            fix="use groups, classes, |, *, +, ?, {n,m}, ^ and $ only",
        ) from None


def _chosen(x: TypedSql, pattern: JavaPattern, fast: str | None, slow: str) -> str:
    """RE2's answer, or Python's for the texts for which RE2's form of the pattern does not hold."""
    if fast is None or pattern.re2 is None:
        return slow
    rare = [f"regexp_matches({x.sql}, {_LAST_LINE_END})"] if pattern.has_end else []
    rare += [f"strlen({x.sql}) <> length({x.sql})"] if pattern.has_pairs else []
    return f"CASE WHEN {' OR '.join(rare)} THEN {slow} ELSE {fast} END" if rare else fast


def _text(part: TypedSql, name: str) -> TypedSql:
    return cast(part, STRING) if part.type == VOID else to_text(part, name)


@function("rlike(s, pattern); regexp(s, pattern); regexp_like(s, pattern)", group=PATTERNS, least=2)
def _rlike(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    fast = f"regexp_matches({x.sql}, {text_literal(pattern.re2 or '')})"
    slow = f"spark_regexp_like({x.sql}, {text_literal(pattern.python)})"
    sql = _chosen(x, pattern, fast, slow)
    return combined(sql, BOOLEAN, [x], label=call_label(name.upper(), args))


@function("regexp_replace(s, pattern, replacement)", group=PATTERNS, least=3, most=4)
def _regexp_replace(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    position = args[3].literal if len(args) > 3 else 1  # noqa: PLR2004
    if position != 1 or not isinstance(args[2].literal, str):
        raise NotNative(
            "regexp_replace needs its replacement written out, and begins at the first character",
            found=args[2].label or args[2].sql,
            fix="write it as a text in quotes",
        )
    _never_empty(name, pattern)
    parts = _replacement(args[2].literal, pattern)
    if pattern.groups_repeat and any(isinstance(part, int) and part for part in parts):
        raise _repeated(name)
    re2 = "".join(f"\\{p}" if isinstance(p, int) else p.replace("\\", "\\\\") for p in parts)
    python = "".join(f"\\g<{p}>" if isinstance(p, int) else p.replace("\\", "\\\\") for p in parts)
    fast = f"regexp_replace({x.sql}, {text_literal(pattern.re2 or '')}, {text_literal(re2)}, 'g')"
    slow = f"spark_regexp_replace({x.sql}, {text_literal(pattern.python)}, {text_literal(python)})"
    sql = _chosen(x, pattern, None if _beyond(parts) else fast, slow)
    return combined(sql, STRING, [x], label=call_label(name, args[:3], "1"))


def _never_empty(name: str, pattern: JavaPattern) -> None:
    """Java finds no character also between the halves of a pair of 16 bits."""
    if pattern.may_be_empty:
        raise NotNative(
            f"{name} has a pattern that may match no character",
            fix="use + where * stands, or let it match a character",
        )


def _beyond(parts: list[str | int]) -> bool:
    """Whether a group has two digits, which RE2 does not read."""
    return any(isinstance(part, int) and part > 9 for part in parts)  # noqa: PLR2004


def _repeated(name: str) -> NotNative:
    return NotNative(
        f"{name} takes a group that may match several times",
        fix="put the repetition within the group, as in (a+)",
    )


def _replacement(text: str, pattern: JavaPattern) -> list[str | int]:
    r"""Texts and numbers of groups, as Java reads `$1` and `\\$`."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            parts.append(text[at + 1])
            at += 2
        elif text[at] == "$" and text[at + 1 : at + 2] in [*"0123456789"]:
            number, at = int(text[at + 1]), at + 2
            while text[at : at + 1] in [*"0123456789"] and (
                number * 10 + int(text[at]) <= pattern.groups
            ):
                number, at = number * 10 + int(text[at]), at + 1
            if number > pattern.groups:
                raise NotNative("the replacement names a group that is not there", fix="name one")
            parts.append(number)
        elif text[at] in "\\$":
            raise NotNative("the replacement has a name or an open escape", fix="use $1")
        else:
            parts.append(text[at])
            at += 1
    return parts


def _group_number(name: str, args: list[TypedSql], pattern: JavaPattern) -> int:
    number = args[2].literal if len(args) > 2 else 1  # noqa: PLR2004
    if not isinstance(number, int) or not 0 <= number <= pattern.groups:
        raise NotNative(
            f"{name} needs the number of a group of its pattern, written out",
            found=str(number),
            fix=f"use 0 to {pattern.groups}",
        )
    if number and pattern.groups_repeat:
        raise _repeated(name)
    return number


def _extracted(x: TypedSql, pattern: JavaPattern, number: int) -> str:
    fast = f"regexp_extract({x.sql}, {text_literal(pattern.re2 or '')}, {number})"
    slow = f"spark_regexp_extract({x.sql}, {text_literal(pattern.python)}, {number})"
    # RE2's numbers of groups have one digit.
    return _chosen(x, pattern, fast if number <= 9 else None, slow)  # noqa: PLR2004


@function("regexp_extract(s, pattern, group)", group=PATTERNS, least=2, most=3)
def _regexp_extract(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    number = _group_number(name, args, pattern)
    sql = _extracted(x, pattern, number)
    return combined(sql, STRING, [x], label=call_label(name, args[:2], str(number)))


@function("regexp_substr(s, pattern)", group=PATTERNS, least=2)
def _regexp_substr(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    sql = f"nullif({_extracted(x, pattern, 0)}, '')"
    return combined(sql, STRING, [x], label=call_label(name, args))


@function("regexp_extract_all(s, pattern, group)", group=PATTERNS, least=2, most=3)
def _regexp_extract_all(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    number = _group_number(name, args, pattern)
    _never_empty(name, pattern)
    if pattern.re2 is None or pattern.has_end or pattern.has_pairs or number > 9:  # noqa: PLR2004
        raise NotNative(
            f"{name} has a pattern that only Java's regular expressions know",
            found=args[1].label or "",
            fix="leave out $, (?i), [aA] and look-aheads",
        )
    every = f"regexp_extract_all({x.sql}, {text_literal(pattern.re2)}, {number})"
    sql = f"list_transform({every}, lambda part: coalesce(part, ''))"
    label = call_label(name, args[:2], str(number))
    return combined(sql, array_of(STRING), [x], label=label)


@function("regexp_count(s, pattern)", group=PATTERNS, least=2)
def _regexp_count(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    fast = f"len(regexp_extract_all({x.sql}, {text_literal(pattern.re2 or '')}))"
    slow = f"spark_regexp_count({x.sql}, {text_literal(pattern.python)})"
    _never_empty(name, pattern)
    sql = _chosen(x, pattern, fast, slow)
    return combined(sql, INT, [x], label=call_label(name, args))


@function("regexp_instr(s, pattern)", group=PATTERNS, least=2)
def _regexp_instr(name: str, args: list[TypedSql]) -> TypedSql:
    x, pattern = _text(args[0], name), _pattern(name, args[1])
    sql = f"spark_regexp_instr({x.sql}, {text_literal(pattern.python)})"
    return combined(sql, INT, [x], label=call_label(name, args, "0"))
