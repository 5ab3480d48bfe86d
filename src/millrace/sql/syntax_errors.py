"""Explains what is wrong with a text that is not Spark SQL: where, and what was expected.

Invariant: a mark is below the exact position, also in a text of many lines or a very long one.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from millrace.sql.typed_sql import ExpressionRefused
from millrace.text import did_you_mean

_LINE_CHARS_MAX: Final = 100
_CALL_CHARS_MAX: Final = 400
_LABEL: Final = len("  found: ")
_NOT_SQL: Final = "the expression is not Spark SQL"
_TYPE_NAMES: Final = (
    *("boolean", "tinyint", "smallint", "int", "integer", "bigint", "long", "float", "double"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz", "decimal"),
)
_MISSING: Final = re.compile(r"missing for <class '[\w.]*\.(\w+)'>")
_OTHER_LANGUAGES: Final = {
    "&&": "write AND",
    "!": "write NOT, or <> for unequal",
    ",": "pass several expressions one by one, each a text of its own",
    ":": "write AS for a name, or a comparison",
    "=": "write one =, as in a = 1",
}


def clipped(text: str, most: int = _CALL_CHARS_MAX) -> str:
    """The text, without its middle if it is very long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def pointed(sql: str, start: int, length: int = 1) -> str:
    """The line around a position, with a mark below it."""
    first = sql.rfind("\n", 0, start) + 1
    end = sql.find("\n", start)
    line = sql[first : len(sql) if end < 0 else end]
    column = start - first
    before = max(0, column - _LINE_CHARS_MAX // 2)
    shown = line[before : before + _LINE_CHARS_MAX]
    lead = "... " if before else ""
    tail = " ..." if before + _LINE_CHARS_MAX < len(line) else ""
    width = max(1, min(length, len(shown) - (column - before)))
    blank = " " * (_LABEL + len(lead) + column - before)
    return f"{lead}{shown}{tail}\n{blank}{'^' * width}"


def not_sql(error: SqlglotError, sql: str) -> ExpressionRefused:
    """The refusal of a text that could not be read."""
    if not isinstance(error, ParseError) or not error.errors:
        return _not_closed(sql)
    problem = error.errors[0]
    word = str(problem["highlight"] or "")
    start = _position(sql, int(problem["line"] or 1), int(problem["col"] or 1), word)
    what, fix = _expected(str(problem["description"]), word)
    after = what.endswith("is missing") or "after" in what
    pointed_at = pointed(sql, start + len(word)) if after else pointed(sql, start, len(word))
    return ExpressionRefused(f"{_NOT_SQL}: {what}", found=pointed_at, fix=fix)


def refuse_name(tree: exp.Expression, text: str, fix: str = "leave it out") -> None:
    """Refuse a name behind an expression, with AS or without, where none can be given."""
    if not isinstance(tree, exp.Alias):
        return
    name = tree.alias
    start = max(text.lower().rfind(name.lower()), 0)
    if re.search(rf"\bas\s+[`\"]?{re.escape(name)}", text, re.IGNORECASE):
        raise ExpressionRefused(
            "a name has no place here", found=pointed(text, start, len(name)), fix=fix
        )
    raise ExpressionRefused(
        f"{_NOT_SQL}: {name} was not expected here",
        found=pointed(text, start, len(name)),
        fix="write an operator such as = or AND before it, or leave it out",
    )


def _position(sql: str, line: int, column: int, word: str) -> int:
    """The position of the word that the parser stopped at; it counts to the word's end."""
    begin = 0
    for _ in range(line - 1):
        begin = sql.find("\n", begin) + 1
    start = begin + column - len(word)
    return start if sql[start : start + len(word)] == word else max(0, sql.rfind(word))


def _expected(description: str, word: str) -> tuple[str, str]:
    """What was expected, and what to do."""
    missing = _MISSING.search(description)
    if missing is not None:
        return f"a value is expected after {word}", f"write a column or a value after {word}"
    if description.startswith("Expecting "):
        sign = description.removeprefix("Expecting ")
        return f"a {sign} is missing", f"add {sign}"
    if description.startswith("Expected TYPE"):
        named = f"use one of {', '.join(_TYPE_NAMES)}"
        return f"{word} is not a type", did_you_mean(word, _TYPE_NAMES, named)
    if description.startswith("Expected AS"):
        return "AS is missing", "write cast(value AS type)"
    if description.startswith("Expected "):
        sign = description.removeprefix("Expected ").split(" after ")[0]
        return f"{sign} is missing", f"add {sign}"
    other = "write an operator such as = or AND before it, or leave it out"
    return f"{word} was not expected here", _OTHER_LANGUAGES.get(word, other)


def _not_closed(sql: str) -> ExpressionRefused:
    """A quote or a comment that begins and does not end."""
    closed = re.compile(
        r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`[^`]*`|/\*.*?\*/", re.DOTALL
    )
    rest = closed.sub(lambda match: "_" * len(match[0]), sql)
    opened = re.search(r"['\"`]|/\*", rest)
    if opened is None:
        return ExpressionRefused(_NOT_SQL, found=clipped(sql), fix="write a Spark SQL expression")
    what = "comment" if opened[0] == "/*" else "quote"
    end = "*/" if opened[0] == "/*" else opened[0]
    return ExpressionRefused(
        f"{_NOT_SQL}: a {what} does not end",
        found=pointed(sql, opened.start(), len(opened[0])),
        fix=f"add {end} where it ends",
    )
