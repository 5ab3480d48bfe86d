"""Reads Spark SQL into a syntax tree that keeps function names and literals as they were written.

sqlglot's own Spark dialect rewrites calls while reading (`date_sub` becomes an addition, `1L` a
cast). Here a call stays a call by its name, and a number keeps its suffix.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

import sqlglot.errors
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from millrace.sql.spark_dialect import PlainSpark
from millrace.sql.sql_mode import current_mode, reads_otherwise
from millrace.sql.syntax_errors import not_sql
from millrace.sql.text_limits import check_depth
from millrace.sql.typed_sql import ExpressionRefused

LITERAL: Final = "__literal_"
POSITION: Final = "__position_"
"""How the names of parameters begin that were written as `?`; their position follows."""
_DIALECT: Final = PlainSpark()
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = frozenset(word for key in PlainSpark.Tokenizer.KEYWORDS for word in key.split()) | {
    "CAST",
    "EXTRACT",
    "IF",
    "OVERLAY",
    "POSITION",
    "SUBSTR",
    "SUBSTRING",
    "TRIM",
    "TRY_CAST",
}
"""Words of the grammar: as names of columns they are quoted."""


def name_of_column(name: str) -> exp.Identifier:
    """A column's name in a tree, in quotes where Spark SQL needs them."""
    plain = _PLAIN_NAME.fullmatch(name) is not None and name.upper() not in _WORDS
    return exp.to_identifier(name, quoted=not plain)


def read(sql: str) -> exp.Expression:
    """The syntax tree of one expression."""
    if not isinstance(sql, str):
        raise ExpressionRefused(
            "an expression is text",
            found=f"{sql!r} of type {type(sql).__name__}",
            fix="write it as Spark SQL in quotes, as in 'amount > 10'",
        )
    if not sql.strip():
        raise ExpressionRefused("the expression is empty", fix="write a Spark SQL expression")
    if "\0" in sql:
        raise ExpressionRefused(
            "the expression has a NUL in it", found=repr(sql), fix="leave it out"
        )
    _check_settings(sql)
    try:
        tokens = _with_quotes(_with_suffixes(_DIALECT.tokenize(sql)), sql)
        tokens = _numbered(_with_binary(tokens))
        check_depth(tokens)
        trees = _DIALECT.parser().parse(tokens, sql)
    except sqlglot.errors.SqlglotError as error:
        raise not_sql(error, sql) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Expression):
        raise ExpressionRefused(
            "there is more than one expression", found=sql, fix="pass one at a time"
        )
    return trees[0]


def _check_settings(sql: str) -> None:
    """Refuse a text that the session's settings give another meaning."""
    settings = current_mode().text_on_spark
    if settings is not None and reads_otherwise(sql, settings):
        raise ExpressionRefused(
            f"the session has {settings}, which changes what this text means",
            found=sql,
            fix="write it with columns of pyspark.sql.functions, or in ws.sql(...)",
        )


def operands(
    tree: exp.Expression, kind: type[exp.Expression], *, through_brackets: bool = False
) -> list[exp.Expression]:
    """What is joined by AND, or by OR, from left to right, however many there are."""
    parts, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            waiting += [node.expression, node.this]
        elif through_brackets and isinstance(node, exp.Paren) and isinstance(node.this, kind):
            waiting.append(node.this)
        else:
            parts.append(node)
    return parts


def _with_suffixes(tokens: list[Token]) -> list[Token]:
    """Write `1L`, which arrives as `1 :: L`, as a call that a cast by hand is not mistaken for."""
    out: list[Token] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        mark = tokens[position + 1] if position + 2 < len(tokens) else None
        if (
            token.token_type == TokenType.NUMBER
            and mark is not None
            and mark.token_type == TokenType.DCOLON
            and mark.start == token.start
        ):
            suffix = tokens[position + 2].text.upper()
            out += [
                _like(token, TokenType.VAR, LITERAL + suffix),
                _like(token, TokenType.L_PAREN, "("),
                token,
                _like(token, TokenType.R_PAREN, ")"),
            ]
            position += 3
        else:
            out.append(token)
            position += 1
    return out


