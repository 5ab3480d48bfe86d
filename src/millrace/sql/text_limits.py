"""Limits how deep and how large a user's expression may be.

Invariant: a text within the limits is read, typed and written as SQL without meeting the end of
Python's stack; one beyond is refused with the limit's name before it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from millrace.config import Config
from millrace.sql.typed_sql import SQL_CHARS_MAX, ExpressionRefused

DEEP_ENOUGH: Final = 10
"""Up to here Python's usual stack has room."""
_FRAMES_PER_LEVEL: Final = 45
_depth_max: ContextVar[int] = ContextVar(
    "expression_depth_max", default=Config().expression_depth_max
)
_OPENING: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE})
_CLOSING: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END})
_BETWEEN: Final = frozenset(
    {
        *(TokenType.COMMA, TokenType.AND, TokenType.OR),
        *(TokenType.WHEN, TokenType.THEN, TokenType.ELSE),
    }
)
_WORDS: Final = frozenset({"NOT", "DIV", "LIKE", "IN", "IS", "BETWEEN"})


@contextmanager
def limits_of(config: Config) -> Iterator[None]:
    """Read texts under the limits of a workspace."""
    depth = _depth_max.set(config.expression_depth_max)
    size = SQL_CHARS_MAX.set(config.expression_sql_chars_max)
    try:
        yield
    finally:
        SQL_CHARS_MAX.reset(size)
        _depth_max.reset(depth)


def check_depth(tokens: Sequence[Token]) -> None:
    """Refuse a text that nests deeper than the limit; make room on Python's stack for others."""
    depth = depth_of(tokens)
    most = _depth_max.get()
    if depth > most:
        raise ExpressionRefused(
            "the expression nests too deep",
            found=f"{depth:,} levels of brackets and operators; expression_depth_max is {most:,}",
            fix="calculate parts of it in columns of their own with with_columns, write x IN (...) "
            "for many comparisons, or raise Config(expression_depth_max=...)",
        )
    make_room(depth * _FRAMES_PER_LEVEL if depth > DEEP_ENOUGH else 0)


def make_room(frames: int) -> None:
    """Let Python's stack grow by so many frames from here.

    It keeps that room: lowering it again would take it from other threads.
    """
    if frames == 0:
        return
    used, frame = 0, sys._getframe()  # noqa: SLF001 - the only way to count them
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back
    if used + frames > sys.getrecursionlimit():
        sys.setrecursionlimit(used + frames)


@dataclass(slots=True)
class _Level:
    """The text between two brackets: the operators and the deepest brackets of one operand."""

    operators: int = 0
    inner: int = 0
    deepest: int = field(default=0)

    def end_operand(self) -> None:
        self.deepest = max(self.deepest, self.operators + self.inner)
        self.operators = self.inner = 0


def depth_of(tokens: Sequence[Token]) -> int:
    """How deep the tree of a text is at most. The operands of AND and OR count side by side."""
    levels = [_Level()]
    for token in tokens:
        kind = token.token_type
        if kind in _OPENING:
            levels.append(_Level())
        elif kind in _CLOSING and len(levels) > 1:
            level = levels.pop()
            level.end_operand()
            levels[-1].inner = max(levels[-1].inner, level.deepest + 1)
        elif kind in _BETWEEN:
            levels[-1].end_operand()
        elif token.text.upper() in _WORDS or not (token.text[:1].isalnum() or _is_value(kind)):
            levels[-1].operators += 1
    depth = 0
    for level in reversed(levels):
        level.inner = max(level.inner, depth)
        level.end_operand()
        depth = level.deepest + 1
    return depth - 1


def _is_value(kind: TokenType) -> bool:
    return kind in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.VAR, TokenType.NUMBER)