def _with_quotes(tokens: list[Token], sql: str) -> list[Token]:
    """Read a doubled quote as a quote: 'it''s' arrives as two texts without a gap."""
    out: list[Token] = []
    for token in tokens:
        last = out[-1] if out else None
        if (
            last is not None
            and token.token_type == last.token_type == TokenType.STRING
            and last.end + 1 == token.start
            and sql[token.start] == sql[last.end]
        ):
            merged = Token(
                TokenType.STRING,
                last.text + sql[token.start] + token.text,
                line=last.line,
                col=last.col,
                start=last.start,
                end=token.end,
            )
            out[-1] = merged
        else:
            out.append(token)
    return out


def _with_binary(tokens: list[Token]) -> list[Token]:
    """Read `X 'ff'` as `X'ff'`."""
    out: list[Token] = []
    for token in tokens:
        last = out[-1] if out else None
        if (
            last is not None
            and token.token_type == TokenType.STRING
            and last.token_type == TokenType.VAR
            and last.text.upper() == "X"
        ):
            out[-1] = _like(token, TokenType.HEX_STRING, token.text)
        else:
            out.append(token)
    return out


def _numbered(tokens: list[Token]) -> list[Token]:
    """Give each `?` its position in the text as a name."""
    out: list[Token] = []
    count = 0
    for token in tokens:
        if token.token_type == TokenType.PLACEHOLDER:
            out += [
                _like(token, TokenType.COLON, ":"),
                _like(token, TokenType.VAR, f"{POSITION}{count}"),
            ]
            count += 1
        else:
            out.append(token)
    return out


def _like(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, line=token.line, col=token.col, start=token.start, end=token.end)


def with_names(sql: str, names: Mapping[str, str]) -> str:
    """An expression with other names for columns, always written the same way."""
    if all(old == new for old, new in names.items()):
        return sql

    def renamed(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Lambda):
            return _without_variables(node, set(names.values()))
        if isinstance(node, exp.Column) and node.table:
            owner = exp.to_identifier(names.get(node.table, node.table))
            return exp.column(node.this.copy(), table=owner)
        if isinstance(node, exp.Column) and node.name in names:
            return exp.column(exp.to_identifier(names[node.name]))
        return node

    return canonical(read(sql).transform(renamed))


def _without_variables(node: exp.Lambda, names: set[str]) -> exp.Lambda:
    """The lambda with other variables, if one has a name that a column gets."""
    taken = {name.lower() for name in names}
    others = {v.name.lower(): v.name for v in node.expressions if v.name.lower() in taken}
    if not others:
        return node
    used = taken | {identifier.name.lower() for identifier in node.find_all(exp.Identifier)}
    for identifier in list(node.find_all(exp.Identifier)):
        if identifier.name.lower() in others and not isinstance(identifier.parent, exp.Column):
            is_field = isinstance(identifier.parent, exp.Dot) and identifier.arg_key != "this"
            if not is_field:
                identifier.set("this", free_variable(identifier.name, used))
    return node


def free_variable(name: str, used: set[str]) -> str:
    """A name like this one that is not used."""
    return next(other for n in itertools.count(1) if (other := f"{name}_{n}").lower() not in used)


def _as_bytes(node: exp.Literal) -> exp.Expression:
    """A text whose spelling depends on no setting."""
    if node.name and not set(node.name) & set("'\"\\"):
        return node
    bytes_ = exp.HexString(this=node.name.encode().hex().upper())
    return exp.Cast(this=bytes_, to=exp.DataType.build("string", dialect="spark"))


def as_typed_literal(node: exp.Expression) -> exp.Expression:
    """`DATE '2020-01-01'` written so, by which Spark names it; other nodes as they are."""
    if type(node) is not exp.Cast or not isinstance(node.this, exp.Literal):
        return node
    return exp.Introducer(this=exp.Var(this=canonical(node.args["to"])), expression=node.this)


def canonical(tree: exp.Expression) -> str:
    """The tree as Spark SQL again, always written the same way; the tree itself is not changed."""
    in_other_words = current_mode().text_on_spark is not None

    def suffixed(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Anonymous) and str(node.this).startswith(LITERAL):
            suffix = str(node.this).removeprefix(LITERAL)
            return exp.Literal.number(f"{node.expressions[0].this}{suffix}")
        if isinstance(node, exp.Literal) and node.is_string and in_other_words:
            return _as_bytes(node)
        return node

    if all(suffixed(node) is node for node in tree.find_all(exp.Anonymous, exp.Literal)):
        return tree.sql(dialect=_DIALECT, comments=False)
    return tree.transform(suffixed).sql(dialect=_DIALECT, comments=False, copy=False)
